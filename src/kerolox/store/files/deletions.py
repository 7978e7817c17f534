"""Deleted topics: up to where in the log their records belong to a life that is over.

The log keeps the records of a deleted topic until they expire, and recovery writes queue entries
for records that have none. RocketMQ so brings a deleted topic back, with its old messages. Here the
file ``deletions`` notes the deletion first. Recovery leaves out what is older. So the topic, made
again, begins at offset 0 with nothing of its earlier life. RocketMQ ignores the file.

An item is the physical offset in 20 digits, a blank, the topic and a zero byte. Items are appended;
of several for one topic the greatest counts. The page cache has an item when ``add`` returns, which
is enough for a killed process; ``sync``, called each second, makes it outlast the machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from kerolox.store.files.mapped_file import opened, sync_path

SPARE_BYTES = 64 * 1024
"""The file is written anew when it is so much larger than twice what is still needed."""
_OFFSET_DIGITS = 20


class Deletions:
    """The file and what it says. ``add`` and the rest are the owner's; ``sync`` any thread's."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offsets: dict[str, int] = {}
        """Topic to the end of the log when it was deleted."""
        self._lock = threading.Lock()
        self._file_bytes = 0
        self._is_dirty = False
        self._is_lost = False
        """The file lacks something: it has to be written anew."""

    def load(self, *, is_durable: bool = True) -> None:
        """Read the file; there may be none. What is no whole item is left out.

        ``is_durable``: it is known to be on the disk. What a killed process wrote may not be.
        """
        try:
            data = Path(self.path).read_bytes()
        except FileNotFoundError:
            return
        self._file_bytes = len(data)
        self._is_dirty = not is_durable
        self.offsets.update(deletions_in(data))

    def is_over(self, topic: str, physical_offset: int) -> bool:
        """Whether a record belongs to an earlier life of its topic."""
        return physical_offset < self.offsets.get(topic, 0)

    def add(self, topic: str, physical_offset: int) -> None:
        """Note that a topic is deleted; ``physical_offset`` is the end of the log.

        A disk that takes no more is no reason not to delete: it is tried again by ``sync``.
        """
        with self._lock:
            self.offsets[topic] = physical_offset
            item = _item(topic, physical_offset)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                with opened(self.path, flags) as descriptor:
                    self._is_lost = os.write(descriptor, item) != len(item) or self._is_lost
            except OSError:
                self._is_lost = True
            self._file_bytes += len(item)
            self._is_dirty = True

    def retry(self) -> None:
        """After a file was deleted: there may be space now for what could not be noted."""
        if self._is_lost:
            self.sync()

    def forget_outside(self, min_offset: int, max_offset: int) -> None:
        """Forget what the log has nothing of any more. ``max_offset``, the end of the log, is below
        an item when the log lost its end: what is written there next is new. OSError: the file
        can't be written; the log must not grow then.
        """
        with self._lock:
            kept = {
                topic: min(offset, max_offset)
                for topic, offset in self.offsets.items()
                if min(offset, max_offset) > min_offset
            }
            if kept != self.offsets or self._is_too_large():
                self.offsets = kept
                self._write_anew()

    def forget(self, min_offset: int) -> None:
        """Forget what the log has nothing of any more; the file follows when it is too large."""
        with self._lock:
            for topic in [topic for topic, end in self.offsets.items() if end <= min_offset]:
                del self.offsets[topic]

    def sync(self) -> None:
        """Bring the file to the disk. After an error the next call writes it anew."""
        with contextlib.suppress(OSError):
            with self._lock:
                if self._is_lost or self._is_too_large():
                    self._write_anew()
                    return
                is_dirty, self._is_dirty = self._is_dirty, False
            if is_dirty:
                try:
                    sync_path(self.path)
                    # Its name, which may be new.
                    sync_path(os.path.dirname(self.path))
                except OSError:
                    with self._lock:
                        self._is_lost = True

    def _is_too_large(self) -> bool:
        needed = sum(len(_item(*each)) for each in self.offsets.items())
        return self._file_bytes > 2 * needed + SPARE_BYTES

    def _write_anew(self) -> None:
        self._is_lost = True
        if self.offsets:
            data = b"".join(_item(*each) for each in self.offsets.items())
            fresh = self.path + ".tmp"
            Path(fresh).write_bytes(data)
            sync_path(fresh)
            os.replace(fresh, self.path)
            self._file_bytes = len(data)
        else:
            Path(self.path).unlink(missing_ok=True)
            self._file_bytes = 0
        sync_path(os.path.dirname(self.path))
        self._is_lost = self._is_dirty = False


def deletions_in(data: bytes) -> dict[str, int]:
    """What the bytes of the file say. What is no whole item is left out."""
    offsets: dict[str, int] = {}
    for item in data.split(b"\0")[:-1]:
        digits, separator, name = item.partition(b" ")
        if len(digits) == _OFFSET_DIGITS and digits.isdigit() and separator and name:
            topic = name.decode("utf-8", "surrogateescape")
            offsets[topic] = max(int(digits), offsets.get(topic, 0))
    return offsets


def _item(topic: str, physical_offset: int) -> bytes:
    name = topic.encode("utf-8", "surrogateescape")
    return b"%0*d %s\0" % (_OFFSET_DIGITS, physical_offset, name)
