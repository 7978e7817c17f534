"""Rows of a table as messages of batches: whose encoder this process uses."""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast

from kerolox.codec import python_rows
from kerolox.codec.python_rows import RowColumns, RowIds, RowRules, TextColumn
from kerolox.kernel.choice import kernel_name, load_kernel


class RowCodec(Protocol):
    """What differs between the native encoder and its Python implementation."""

    @staticmethod
    def first_fault(columns: RowColumns, start: int, stop: int, rules: RowRules) -> int:
        """See :func:`kerolox.codec.python_rows.first_fault`."""

    @staticmethod
    def encode_rows(
        columns: RowColumns, start: int, stop: int, rules: RowRules, ids: RowIds
    ) -> tuple[bytes, bytes]:
        """See :func:`kerolox.codec.python_rows.encode_rows`."""

    @staticmethod
    def hash_texts(texts: TextColumn, count: int) -> bytes:
        """See :func:`kerolox.codec.python_rows.hash_texts`."""


@cache
def row_codec(name: str | None = None) -> RowCodec:
    """The encoder of a kernel, of the one that is in use when none is named."""
    chosen = kernel_name() if name is None else name
    return cast("RowCodec", load_kernel(chosen) if chosen == "native" else python_rows)
