"""The consume queues of a store."""

from __future__ import annotations

import contextlib
import os

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import QueueBounds
from kerolox.protocol.names import LMQ_PREFIX
from kerolox.store.files.mapped_file import check_file_size
from kerolox.store.layout import ENTRY_BYTES
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.queues.consume_queue import FILE_SIZE_SETTING, ConsumeQueue, OpenQueues
from kerolox.store.queues.consume_queue_ext import ConsumeQueueExt


class Queues:
    """All queues by topic and queue id, and what of them can be read."""

    def __init__(self, root: str, settings: StoreSettings, log: CommitLog) -> None:
        """None is loaded yet. ``root``: the folder of the store."""
        self._settings = settings
        self._log = log
        self._file_size = -(-settings.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES
        if self._file_size < ENTRY_BYTES:
            raise ValueError("mappedFileSizeConsumeQueue must hold at least one entry of 20 bytes")
        self.root = os.path.join(root, "consumequeue")
        self._ext_root = os.path.join(root, "consumequeue_ext")
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.lmq_count = 0
        """Light message queues among them."""
        self.confirmed: int | None = None
        """See ``ReplicationKernel.set_confirmed``."""
        self._open_queues = OpenQueues()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The consume queue, made when it is new (no file yet). ``ValueError``: illegal topic."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise ValueError(f"queue id {queue_id} of topic {topic} is negative")
            queue = ConsumeQueue(self.root, topic, queue_id, self._file_size, self._open_queues)
            if self._settings.enable_consume_queue_ext:
                queue.ext = ConsumeQueueExt(
                    self._ext_root,
                    topic,
                    queue_id,
                    self._settings.mapped_file_size_consume_queue_ext,
                    self._settings.bit_map_length_consume_queue_ext,
                )
            self.by_key[topic, queue_id] = queue
            self.lmq_count += topic.startswith(LMQ_PREFIX)
        return queue

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """See ``StoreKernel.queue_bounds``."""
        queue = self.by_key.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.min_offset, self.visible_end(queue))

    def readable_end(self, queue: ConsumeQueue) -> int:
        """The max offset of a queue: records that wait in a transient pool have their entries
        already, and can't be read."""
        return _end_below(queue, self._log.max_offset)

    def visible_end(self, queue: ConsumeQueue) -> int:
        """The same for those who consume: up to what no change of masters takes back."""
        return _end_below(queue, self.visible)

    @property
    def visible(self) -> int:
        """Physical offset up to which queues show their records."""
        end, confirmed = self._log.max_offset, self.confirmed
        return end if confirmed is None else min(end, confirmed)

    def all(self) -> list[QueueBounds]:
        """See ``StoreKernel.queues``: those with files."""
        return [
            QueueBounds(queue.topic, queue.queue_id, queue.min_offset, self.readable_end(queue))
            for queue in self.by_key.values()
            if queue.starts
        ]

    def end(self, topic: str, queue_id: int) -> int:
        """See ``StoreKernel.queue_end``."""
        queue = self.by_key.get((topic, queue_id))
        return -1 if queue is None else queue.max_physical_offset

    def load(self, notes: list[str], *, clean: bool) -> list[ConsumeQueue]:
        """Load the queues that there are; those that lack entries. Adds a note per repair."""
        short: list[ConsumeQueue] = []
        short_files: dict[str, int] = {}
        with os.scandir(self.root) as topics:
            for topic in topics:
                if not topic.is_dir():
                    continue
                with os.scandir(topic.path) as folders:
                    for folder in folders:
                        if folder.name.isdecimal() and folder.is_dir():
                            queue = self.get(topic.name, int(folder.name))
                            loaded = queue.load(clean=clean)
                            notes += loaded.notes
                            short_files |= loaded.short_files
                            if loaded.is_short:
                                short.append(queue)
        has_right_size = any(queue.starts for queue in self.by_key.values())
        for path, size in short_files.items():
            if clean and size and not has_right_size:
                # No file has the size that the setting says: then the setting is wrong.
                check_file_size(path, size, self._file_size, FILE_SIZE_SETTING)
            notes.append(
                f"removed {path}: it has {size} bytes of {self._file_size}; its entries are "
                "written again"
            )
            os.unlink(path)
        return short

    def expire(self, topic: str, queue_id: int, most: int) -> int:
        """See ``StoreKernel.expire_queue``."""
        queue = self.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.expire(self._log.min_offset, most)

    def delete(self, queue: ConsumeQueue) -> None:
        """Delete a queue and its files."""
        topic = queue.topic
        del self.by_key[topic, queue.queue_id]
        self.lmq_count -= topic.startswith(LMQ_PREFIX)
        queue.delete()
        # Not empty: it has other queues, or something that is not ours.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(self.root, topic))

    def close(self) -> None:
        """Let go of all."""
        for queue in self.by_key.values():
            queue.close()
        self.by_key.clear()


def _end_below(queue: ConsumeQueue, limit: int) -> int:
    """The max offset of a queue whose records end at a physical offset or before."""
    if queue.max_physical_offset <= limit:
        return queue.max_offset
    return queue.first_where(lambda entry: entry[0] + entry[1] > limit)
