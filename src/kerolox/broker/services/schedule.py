"""Delivering delayed messages: ``ScheduleMessageService`` of RocketMQ.

A message with delay level n lies in queue n-1 of ``SCHEDULE_TOPIC_XXXX``. Its queue entry carries
the time it is due instead of a tags code. All messages of a level wait equally long, so each queue
is in order of delivery. One position per level, kept in ``delayOffset.json``, is all the state
there is. What is due is appended again under its real topic, where consumers find it.

A crash may deliver again what was delivered since the last write of the file, as in RocketMQ. Under
SYNC_FLUSH the file has a position only when what was delivered before it is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from kerolox.broker.base import Base
from kerolox.broker.services.writer import RecordWriter, WriteGate
from kerolox.broker.tables.json_file import JsonFile
from kerolox.broker.tables.tables import Tables
from kerolox.errors import RemoteProtocolError
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Copies, Record
from kerolox.message import MessageExt, PropertyKey, encode_properties, pack_host
from kerolox.protocol.names import HALF_TOPIC, SCHEDULE_QUEUES, SCHEDULE_TOPIC
from kerolox.protocol.records import decode_record

DELIVERIES_PER_SLICE = 100
"""Messages delivered before other work of the loop runs."""
SLICE_BYTES = 1 << 20
"""So many bytes of records end a slice, too."""
LOG_MS = 10_000
"""How often the log is told that nothing can be delivered."""

_NEVER = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""What is refused so will be refused again."""

_log = logging.getLogger(__name__)


class _DelayFile(msgspec.Struct):
    offsetTable: dict[int, int] = {}


