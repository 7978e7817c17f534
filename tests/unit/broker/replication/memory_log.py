"""A log in memory, as the sans-IO ends of replication see one."""

from __future__ import annotations

FILE_SIZE = 1_000


class MemoryLog:
    """Records are lines: what follows the last line end is no whole record."""

    def __init__(self, begin: int = 0, data: bytes = b"") -> None:
        self.begin = begin
        self.data = bytearray(data)
        self.partial = bytearray()

    @property
    def min_physical_offset(self) -> int:
        return self.begin

    @property
    def max_physical_offset(self) -> int:
        return self.begin + len(self.data)

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        at = offset - self.begin
        room = FILE_SIZE - offset % FILE_SIZE
        return bytes(self.data[at : at + min(max_bytes, room)])

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        if not self.data and not self.partial:
            self.begin = offset
        assert offset == self.max_physical_offset + len(self.partial)
        if b"\0" in bytes(data):
            raise ValueError("no record")
        self.partial += data
        end = self.partial.rfind(b"\n") + 1
        self.data += self.partial[:end]
        del self.partial[:end]
        return self.max_physical_offset
