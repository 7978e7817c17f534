"""``kerolox store info``: what a store holds, without reading its messages."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.errors import RemoteProtocolError, StoreError
from kerolox.inspect.index_layout import read_header
from kerolox.inspect.log_walk import find_last_record, read_record, record_at_or_after
from kerolox.inspect.queue_files import QueueFiles
from kerolox.protocol.records import decode_record
from kerolox.store.files.checkpoint import Checkpoint
from kerolox.store.layout import EPOCH_FILE, PRE_BLANK_SIZE
from kerolox.store.log.epochs import EpochFile, EpochStart

if TYPE_CHECKING:
    from kerolox.inspect.places import StorePlaces
    from kerolox.message import MessageExt


@dataclass(frozen=True)
class QueueInfo:
    """One queue; offsets count messages."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass
class StoreInfo:
    """A store. Times are milliseconds since the epoch, 0 or None where there is none."""

    root: str
    log_folders: list[str]
    is_in_use: bool
    is_closed_cleanly: bool
    log_files: int
    log_file_bytes: int
    """Of one file."""
    min_offset: int
    max_offset: int
    """Physical offsets of the log."""
    oldest: MessageExt | None
    newest: MessageExt | None
    queues: list[QueueInfo]
    queue_files: int
    index_files: int
    index_entries: int
    checkpoint: tuple[int, int, int] | None
    """Store times up to which log, queues and index are on disk."""
    epochs: tuple[EpochStart, ...] = ()
    """Of RocketMQ's controller mode, oldest first."""
    epochs_fault: str = ""
    """Why they can't be read; empty: they can."""
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Part of the store → (bytes of its files, bytes that they take of the disk)."""

    @property
    def topics(self) -> dict[str, list[QueueInfo]]:
        """The queues by topic."""
        found: dict[str, list[QueueInfo]] = {}
        for queue in self.queues:
            found.setdefault(queue.topic, []).append(queue)
        return found

    def as_json(self) -> dict[str, object]:
        """In RocketMQ's names where it has one."""
        return {
            "storePathRootDir": self.root,
            "storePathCommitLog": self.log_folders,
            "inUse": self.is_in_use,
            "closedCleanly": self.is_closed_cleanly,
            "commitLog": {
                "files": self.log_files,
                "mappedFileSizeCommitLog": self.log_file_bytes,
                "minOffset": self.min_offset,
                "maxOffset": self.max_offset,
            },
            "oldest": _brief(self.oldest),
            "newest": _brief(self.newest),
            "topics": [
                {
                    "topic": topic,
                    "messages": sum(queue.max_offset - queue.min_offset for queue in queues),
                    "queues": [
                        {
                            "queueId": queue.queue_id,
                            "minOffset": queue.min_offset,
                            "maxOffset": queue.max_offset,
                        }
                        for queue in queues
                    ],
                }
                for topic, queues in self.topics.items()
            ],
            "consumeQueueFiles": self.queue_files,
            "index": {"files": self.index_files, "entries": self.index_entries},
            "checkpoint": None
            if self.checkpoint is None
            else dict(
                zip(
                    ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"),
                    self.checkpoint,
                    strict=True,
                )
            ),
            "epochs": [{"epoch": each.epoch, "startOffset": each.start} for each in self.epochs],
            "epochsFault": self.epochs_fault,
            "sizes": {
                part: {"bytes": size, "diskBytes": used}
                for part, (size, used) in self.sizes.items()
            },
        }


def describe_store(places: StorePlaces) -> StoreInfo:
    """Examine a store; reads file sizes, queue ends and two records."""
    files = [file for file in places.log_files if file.size]
    log_start = files[0].start if files else 0
    queues: list[QueueInfo] = []
    queue_files = 0
    newest_known = 0
    for folder in places.queue_folders():
        queue = QueueFiles(folder.path)
        queue_files += len(queue.files)
        if not queue.files:
            continue
        end = queue.end()
        physical, size, _code = queue.entry(end - 1) if end > queue.first else (0, 0, 0)
        if 0 < size < PRE_BLANK_SIZE:
            newest_known = max(newest_known, physical)
        first = _first_kept(queue, end, log_start)
        topic = folder.topic.decode("utf-8", "replace")
        queues.append(QueueInfo(topic, folder.queue_id, first, end))
    last, log_end = find_last_record(files, newest_known)
    oldest_at = record_at_or_after(files, log_start)
    index_paths = places.index_paths()
    epochs, epochs_fault = _epochs(places.root)
    return StoreInfo(
        root=places.root,
        log_folders=places.log_folders,
        is_in_use=places.is_in_use,
        is_closed_cleanly=places.is_closed_cleanly,
        log_files=len(files),
        log_file_bytes=files[0].size if files else 0,
        min_offset=log_start,
        max_offset=log_end,
        oldest=_message(places, oldest_at),
        newest=_message(places, last if last >= 0 else newest_known),
        queues=queues,
        queue_files=queue_files,
        index_files=len(index_paths),
        index_entries=sum(_index_entries(path) for path in index_paths),
        checkpoint=_checkpoint(places.checkpoint_path),
        epochs=epochs,
        epochs_fault=epochs_fault,
        sizes=_sizes(places),
    )


def _first_kept(queue: QueueFiles, end: int, log_start: int) -> int:
    """The first entry of a record that the log still has."""
    low, high = queue.first, end
    while low < high:
        middle = (low + high) // 2
        physical, size, _code = queue.entry(middle)
        if size == PRE_BLANK_SIZE or physical < log_start:
            low = middle + 1
        else:
            high = middle
    return low


def _message(places: StorePlaces, offset: int) -> MessageExt | None:
    data = read_record(places.log_files, offset)
    with contextlib.suppress(RemoteProtocolError):
        return None if data is None else decode_record(data, inflate=False)[0]
    return None


def _index_entries(path: str) -> int:
    with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        return max(0, read_header(file.fileno()).entry_count - 1)
    return 0


def _checkpoint(path: str) -> tuple[int, int, int] | None:
    checkpoint = Checkpoint(path)
    return checkpoint.timestamps if checkpoint.load() else None


def _epochs(root: str) -> tuple[tuple[EpochStart, ...], str]:
    """(epochs, why there are none)."""
    try:
        return tuple(EpochFile(Path(root, EPOCH_FILE)).load().starts), ""
    except StoreError as error:
        return (), str(error)


def _sizes(places: StorePlaces) -> dict[str, tuple[int, int]]:
    parts = {
        "commitlog": places.log_folders,
        "consumequeue": [places.queue_root],
        "consumequeue_ext": [places.extension_root],
        "index": [places.index_folder],
        "config": [places.config_folder],
    }
    found: dict[str, tuple[int, int]] = {}
    for part, folders in parts.items():
        size = used = 0
        for folder in folders:
            for parent, _folders, names in os.walk(folder):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(os.path.join(parent, name))
                        size += status.st_size
                        used += status.st_blocks * 512
        if size or part != "consumequeue_ext":
            found[part] = (size, used)
    return found


def _brief(message: MessageExt | None) -> dict[str, object] | None:
    if message is None:
        return None
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeTimestamp": message.store_timestamp,
    }
