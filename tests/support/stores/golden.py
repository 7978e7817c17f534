"""The golden store: one that the Java broker of RocketMQ 4.9.8 wrote, with a list of its messages.

``tests/golden/store.tar.xz`` holds ``store/``, the ``broker.conf`` with its small file sizes, and
``manifest.jsonl``: each message as the Java client read it back. Each test gets its own copy, since
opening a store changes files.
"""

from __future__ import annotations

import functools
import io
import json
import lzma
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.kernel.settings import StoreSettings
from tests.support.unpacked import unpack_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Golden", "copy_golden", "golden"]

ARCHIVE = Path(__file__).resolve().parents[2] / "golden" / "store.tar.xz"


@dataclass(frozen=True)
class Golden:
    """A copy of the golden store."""

    folder: Path

    @property
    def settings(self) -> StoreSettings:
        """Settings with the small files of its broker.conf."""
        return StoreSettings(
            store_path_root_dir=str(self.folder / "store"),
            mapped_file_size_commit_log=1_048_576,
            mapped_file_size_consume_queue=6_000,
            max_hash_slot_num=1_000,
            max_index_num=1_500,
        )

    def messages(self) -> Iterator[dict[str, Any]]:
        """The lines of the manifest."""
        with (self.folder / "manifest.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


@functools.cache
def _inflated() -> bytes:
    """The archive, of which a process needs many copies."""
    return lzma.decompress(ARCHIVE.read_bytes())


def copy_golden(target: Path) -> Golden:
    """Unpack the golden store below ``target``."""
    with tarfile.open(fileobj=io.BytesIO(_inflated())) as file:
        unpack_archive(file, target)
    return Golden(target / "golden")


@pytest.fixture
def golden(tmp_path: Path) -> Golden:
    """A fresh copy of the golden store."""
    return copy_golden(tmp_path)