class DelaySchedule:
    """The schedule queues of one broker."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        gate: WriteGate,
        writer: RecordWriter,
        *,
        on_delivered: Callable[[int, int, int], None] = lambda queue_id, count, size: None,
    ) -> None:
        """Without positions before :meth:`load`. ``tables`` say which bits a message gets, and
        where it goes when its queue is gone. While ``gate`` is closed what is due waits.
        ``writer`` says when positions may be kept. ``on_delivered`` is called with a schedule
        queue, how many of its messages were delivered, and the size of their records.
        """
        config = base.config
        self._store = base.store
        self._filters = tables.filters
        self._former_queues = tables.former_queues
        self._gate = gate
        self._writer = writer
        self._on_delivered = on_delivered
        self._now_ms = base.now_ms
        self._levels_ms = config.delay_levels_ms
        self._is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self._offsets: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        """Those that the file has, or may have."""
        self._logged_ms = 0
        self.file = JsonFile(config.config_folder / "delayOffset.json", self._snapshot)

    def load(self) -> None:
        """Read the file and bring every position inside its queue."""
        loaded = self.file.load(_DelayFile)
        if loaded is not None:
            self._offsets = loaded.offsetTable
        self.bound()
        self._log_lost_levels()

    def _log_lost_levels(self) -> None:
        """Messages of levels that ``messageDelayLevel`` has no more wait until it has them."""
        levels = len(self._levels_ms)
        for level in sorted({*range(1, SCHEDULE_QUEUES + 1), *self._offsets}):
            if level <= levels:
                continue
            low, high = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1)
            waiting = high - max(low, self._offsets.get(level, 0))
            if waiting > 0:
                _log.warning(
                    "%d delayed messages of level %d wait until messageDelayLevel, which has %d "
                    "levels now, has that one again",
                    waiting,
                    level,
                    levels,
                )

    def bound(self) -> None:
        """Bring every position inside its queue. What is beyond its end would not be delivered."""
        for level in self._offsets:
            low, high = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1)
            self._offsets[level] = min(max(self._offsets[level], low), high)

    @property
    def offsets(self) -> dict[int, int]:
        """Level → queue offset of the next message to deliver."""
        return dict(self._offsets)

    def set_offsets(self, offsets: Mapping[int, int]) -> None:
        """Take over the positions of a master, for the time when this broker is one."""
        levels = range(1, len(self._levels_ms) + 1)
        wanted = {level: offset for level, offset in offsets.items() if level in levels}
        if wanted != self._offsets:
            self._offsets = wanted
            self.file.touch()

    async def deliver_due(self) -> int:
        """Deliver everything that is due; how many messages that were.

        The levels take turns: a great many messages of one hold up no other.
        """
        delivered = 0
        levels = list(range(1, len(self._levels_ms) + 1)) if self._gate.writable else []
        while levels:
            unfinished = []
            for level in levels:
                if not self._gate.writable:
                    return delivered
                count, more = self._deliver_slice(level)
                delivered += count
                if more:
                    unfinished.append(level)
                    await asyncio.sleep(0)
            levels = unfinished
        return delivered

    async def persist(self) -> None:
        """Write the positions when they moved, those that may be kept. OSError: see
        :meth:`JsonFile.persist`."""
        offsets = self.offsets
        if not await self._writer.may_keep_positions():
            return
        self._kept = offsets
        await self.file.persist()
        if self._offsets != offsets:
            # They moved meanwhile.
            self.file.touch()

    def _deliver_slice(self, level: int) -> tuple[int, bool]:
        """Deliver some of a level's messages: (how many, whether more are due)."""
        offset = self._offsets.get(level, 0)
        low, high = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        start = offset = max(offset, low)
        due, more = self._due(level, start, high)
        copied = self._copy(level - 1, due)
        offset += copied
        for physical_offset in due[copied:]:
            if not self._deliver(level - 1, physical_offset):
                break
            offset += 1
        if offset != self._offsets.get(level, 0):
            self._offsets[level] = offset
            self.file.touch()
            if self._is_sync:
                # The position is kept when what it stands for is on the disk.
                self._store.request_flush(self._store.max_physical_offset)
        return offset - start, more and offset - start == len(due)

    def _due(self, level: int, start: int, end: int) -> tuple[list[int], bool]:
        """Where the messages of a slice are that are due, of those between two queue offsets;
        whether others may be."""
        due: list[int] = []
        size = 0
        for offset in range(start, end):
            entry = self._store.queue_entry(SCHEDULE_TOPIC, level - 1, offset)
            if entry is None or not self._is_due(level, entry[2]):
                return due, False
            due.append(entry[0])
            size += entry[1]
            if len(due) == DELIVERIES_PER_SLICE or size >= SLICE_BYTES:
                return due, True
        return due, False

    def _copy(self, schedule_queue: int, physical_offsets: Sequence[int]) -> int:
        """Append plain messages under their real topics; how many of the first ones those are."""
        if not physical_offsets or self._filters.makes_bit_maps:
            return 0
        done = self._store.copy_records(Copies(physical_offsets))
        if done.count:
            self._on_delivered(schedule_queue, done.count, done.size)
        return done.count

    def _is_due(self, level: int, due_ms: int) -> bool:
        now = self._now_ms()
        # A time further away than the delay itself comes from a clock that was set back.
        return due_ms <= now or due_ms > now + self._levels_ms[level - 1]

    def _deliver(self, schedule_queue: int, physical_offset: int) -> bool:
        """Append one message under its real topic. False: try again later."""
        data = self._store.lookup(physical_offset)
        if data is None:
            return True
        try:
            message, _ = decode_record(data, inflate=False)
            topic = message.properties[PropertyKey.REAL_TOPIC]
            queue_id = int(message.properties[PropertyKey.REAL_QUEUE_ID])
        except (RemoteProtocolError, KeyError, ValueError) as error:
            _log.error("delayed message at %d can't be delivered: %r", physical_offset, error)
            return True
        if topic == HALF_TOPIC:
            _log.error("delayed message at %d is a half message; dropped", physical_offset)
            return True
        queue_id = self._former_queues.queue_now(topic, queue_id)
        status, size = self._append(topic, queue_id, message)
        if status == PutMessageStatus.PUT_OK:
            self._on_delivered(schedule_queue, 1, size)
            return True
        name = PutMessageStatus(status).name
        if status in _NEVER:
            # Tried again it would hold up all that comes after it, for ever.
            _log.error("delayed message at %d to %s: %s; dropped", physical_offset, topic, name)
            return True
        self._log_refusal(physical_offset, name)
        if status == PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
            # Until others have deleted their queues: it is delayed once more, after the others.
            status, _ = self._append(SCHEDULE_TOPIC, schedule_queue, message)
        return status == PutMessageStatus.PUT_OK

    def _append(self, topic: str, queue_id: int, message: MessageExt) -> tuple[int, int]:
        """Store a message under a topic: (status, bytes of the record)."""
        record = Record(
            topic.encode(),
            queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            pack_host(*message.born_host),
            pack_host(*message.store_host),
            message.reconsume_times,
            0,
            message.body,
            # The text keeps DELAY, REAL_TOPIC and REAL_QID, as RocketMQ's does.
            encode_properties(message.properties).encode(),
            bit_map=self._filters.bit_map(topic, message.properties),
        )
        status, _, _, size, _ = self._store.append(record)
        return status, size

    def _log_refusal(self, physical_offset: int, status: str) -> None:
        """Now and then: on a full disk this comes ten times a second."""
        now = self._now_ms()
        if abs(now - self._logged_ms) >= LOG_MS:
            self._logged_ms = now
            _log.error("delayed message at %d: %s; tried again", physical_offset, status)

    def _snapshot(self) -> object:
        return {"offsetTable": self._kept}
