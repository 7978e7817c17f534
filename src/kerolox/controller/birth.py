"""Which file one is, and not only what is in it: a copy of it is another one.

A controller whose files were put back from a backup has forgotten votes and entries that it
acknowledged, and nothing in the files shows that. So each has its own time of birth in its first
line: a copy is born later. Snapshots of whole disks keep it; the leader finds out then
(:attr:`kerolox.controller.raft.raft.Raft.put_back`).
"""

from __future__ import annotations

import ctypes
import struct

_BIRTH = 0x800
"""``STATX_BTIME``."""

_EMPTY_PATH = 0x1000
"""``AT_EMPTY_PATH``: the file of the descriptor itself."""

_STATX_BYTES = 256


def birth_of(descriptor: int) -> str:
    """When an open file was made, nanoseconds since the epoch; empty: the system does not tell. Its
    number says less: file systems over a network or of containers may give another one."""
    told = _birth_ns(descriptor)
    return "" if told is None else str(told)


def _birth_ns(descriptor: int) -> int | None:
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(descriptor, b"", _EMPTY_PATH, _BIRTH, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    return seconds * 1_000_000_000 + nanoseconds if mask & _BIRTH else None
