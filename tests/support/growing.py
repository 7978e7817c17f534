"""A file of lines that other processes append to, read as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GrowingFile"]


class GrowingFile:
    """Gives each whole line once."""

    def __init__(self, path: Path) -> None:
        """``path`` is made where it is not there."""
        self._path = path
        path.touch()
        self._read = 0

    def new_lines(self) -> list[str]:
        """Those that were ended since the last call, without their ends; empty ones are left
        out."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return [line for line in whole.decode().split("\n") if line]
