"""The timer: takes messages from the queue of its topic into the wheel, and delivers what is due
(``TimerMessageStore``). It does no I/O and reads no clock: see :mod:`kerolox.store.timer.steps`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.kernel.metrics import Latencies
from kerolox.message import PropertyKey, java_hash
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.store.timer.checkpoint import TimerCheckpoint
from kerolox.store.timer.log import DEFAULT, DELETE, ROLL, TimerUnit, place
from kerolox.store.timer.metrics import TimerMetrics, TimerVersion, TopicWaiting
from kerolox.store.timer.open_slot import OpenSlot
from kerolox.store.timer.puts import (
    NEVER_ENQUEUED,
    TimerSettings,
    delivered,
    key_of,
    out_ms,
    real_place,
    rolled,
)
from kerolox.store.timer.steps import (
    Append,
    Deliver,
    Delivered,
    Entry,
    Hold,
    Pause,
    Put,
    PutResult,
    ReadMessage,
    Step,
    read_chain,
    read_copied,
    read_copies,
    read_deletes,
    read_entries,
    read_message,
    read_moments,
    read_units,
)
from kerolox.store.timer.wheel import NO_POSITION, Slot, TimerWheel

EMPTY_SLOTS_MAX = 10_000
"""Slots without messages that one step passes."""


PACK_UNITS = 256
"""Units that are read, and messages that are delivered, at once."""
DELIVER_BYTES_MAX = 1 << 20
"""Of the records that are delivered at once, but for the first."""
AHEAD_MS = 200
"""For so long before its step a slot is read."""
EXACT_UNITS_MAX = 100_000
"""Units of a slot up to which each message comes at its own moment. All of a larger one wait for
the end of the step."""
EXACT_SLOTS_MAX = 8
"""Slots that are read before their ends. A clock that is set back leaves one amid that."""
LOOKUPS_MAX = 32
"""Records that are looked up in the index at once."""
DELAY_ENDS_MS = tuple(60_000 * minutes for minutes in (1, 10, 60, 720, 1_440, 4_320))
"""Upper ends of the buckets of ``rocketmq_delay_message_latency``."""
ENTRIES_MAX = 256
"""Entries of the queue that one step takes."""
DELETE_CHARACTERS_MAX = 8 << 20
"""Of what commands to delete name that are noted for messages that are late. Of more the index is
asked."""


@dataclass
class TimerCounts:
    """What became of messages, since the start."""

    enqueued: int = 0
    delays: dict[str, Latencies] = field(default_factory=dict)
    """How long it was until their moment when they were taken, by topic."""
    delivered: int = 0
    rolled: int = 0
    deleted: int = 0
    late_deletes: int = 0
    """Commands to delete that came when the slot was read."""
    gone: int = 0
    """Records that are not in the log any more: retention was faster, or they are damaged."""
    unusable: int = 0
    """Records of the timer's topic that name no moment or no topic: another has put them there."""
    refused: int = 0
    """Messages that the store will never take, of a topic that is deleted for instance."""
    broken_chains: int = 0
    """Slots whose chain of units ends before its first one."""
    known: int = 0
    """Messages that a run before had delivered or rolled, after its last check point."""

    def note_delay(self, topic: str, delay_ms: int) -> None:
        """A message was taken that is for so much later."""
        found = self.delays.get(topic)
        if found is None:
            found = self.delays[topic] = Latencies(DELAY_ENDS_MS)
        found.note(max(delay_ms, 0) * 1_000)

    @property
    def lost(self) -> int:
        """Messages that will not come."""
        return self.gone + self.unusable + self.refused


class _Pack:
    """Units that are written at once, and then taken into the wheel.

    Attributes:
        blank: ends the file before them, if that is full.
        begin, end: positions of the first one, and behind the last one.
        units: moment, position, weight and topic of each.
        last: the position of the last one of each slot.
        queue_offset: of the last one's entry.
    """

    def __init__(self, log_end: int) -> None:
        """It is empty, and goes to the end of the log."""
        self.blank = b""
        self.begin = self.end = log_end
        self.data = bytearray()
        self.units: list[tuple[int, int, int, str]] = []
        self.last: dict[int, int] = {}
        self.queue_offset = -1


