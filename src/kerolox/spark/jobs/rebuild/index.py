"""Files of the index from the keys of a log: each task fills one file from a range of the log.

A file takes as many keys as it has space for, in the order of the log, as a broker fills it. So it
is known from the number of keys in each split where each file begins.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from kerolox.inspect.index_layout import IndexShape
from kerolox.protocol.codes import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.tasks import numbers_of
from kerolox.spark.jobs.rebuild.queues import done_batch
from kerolox.spark.jobs.rebuild.reading import TIME, LogSplits, store_times
from kerolox.store.index import IndexFile, KeyHasher, index_name, keys_of

if TYPE_CHECKING:
    import pyarrow

_COLUMNS = ("topic", "physicalOffset", "sysFlag", TIME, "uniqKey", "keys")

RELEASE_ENTRIES = 500_000
"""After so many entries (10 MB) the pages of a file leave the process."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The keys of one file. ``split``: where its first key is, or the last one of the file before
    it. ``skip``: keys of that split before that. ``follows``: a file is before it.
    """

    split: int
    skip: int
    count: int
    follows: bool
    name: str


def index_parts(keys: Sequence[int], shape: IndexShape, now_ms: int) -> list[IndexPart]:
    """Files for the keys of a log, given those of each split. ``now_ms``: the last file's name;
    those before it have names of before.
    """
    ends = list(accumulate(keys))
    total = ends[-1] if ends else 0
    room = shape.entries - 1
    count = -(-total // room)
    parts: list[IndexPart] = []
    name = split = 0
    for number in range(count):
        first = number * room
        # The last key of the file before it says where this one's times begin.
        begin = max(0, first - 1)
        while ends[split] <= begin:
            split += 1
        name = max(name + 1, index_name(now_ms - count + 1 + number))
        skip = begin - (ends[split] - keys[split])
        parts.append(IndexPart(split, skip, min(room, total - first), number > 0, f"{name:017d}"))
    return parts


@dataclass(frozen=True, slots=True)
class IndexWriter:
    """Writes files of the index by the numbers of their parts. ``scratch``: for files that are not
    whole; on the same file system.
    """

    log: LogSplits
    skips: bool
    parts: tuple[IndexPart, ...]
    shape: IndexShape
    folder: str
    scratch: str

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: writes the files whose numbers are the first column; JobError: the log has
        fewer keys than before.
        """
        for number in numbers_of(batches):
            part = self.parts[number]
            path = os.path.join(self.scratch, uuid.uuid4().hex)
            try:
                self._write(part, path)
                os.replace(path, os.path.join(self.folder, part.name))
            except BaseException:
                if os.path.exists(path):
                    os.unlink(path)
                raise
            yield done_batch(part.count, 1, [])

    def _write(self, part: IndexPart, path: str) -> None:
        keys = self._keys(part.split, part.skip)
        file = IndexFile(path, *self.shape)
        try:
            if part.follows:
                before = next(keys, None)
                if before is not None:
                    file.continue_from(before[1], before[2])
            for count, entry in enumerate(keys, 1):
                file.put(*entry)
                if count % RELEASE_ENTRIES == 0:
                    file.release_pages()
                if count == part.count:
                    break
            if file.count - 1 != part.count:
                raise JobError(
                    "the log changed while it was read; stop the broker that uses the store, and "
                    "run it again"
                )
            file.flush()
        finally:
            file.close()

    def _keys(self, split: int, skip: int) -> Iterator[tuple[int, int, int]]:
        """(hash, physical offset, store time) of keys, in order."""
        hasher = KeyHasher()
        for number in range(split, len(self.log.splits)):
            for batch in self.log.records(number, _COLUMNS, skips=self.skips):
                rows = zip(
                    batch.column("topic").to_pylist(),
                    batch.column("uniqKey").to_pylist(),
                    batch.column("keys").to_pylist(),
                    batch.column("physicalOffset").to_pylist(),
                    store_times(batch).to_pylist(),
                    batch.column("sysFlag").to_pylist(),
                    strict=True,
                )
                for topic, unique, words, offset, when, flags in rows:
                    if flags & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                        continue
                    for key in keys_of(_encoded(unique), _encoded(words)):
                        if skip:
                            skip -= 1
                            continue
                        yield hasher.hash(topic.encode(), key), offset, when


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
