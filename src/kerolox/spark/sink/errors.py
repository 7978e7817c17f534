"""What a write fails with."""

from __future__ import annotations

from kerolox.errors import KeroloxError


class SinkError(KeroloxError):
    """Rows could not be written, or a transaction not be decided or ended; the text says which."""
