"""The inventory: what a store consists of, written when it closes.

Queues and index are rebuilt from the log where they are damaged. That some of their files are
missing altogether nothing else would tell: this file does. It is only a hint: what it says is
compared with the log, and a queue that it misses is filled from there or stays as it is.

RocketMQ neither writes nor reads it, and may have deleted topics or files since. But it writes to
the ``lock`` file whenever it starts, which kerolox does only once. So with another time of change
there (or a copied store) the inventory does not count.

The file, ``inventory``, is lines of words: ``lock NANOSECONDS``, ``log END``, ``queue ID MIN MAX
TOPIC`` for each queue with files, ``index NAME END`` for each index file, ``end LINES``.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

_FILE_NAME = "inventory"


@dataclass
class Inventory:
    """The files and offsets at the last clean stop."""

    log_end: int = 0
    """Physical offset behind the last record."""
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """(topic, queue id) to (min, max) offset, of queues with files."""
    index: list[tuple[str, int]] = field(default_factory=list)
    """File names of the index, and the offset of the last record in each."""

    @classmethod
    def load(cls, root: str) -> Inventory | None:
        """Read the file; None when there is none, not a whole one, or another broker has used the
        store since."""
        try:
            lines = Path(root, _FILE_NAME).read_bytes().split(b"\n")
            return cls._parse(lines, _lock_time(root))
        except (OSError, ValueError):
            return None

    @staticmethod
    def remove(root: str) -> None:
        """Remove the file: it would say what is no longer so."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(root, _FILE_NAME))

    @classmethod
    def _parse(cls, lines: list[bytes], lock_time: int) -> Inventory | None:
        found = cls()
        is_own = is_whole = False
        for count, line in enumerate(line for line in lines if line):
            word, _, rest = line.partition(b" ")
            if word == b"lock":
                is_own = int(rest) == lock_time
            elif word == b"log":
                found.log_end = int(rest)
            elif word == b"queue":
                queue_id, low, high, topic = rest.split(b" ", 3)
                name = topic.decode("utf-8", "surrogateescape")
                found.queues[name, int(queue_id)] = int(low), int(high)
            elif word == b"index":
                name_bytes, end = rest.split(b" ")
                found.index.append((name_bytes.decode("ascii"), int(end)))
            elif word == b"end":
                is_whole = int(rest) == count
            else:
                return None
        return found if is_own and is_whole else None

    def save(self, root: str) -> None:
        """Write the file. Queues whose names have a line's end in them are left out."""
        lines = [f"lock {_lock_time(root)}", f"log {self.log_end}"]
        lines += (
            f"queue {queue_id} {low} {high} {topic}"
            for (topic, queue_id), (low, high) in self.queues.items()
            if "\n" not in topic
        )
        lines += (f"index {name} {end}" for name, end in self.index)
        lines.append(f"end {len(lines)}\n")
        path = Path(root, _FILE_NAME)
        fresh = path.with_suffix(".tmp")
        with fresh.open("wb") as file:
            file.write("\n".join(lines).encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def _lock_time(root: str) -> int:
    return os.stat(os.path.join(root, "lock")).st_mtime_ns