class _DeletesBehind:
    """What commands to delete name that stand in the queue behind what is taken.

    Attributes:
        end: the next entry to be read.
        keys: what they name.
        is_full: some are left out, since all take too much memory.
    """

    def __init__(self, end: int) -> None:
        """Nothing is read."""
        self.end = end
        self.keys: set[str] = set()
        self.is_full = False
        self._characters = 0

    def take(self, entries: Sequence[Entry]) -> None:
        """Note entries that were read."""
        self.end = entries[-1].queue_offset + 1
        for entry in entries:
            key = (entry.properties or {}).get(PropertyKey.TIMER_DELETES)
            if key is None or key in self.keys:
                continue
            self._characters += len(key)
            self.is_full |= self._characters > DELETE_CHARACTERS_MAX
            if not self.is_full:
                self.keys.add(key)


_topic_hash = functools.lru_cache(maxsize=1_024)(java_hash)


class _Passed(NamedTuple):
    """The clock was set back: slots before ``until_ms`` are delivered up to a position."""

    until_ms: int
    log_end: int


class Timer:
    """The timer of one broker. Times are in milliseconds since the epoch; before any step,
    :meth:`move` tells the time.

    Attributes:
        read_ms: the slot that is to be read next; all before it are delivered.
        write_ms: the step of now. What is before it is due.
        log_end: where the next unit goes.
        queue_offset: the entry that is to be enqueued next.
        master_queue_offset: a slave's bound for it.
        is_active: it delivers. A slave does not.
        latest_ms: no unit has a later moment.
        counts: what became of messages.
        waiting: how many messages of a topic wait, less the commands to delete one.
    """

    def __init__(
        self,
        wheel: TimerWheel,
        settings: TimerSettings,
        checkpoint: TimerCheckpoint,
        *,
        read_ms: int,
        log_end: int,
        queue_offset: int,
        done_ms: int,
        passed: Sequence[tuple[int, int]] = (),
        is_active: bool = True,
    ) -> None:
        """:func:`kerolox.store.timer.recovery.recover` makes one.

        ``checkpoint``: of the last run. ``done_ms``: what was due before it, and came before the
        check point, is done. ``passed``: slots before a moment are delivered up to a position of
        the timer log; the last pair has the first moment.
        """
        self.read_ms = self.write_ms = read_ms
        self.log_end = log_end
        self.queue_offset = queue_offset
        self.master_queue_offset = checkpoint.master_queue_offset
        self.is_active = is_active
        self.latest_ms = wheel.latest_ms()
        self.counts = TimerCounts()
        self.waiting: Counter[str] = Counter()
        self._wheel = wheel
        self._settings = settings
        self._now_ms = read_ms
        self._version = checkpoint
        self._done = (checkpoint.queue_offset, done_ms)
        self._is_reading = False
        self._opened: dict[int, OpenSlot] = {}
        self._doubt_ms = self._doubt_end = self._doubted_ms = 0
        self._passed = [_Passed(*each) for each in passed]
        # What another run has put into the wheel may be to be rolled.
        self._rolls_ms = min(self.latest_ms, read_ms + settings.window * settings.precision_ms)
        self._deletes_behind = _DeletesBehind(0)
        self._prepared: tuple[TimerCheckpoint, int] | None = None

    # -- time -----------------------------------------------------------------------------------
    def move(self, now_ms: int) -> None:
        """Tell the time, which may have jumped either way.

        ``write_ms`` is never further before ``read_ms`` than half a wheel, so that no slot has to
        hold messages of two turns: after a long stop, what was due then comes first. RocketMQ
        leaves out what is older than 7 days.

        After a jump back the timer goes back, too, when the slot that it reads is done. The slots
        that are read twice then are delivered from the end of the timer log at that time on.
        """
        settings = self._settings
        self._now_ms = now_ms
        furthest = self.read_ms + settings.slots * settings.precision_ms
        write_ms = min(settings.step(now_ms), furthest)
        if write_ms < self.write_ms and self._is_reading:
            return
        self.write_ms = write_ms
        if write_ms < self.read_ms and self.is_active:
            self._opened = {at: each for at, each in self._opened.items() if each.is_begun}
            later = [each for each in self._passed if each.until_ms > self.read_ms]
            self._passed = [*later, _Passed(self.read_ms, self.log_end)]
            self.read_ms = write_ms

    @property
    def lag_ms(self) -> int:
        """How far delivery is behind the time; 0: it is not."""
        return max(0, self._settings.step(self._now_ms) - self.read_ms)

    # -- roles ----------------------------------------------------------------------------------
    def follow(self, checkpoint: TimerCheckpoint) -> Step[None]:
        """Take over what a slave's master is at; a master's own timer ignores it. The slave
        enqueues up to there alone, so that it knows of no message that its master could lose."""
        if not self.is_active and checkpoint.last_read_ms > 0:
            read_ms = self._settings.step(checkpoint.last_read_ms)
            yield from self._keep_rolls(read_ms)
            self.read_ms = read_ms
            self.master_queue_offset = checkpoint.master_queue_offset
            self._done = (checkpoint.master_queue_offset, checkpoint.last_read_ms)

    def _keep_rolls(self, until_ms: int) -> Step[None]:
        """Before a slave passes slots up to a moment, take what is to be rolled in them into later
        ones. Its master may have taken such a message later, and so has it in a later slot, or
        where it is due."""
        step = self._settings.precision_ms
        while self.read_ms < min(until_ms, self._rolls_ms + step):
            slot = self._wheel.slot(self.read_ms)
            position = NO_POSITION if slot is None else slot.last
            opened = OpenSlot(self.read_ms, self.end_ms, 0)
            while position != NO_POSITION:
                chain = yield from read_chain(position, 0, PACK_UNITS)
                sound = self._sound(opened, chain)
                for _, unit in sound:
                    if unit.magic & ROLL:
                        yield from self._keep_roll(unit, until_ms)
                is_whole = len(sound) == len(chain) > 0
                position = sound[-1][1].previous if is_whole else NO_POSITION
                yield Pause()
            self._read(self.read_ms + step)

    def _keep_roll(self, unit: TimerUnit, until_ms: int) -> Step[None]:
        properties = yield from read_message(unit.offset, unit.size)
        moment = None if properties is None else out_ms(properties)
        real = None if properties is None else real_place(properties)
        if moment is not None and real is not None and moment >= until_ms:
            self.count(real.topic, -unit.weight)
            entry = Entry(self.queue_offset - 1, unit.offset, unit.size, properties)
            yield from self._append(entry, moment, real.topic)

    def activate(self, is_active: bool, commit_end: int = 0) -> None:
        """Become the timer of a master, which delivers, or of a slave. Steps under way are to be
        closed before. ``commit_end``: where the commit log ends."""
        self.is_active = is_active
        self._opened.clear()
        if is_active:
            self.doubt(commit_end=commit_end, now_ms=self._now_ms)

    def doubt(self, *, until_ms: int = 0, commit_end: int = 0, now_ms: int = 0) -> None:
        """Another run, or another broker, may have delivered messages after its last check point:
        those that are due before a moment, and those whose records lie before an end of the commit
        log. The index says of each whether it did. ``now_ms``: none was delivered later."""
        self._doubt_ms = max(self._doubt_ms, until_ms)
        self._doubt_end = max(self._doubt_end, commit_end)
        self._doubted_ms = max(self._doubted_ms, now_ms)

    @property
    def has_doubts(self) -> bool:
        """What another run may have delivered is not all read: the next run has to doubt it, too,
        even if this one stops well."""
        return self.read_ms < self._doubted_ms

    def _is_doubtful(self, due_ms: int, offset: int) -> bool:
        return due_ms < self._doubt_ms or offset < self._doubt_end

    @property
    def is_empty(self) -> bool:
        """All slots that have units are read."""
        return self.read_ms > self.latest_ms

    @property
    def due(self) -> int:
        """Messages that should be delivered by now, of the slots that one step passes."""
        step = self._settings.precision_ms
        end_ms = min(self.write_ms, self.read_ms + EMPTY_SLOTS_MAX * step)
        return sum(map(self.slot_messages, range(self.read_ms, end_ms, step)))

    def ahead(self, bounds_ms: Sequence[int]) -> list[int]:
        """How many messages are due within each of these times from now on, and not within the one
        before."""
        return self._wheel.ahead(self._settings.step(self._now_ms), bounds_ms)

    def slot_messages(self, time_ms: int) -> int:
        """How many messages wait in the slot of a moment."""
        slot = self._wheel.slot(time_ms)
        return 0 if slot is None else slot.number

    # -- check points ---------------------------------------------------------------------------
    def prepare(self, commit_end: int, *, state_version: int = 0) -> TimerCheckpoint:
        """Begin a check point. Then flush the timer log up to its ``log_end``, then the wheel, then
        take :meth:`ready`. One that is under way stays the one. ``commit_end``: where the commit
        log ends. ``state_version``: of the store.
        """
        if self._prepared is None:
            now, version, passed = self.checkpoint[:4], self._version, tuple(self._passed)
            if self.is_active and now != version[:4]:
                counter = version.version_counter + 1
                self._version = TimerCheckpoint(*now, state_version, self._now_ms, counter, passed)
            else:
                self._version = TimerCheckpoint(*now, *version[4:7], passed)
            self._prepared = (self._version, commit_end)
        return self._prepared[0]

    def ready(self, commit_flushed: int) -> TimerCheckpoint | None:
        """The check point that was begun, when it may be written: all that was delivered before it
        is on the disk, so that a power failure cannot take it back. None: not yet.
        ``commit_flushed``: how far the commit log is on the disk.
        """
        if self._prepared is None or commit_flushed < self._prepared[1]:
            return None
        found, self._prepared = self._prepared[0], None
        return found

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """What it is at, whatever is on the disk: for slaves."""
        master = self.queue_offset if self.is_active else self.master_queue_offset
        now = (self.read_ms, self.log_end, min(self.queue_offset, master), master)
        return TimerCheckpoint(*now, *self._version[4:7])

    def metrics(self, now_ms: int) -> TimerMetrics:
        """How many messages wait, by topic."""
        version = self._version
        return TimerMetrics(
            data_version=TimerVersion(
                counter=version.version_counter,
                state_version=version.state_version,
                timestamp=version.version_ms,
            ),
            timing_count={
                topic: TopicWaiting(count=max(count, 0), time_stamp=now_ms)
                for topic, count in self.waiting.items()
            },
        )

    # -- from the queue into the wheel ----------------------------------------------------------
    def enqueue(self) -> Step[bool]:
        """Take entries of the queue, :data:`ENTRIES_MAX` at most. True: that is done; False: there
        is none to be taken now.

        Before a slot is read, the queue is to be taken to its end: a command to delete then meets
        its message.
        """
        bound = LONG_MAX if self.is_active else self.master_queue_offset
        if self.queue_offset >= bound:
            return False
        entries = yield from read_entries(self.queue_offset, ENTRIES_MAX)
        entries = [entry for entry in entries if entry.queue_offset < bound]
        pack = _Pack(self.log_end)
        for entry in entries:
            if self._is_packed(pack, entry):
                continue
            yield from self._write(pack)
            if not (yield from self._take(entry)):
                return False
            self.queue_offset = entry.queue_offset + 1
            pack = _Pack(self.log_end)
        yield from self._write(pack)
        return bool(entries)

    def _is_packed(self, pack: _Pack, entry: Entry) -> bool:
        """Add the unit of an entry to those that are written next; False: the entry wants more than
        a unit behind the others."""
        properties = entry.properties
        if properties is None or entry.queue_offset < self._done[0]:
            return False
        moment, real = out_ms(properties), real_place(properties)
        if moment is None or real is None or moment < self._first_ms:
            return False
        return self._pack(pack, entry, moment, real.topic)

    def _take(self, entry: Entry) -> Step[bool]:
        """Take one entry; False: not now."""
        properties = entry.properties
        if properties is None:
            self.counts.gone += 1
            return True
        moment, real = out_ms(properties), real_place(properties)
        if moment is None or real is None:
            self.counts.unusable += 1
        elif self._was_delivered(entry, moment):
            pass
        elif (yield from self._was_rolled(entry, properties)):
            self.counts.known += 1
        elif moment >= self._first_ms:
            # Also where it is due: its slot is to be read, and a delete may be in it or come.
            yield from self._append(entry, moment, real.topic)
        elif not self.is_active:
            pass  # The master has delivered it.
        elif moment >= self._settings.step(self._now_ms):
            return False  # The clock was set back, and the slot that is read is not done.
        elif PropertyKey.TIMER_DELETES in properties:
            self.counts.late_deletes += 1
        else:
            yield from self._deliver_late(entry, moment)
        return True

    def _deliver_late(self, entry: Entry, moment: int) -> Step[None]:
        properties = yield from read_message(entry.offset, entry.size)
        real = None if properties is None else real_place(properties)
        if properties is None or real is None:
            self.counts.gone += 1
            return
        if (yield from self._is_deleted_behind(entry.queue_offset, properties)):
            self.counts.deleted += 1
            return
        changed = delivered(properties, NEVER_ENQUEUED, self._now_ms)
        record = ReadMessage(entry.offset, entry.size)
        yield from self._put(Put(record, real.topic, real.queue_id, changed), moment)

    @property
    def _first_ms(self) -> int:
        """The first slot that units can be added to."""
        return self.read_ms + self._settings.precision_ms * self._is_reading

    def _was_delivered(self, entry: Entry, moment: int) -> bool:
        """Whether the check point of the start says so: the queue is read from an earlier place
        on, that of the last unit."""
        queue_offset, done_ms = self._done
        return entry.queue_offset < queue_offset and moment < done_ms

    def _was_rolled(self, entry: Entry, properties: Mapping[str, str]) -> Step[bool]:
        """Whether an entry that is read again, since its unit is lost, was stored again before."""
        unique_key = properties.get(PropertyKey.UNIQUE_KEY)
        if entry.queue_offset >= self._done[0] or not unique_key:
            return False
        return entry.offset in (yield from read_copies(TIMER_TOPIC, unique_key))

    def _append(self, entry: Entry, moment: int, real_topic: str) -> Step[None]:
        pack = _Pack(self.log_end)
        self._pack(pack, entry, moment, real_topic)
        yield from self._write(pack)

    def _pack(self, pack: _Pack, entry: Entry, moment: int, real_topic: str) -> bool:
        """Add the unit of an entry; False: it has to be alone, the first one of a file for
        instance."""
        # A slave's clock may be behind what its master has read, and that is over.
        settings, write_ms = self._settings, max(self.write_ms, self.read_ms)
        is_delete = entry.properties is not None and PropertyKey.TIMER_DELETES in entry.properties
        magic = DEFAULT | (DELETE if is_delete else 0)
        delay_ms = moment - self._now_ms
        beyond = moment - write_ms - settings.window * settings.precision_ms
        if beyond >= 0:
            magic |= ROLL
            # The later it is taken, the later this is, and never earlier: what a slave takes behind
            # its master is not over before that has rolled it.
            half_ms = settings.window // 2 * settings.precision_ms
            moment -= max(1, -(-beyond // half_ms)) * half_ms
        position, blank = place(pack.end, settings.log_file_bytes)
        is_free = self._wheel.is_free(moment, self.read_ms)
        if pack.units and (blank or not is_free):
            return False
        while not is_free:
            moment += settings.precision_ms
            is_free = self._wheel.is_free(moment, self.read_ms)
        if magic & ROLL:
            self._rolls_ms = max(self._rolls_ms, moment)
        if not is_delete:
            self.counts.note_delay(real_topic, delay_ms)
        if blank:
            pack.blank, pack.begin = blank, position
        slot = settings.step(moment)
        previous = pack.last.get(slot)
        unit = TimerUnit(
            self._wheel.previous(moment) if previous is None else previous,
            magic,
            write_ms,
            moment - write_ms,
            entry.offset,
            entry.size,
            _topic_hash(real_topic),
        )
        data = unit.pack()
        pack.data += data
        pack.units.append((moment, position, unit.weight, real_topic))
        pack.last[slot] = position
        pack.end = position + len(data)
        pack.queue_offset = entry.queue_offset
        return True

    def _write(self, pack: _Pack) -> Step[None]:
        if not pack.units:
            return
        if pack.blank:
            yield Append(self.log_end, pack.blank)
            self.log_end = pack.begin
        yield Append(pack.begin, bytes(pack.data))
        self.log_end = pack.end
        self.queue_offset = pack.queue_offset + 1
        self.counts.enqueued += len(pack.units)
        for moment, position, weight, topic in pack.units:
            self._wheel.add(moment, position, weight)
            self.latest_ms = max(self.latest_ms, moment)
            self.count(topic, weight)

    def count(self, topic: str, number: int) -> None:
        """Note that so many more messages of a topic wait."""
        left = self.waiting[topic] + number
        if left:
            self.waiting[topic] = left
        else:
            del self.waiting[topic]

    # -- from the wheel to the real topics ------------------------------------------------------
    def dequeue(self, *, is_exact: bool = True) -> Step[bool]:
        """Deliver the next slot that is due, or pass slots that are empty; else, with ``is_exact``,
        some of what is due of the slot of now. True: there may be more to do, after :meth:`enqueue`
        and :meth:`move`; False: nothing is due.
        """
        if not self.is_active:
            return False
        slot = self._next_slot()
        if slot is None:
            return self.lag_ms > 0 or (is_exact and (yield from self._deliver_exactly()))
        self._is_reading = True
        try:
            opened = self._opened.get(slot.time_ms) or self._open(slot)
            while (yield from self._read_some(opened)):
                pass
            while (yield from self._release_some(opened, LONG_MAX)):
                pass
            self._read(opened.end_ms)
        finally:
            self._is_reading = False
        return True

    @property
    def end_ms(self) -> int:
        """The end of the step that is read next."""
        return self.read_ms + self._settings.precision_ms

    def next_ms(self, *, is_exact: bool = True) -> int:
        """When there is something to be delivered or read, if no message comes before."""
        end_ms, opened = self.end_ms, self._opened.get(self.read_ms)
        times = [end_ms]
        if is_exact and opened is not None and opened.number <= EXACT_UNITS_MAX:
            times.append(end_ms if opened.next_ms is None else opened.next_ms)
        if is_exact and self._now_ms < end_ms - AHEAD_MS and self._wheel.slot(end_ms) is not None:
            times.append(end_ms - AHEAD_MS)
        return min(times)

    def end_step(self) -> bool:
        """Pass the slot of now, if all its messages are delivered before its end: for a stop, so
        that the next run does not read it again. False: some are, and others wait for their
        moments."""
        opened = self._opened.get(self.read_ms)
        if opened is None or not opened.is_begun:
            return True
        if not opened.is_done(self._wheel.slot(self.read_ms)):
            return False
        self._read(opened.end_ms)
        return True

    def _next_slot(self) -> Slot | None:
        for _ in range(EMPTY_SLOTS_MAX):
            if self.read_ms >= self.write_ms:
                break
            slot = self._wheel.slot(self.read_ms)
            if slot is not None:
                return slot
            self._read(self.read_ms + self._settings.precision_ms)
        return None

    def _read(self, read_ms: int) -> None:
        self.read_ms = read_ms
        while self._passed and self._passed[-1].until_ms <= read_ms:
            self._passed.pop()
        for time_ms in [each for each in self._opened if each < read_ms]:
            del self._opened[time_ms]

    def _open(self, slot: Slot) -> OpenSlot:
        """Begin to read a slot."""
        passed = (each.log_end for each in reversed(self._passed) if each.until_ms > slot.time_ms)
        opened = self._opened[slot.time_ms] = OpenSlot(
            slot.time_ms, slot.time_ms + self._settings.precision_ms, next(passed, 0)
        )
        return opened

    def _deliver_exactly(self) -> Step[bool]:
        """Read the slot of now, or deliver some messages of it whose moments are there, or read
        some of the next slot. True: it did something."""
        if self.read_ms != self.write_ms:
            return False
        opened = self._exact(self.read_ms)
        if opened is not None:
            # All of it, since a command to delete comes behind its message.
            if (yield from self._read_some(opened)):
                return True
            if opened.next_ms is not None and opened.next_ms <= self._now_ms:
                yield from self._release_some(opened, self.queue_offset)
                return True
        is_ahead = self._now_ms >= self.end_ms - AHEAD_MS
        opened = self._exact(self.end_ms) if is_ahead else None
        return opened is not None and (yield from self._read_some(opened))

    def _exact(self, time_ms: int) -> OpenSlot | None:
        """The slot, to be read before its end; None: it has no messages, or so many that they wait
        for that."""
        slot, opened = self._wheel.slot(time_ms), self._opened.get(time_ms)
        if slot is None:
            return None
        if opened is None:
            if slot.number > EXACT_UNITS_MAX or len(self._opened) >= EXACT_SLOTS_MAX:
                return None
            opened = self._open(slot)
        return opened if opened.number <= EXACT_UNITS_MAX else None

    def _read_some(self, opened: OpenSlot) -> Step[bool]:
        """Take some units of a slot. False: all are taken."""
        if not opened.follow(self._wheel.slot(opened.time_ms)):
            return False
        chain = yield from read_chain(opened.position, opened.begin, PACK_UNITS)
        sound = self._sound(opened, chain)
        moments: Sequence[int | None] = [None] * len(sound)
        if not self._is_reading:
            moments = yield from read_moments([unit.offset for _, unit in sound])
        deletes: dict[int, Mapping[str, str] | None] = {}
        for at, unit in sound:
            if unit.magic & (DELETE | ROLL) == DELETE:
                deletes[at] = yield from read_message(unit.offset, unit.size)
        for (at, unit), moment in zip(sound, moments, strict=True):
            if at in deletes:
                self._take_delete(opened, unit, deletes[at])
            else:
                opened.add(at, None if unit.magic & ROLL else moment)
        opened.number += len(sound)
        opened.position = sound[-1][1].previous if sound else NO_POSITION
        if len(sound) < len(chain):
            self.counts.broken_chains += 1
            opened.position = NO_POSITION
        return True

    def _sound(
        self, opened: OpenSlot, chain: Sequence[tuple[int, TimerUnit | None]]
    ) -> list[tuple[int, TimerUnit]]:
        """The units of a chain up to one that is not of the slot, or is none."""
        sound: list[tuple[int, TimerUnit]] = []
        for at, unit in chain:
            if unit is None or not opened.time_ms <= unit.time_ms < opened.end_ms:
                break
            sound.append((at, unit))
        return sound

    def _take_delete(
        self, opened: OpenSlot, unit: TimerUnit, properties: Mapping[str, str] | None
    ) -> None:
        if properties is None:
            self.counts.gone += 1
            return
        self.count(properties.get(PropertyKey.REAL_TOPIC, ""), -unit.weight)
        if PropertyKey.TIMER_DELETES in properties:
            opened.delete(properties[PropertyKey.TIMER_DELETES])

    def _release_some(self, opened: OpenSlot, queue_end: int) -> Step[bool]:
        """Deliver the first units of a slot in their order: as many as can be at once, and the
        others one by one. False: none is left. ``queue_end``: while the queue is longer, nothing is
        delivered at once."""
        positions = opened.first(PACK_UNITS)
        if not positions:
            return False
        units = yield from read_units(positions)
        done = 0
        copied = yield from self._copied(opened, units)
        while done < len(units):
            plain = self._plain(units[done:], copied)
            if plain:
                found: Delivered = yield Deliver(
                    [unit.offset for unit in plain],
                    [unit.write_ms for unit in plain],
                    self._now_ms,
                    self._due_end_ms(opened),
                    opened.odd_keys,
                    queue_end,
                )
                self.counts.delivered += found.count
                for topic, number in found.topics.items():
                    self.count(topic, -number)
                opened.drop(found.count)
                done += found.count
                if found.has_news:
                    break
                if found.count == len(plain):
                    continue
            yield from self._release(opened, units[done])
            opened.drop(1)
            done += 1
        return True

    def _due_end_ms(self, opened: OpenSlot) -> int:
        """What is before it is due, when a message of a slot is delivered."""
        return max(self.write_ms, opened.end_ms)

    def _copied(self, opened: OpenSlot, units: Sequence[TimerUnit | None]) -> Step[Collection[int]]:
        """The records of units that another run has delivered."""
        doubtful = [
            each.offset
            for each in units
            if each is not None and self._is_doubtful(opened.time_ms, each.offset)
        ]
        copied: set[int] = set()
        for at in range(0, len(doubtful), LOOKUPS_MAX):
            copied.update((yield from read_copied(doubtful[at : at + LOOKUPS_MAX])))
        return copied

    def _plain(self, units: Sequence[TimerUnit | None], copied: Collection[int]) -> list[TimerUnit]:
        """The first ones, as far as they say nothing unusual; their records may. ``copied``: whose
        records are delivered."""
        plain: list[TimerUnit] = []
        size = 0
        for unit in units:
            if unit is None or unit.magic & (DELETE | ROLL) or unit.offset in copied:
                break
            size += unit.size
            if plain and size > DELIVER_BYTES_MAX:
                break
            plain.append(unit)
        return plain

    def _message_of(self, unit: TimerUnit | None) -> Step[Mapping[str, str] | None]:
        """The properties of the message of a unit, which waits no more; None: its record is
        gone."""
        properties = None
        if unit is not None:
            properties = yield from read_message(unit.offset, unit.size)
        if unit is None or properties is None:
            self.counts.gone += 1
            return None
        self.count(properties.get(PropertyKey.REAL_TOPIC, ""), -unit.weight)
        return properties

    def _release(self, opened: OpenSlot, unit: TimerUnit | None) -> Step[None]:
        properties = yield from self._message_of(unit)
        if unit is None or properties is None:
            return
        if key_of(properties) in opened.keys:
            self.counts.deleted += 1
            return
        moment, real = out_ms(properties), real_place(properties)
        record = ReadMessage(unit.offset, unit.size)
        if moment is None or real is None:
            self.counts.unusable += 1
        elif unit.magic & ROLL or moment >= self._due_end_ms(opened):
            again = rolled(properties, unit.write_ms, self._now_ms)
            yield from self._put(Put(record, TIMER_TOPIC, 0, again), opened.time_ms)
        elif PropertyKey.TIMER_DELETES in properties:
            pass  # It was rolled, and its slot is its message's.
        elif (yield from self._is_deleted_elsewhere(properties)):
            self.counts.deleted += 1
        else:
            changed = delivered(properties, unit.write_ms, self._now_ms)
            yield from self._put(Put(record, real.topic, real.queue_id, changed), opened.time_ms)

    def _is_deleted_elsewhere(self, properties: Mapping[str, str]) -> Step[bool]:
        """Whether a command to delete names a message that was rolled: the command may be in
        another slot, since each rolls from the time of its own write on. RocketMQ misses it."""
        if PropertyKey.TIMER_ROLL_TIMES not in properties:
            return False
        return (yield from self._is_deleted_anywhere(properties))

    def _is_deleted_anywhere(self, properties: Mapping[str, str]) -> Step[bool]:
        """Whether a command to delete names a message, as far as the index knows."""
        key, unique_key = key_of(properties), properties.get(PropertyKey.UNIQUE_KEY)
        if key is None or not unique_key:
            return False
        return key in (yield from read_deletes(unique_key))

    def _is_deleted_behind(self, queue_offset: int, properties: Mapping[str, str]) -> Step[bool]:
        """Whether a command to delete names a message that is late: the command stands behind it
        in the queue. RocketMQ misses it."""
        deletes = self._deletes_behind
        if deletes.end <= queue_offset:
            deletes = self._deletes_behind = _DeletesBehind(queue_offset + 1)
        while entries := (yield from read_entries(deletes.end, ENTRIES_MAX)):
            deletes.take(entries)
        if key_of(properties) in deletes.keys:
            return True
        if deletes.is_full:
            return (yield from self._is_deleted_anywhere(properties))
        return (yield from self._is_deleted_elsewhere(properties))

    def _was_put(self, put: Put, due_ms: int) -> Step[bool]:
        """Whether a run before stored this copy, of a message that was due then."""
        unique_key = put.properties.get(PropertyKey.UNIQUE_KEY)
        offset = put.message.offset
        if not self._is_doubtful(due_ms, offset) or not unique_key:
            return False
        # What is to be rolled may have been delivered, when the clock was ahead, and what is due
        # may have been rolled by another broker, which took it earlier.
        real_topic = put.properties.get(PropertyKey.REAL_TOPIC, put.topic)
        for topic in {TIMER_TOPIC, put.topic, real_topic}:
            if offset in (yield from read_copies(topic, unique_key)):
                return True
        return False

    def _put(self, put: Put, due_ms: int) -> Step[None]:
        """Put until it is done: RocketMQ tries three times, and then loses the message."""
        if (yield from self._was_put(put, due_ms)):
            self.counts.known += 1
            return
        while True:
            result: PutResult = yield put
            if result is PutResult.NEVER:
                self.counts.refused += 1
                return
            if result is PutResult.DONE:
                self.counts.rolled += put.topic == TIMER_TOPIC
                self.counts.delivered += put.topic != TIMER_TOPIC
                return
            yield Hold()
            if put.topic != TIMER_TOPIC and (yield from self._is_deleted_meanwhile(put)):
                self.counts.deleted += 1
                return

    def _is_deleted_meanwhile(self, put: Put) -> Step[bool]:
        """Whether a command to delete came while a message could not be put: it stands behind what
        is taken of the queue."""
        return (yield from self._is_deleted_behind(self.queue_offset - 1, put.properties))
