"""Where a store lies: in a local folder, or on another file system that pyarrow knows.

Local files are read with ``pread``, not mapped, so that a file that shrinks or a disk that fails is
an ``OSError`` and no signal, and what is read does not count as memory of the process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from kerolox.errors import ConfigError
from kerolox.inspect.log_walk import first_data
from kerolox.store.files.mapped_file import data_end

if TYPE_CHECKING:
    import pyarrow.fs

_PROBE_BYTES = 256 * 1024
"""So many zeros in a row count as the part of a file that is not written yet, where a file system
can't tell holes. What is taken for it wrongly costs time, and loses nothing."""

_SCHEME_END = "://"


class Child(NamedTuple):
    """What a folder holds."""

    name: str
    size: int
    is_file: bool


class StoreFile(Protocol):
    """An open file. Positions count from its start."""

    def read_at(self, position: int, size: int) -> bytes:
        """The bytes from a position on; fewer at the end of the file."""

    def next_data(self, position: int, end: int) -> int:
        """The first byte of ``[position, end)`` that is not zero; -1: all are."""

    def data_end(self, size: int) -> int:
        """About where the last byte is that is not zero; a log's end is searched from there."""

    def close(self) -> None:
        """Close it."""


class Disk(Protocol):
    """A file system, read only."""

    is_local: bool

    def children(self, folder: str) -> list[Child]:
        """What a folder holds."""

    def open(self, path: str) -> StoreFile:
        """A file."""


def disk_of(location: str) -> tuple[Disk, str]:
    """The file system of a local path, or of a URI as ``pyarrow.fs.FileSystem.from_uri`` takes:
    hdfs, s3, gs, abfs ..., and the path on it. ConfigError: no such file system, or this pyarrow or
    machine lacks what it needs.
    """
    if location.startswith("file:"):
        return LocalDisk(), os.path.abspath(unquote(urlsplit(location).path))
    if _SCHEME_END not in location:
        return LocalDisk(), os.path.abspath(os.path.expanduser(location))
    import pyarrow
    import pyarrow.fs

    try:
        file_system, path = pyarrow.fs.FileSystem.from_uri(location)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"{location} can't be opened: {error}; give a local path, or a URI that "
            "pyarrow.fs.FileSystem.from_uri takes (hdfs://, s3://, gs://, abfs://)"
        ) from None
    return ArrowDisk(file_system), path


class LocalDisk:
    """The machine's own file system, a :class:`Disk`."""

    is_local = True

    def children(self, folder: str) -> list[Child]:
        found: list[Child] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    is_file = entry.is_file()
                    found.append(Child(entry.name, entry.stat().st_size, is_file))
                except FileNotFoundError:  # Deleted meanwhile: the broker beside us cleans up.
                    continue
        return found

    def open(self, path: str) -> LocalFile:
        return LocalFile(path)


class LocalFile:
    """A local :class:`StoreFile`."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        while data and len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def next_data(self, position: int, end: int) -> int:
        return first_data(self._descriptor, position, end)

    def data_end(self, size: int) -> int:
        return data_end(self._descriptor, 0, size)

    def close(self) -> None:
        os.close(self._descriptor)


class ArrowDisk:
    """A file system of pyarrow, a :class:`Disk`."""

    is_local = False

    def __init__(self, file_system: pyarrow.fs.FileSystem) -> None:
        self._file_system = file_system

    def children(self, folder: str) -> list[Child]:
        import pyarrow.fs

        infos = self._file_system.get_file_info(pyarrow.fs.FileSelector(folder))
        return [
            Child(each.base_name, each.size or 0, each.type is pyarrow.fs.FileType.File)
            for each in infos
        ]

    def open(self, path: str) -> ArrowFile:
        return ArrowFile(self._file_system.open_input_file(path))


class ArrowFile:
    """A :class:`StoreFile` of a file system of pyarrow."""

    def __init__(self, file: pyarrow.NativeFile) -> None:
        self._file = file

    def read_at(self, position: int, size: int) -> bytes:
        data: bytes = self._file.read_at(size, position)
        return data

    def next_data(self, position: int, end: int) -> int:
        while position < end:
            block = self.read_at(position, min(_PROBE_BYTES, end - position))
            if not block:
                return -1
            zeros = len(block) - len(block.lstrip(b"\0"))
            if zeros < len(block):
                return position + zeros
            position += len(block)
        return -1

    def data_end(self, size: int) -> int:
        """By halving, so that a file that is half empty is not all read."""
        low, high = 0, -(-size // _PROBE_BYTES)
        while low < high:
            middle = (low + high) // 2
            if self.next_data(middle * _PROBE_BYTES, min((middle + 1) * _PROBE_BYTES, size)) < 0:
                high = middle
            else:
                low = middle + 1
        return min(low * _PROBE_BYTES, size)

    def close(self) -> None:
        self._file.close()
