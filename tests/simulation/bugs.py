"""Deliberate bugs. A simulation that does not find them would not find ours.

Each replaces a part of the running code while a seed runs (``tools/simulate.py --bug NAME``). What
they were found by, and after how many seeds, stands in ``docs/design/simulation.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kerolox._pykernel.holds import HeldPulls
from kerolox._pykernel.store import Store
from kerolox.broker.replication import waits
from kerolox.broker.replication.master import SlaveLink
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.tables import SlaveTables
from kerolox.broker.services.op_queue import OpQueue
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.transactions import Transactions
from kerolox.broker.services.writer import FlushWaits
from kerolox.broker.tables.former_queues import FormerQueues
from kerolox.broker.tables.locks import QueueLocks
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.subscriptions import GroupSubscriptions
from kerolox.broker.tables.topics import TopicTable
from kerolox.client.aio.consumers.push.consuming import Consuming
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.core.consuming import rebalance
from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.store.appends import Appender
from kerolox.store.files.checkpoint import AbortFile, Checkpoint
from kerolox.store.flush import CommitLogFlusher
from kerolox.store.log.quarantine import LogQuarantine
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.recovery.queue_repair import QueueRepair
from tests.simulation.patches import Patches

Install = Callable[[Patches], None]


class Bug(NamedTuple):
    """What is wrong, and how it is put in."""

    text: str
    install: Install


NOT_STORED = -1
"""Of a bug whose seed the tests do not run: it needs too many, or one that costs too much."""


class SeededBug(NamedTuple):
    """A bug, and a seed that finds it: of the scenario that the bugs of its module are for."""

    seed: int
    install: Install


def seeded(bugs: dict[str, SeededBug], seed: int) -> Callable[[Install], Install]:
    """Put a bug into a table, by the name of the function that installs it."""

    def add(install: Install) -> Install:
        bugs[_name(install)] = SeededBug(seed, install)
        return install

    return add


def _name(install: Install) -> str:
    return install.__name__.replace("_", "-")


BUGS: dict[str, Bug] = {}


def _bug(text: str) -> Callable[[Install], Install]:
    def add(install: Install) -> Install:
        BUGS[_name(install)] = Bug(text, install)
        return install

    return add


def plant(name: str) -> Install:
    """What :func:`tests.simulation.run.run_seed` is given to have a bug.

    Raises:
        KeyError: there is none of that name.
    """
    return BUGS[name].install


# -- the store --------------------------------------------------------------------
@_bug("SYNC_FLUSH is answered before the flush")
def answer_before_flush(patches: Patches) -> None:
    real, real_wait = Store.__init__, FlushWaits.wait

    def init(self: Any, settings: Any) -> None:
        real(self, settings)
        self.pending._disk_timeout_ms = None

    async def wait(self: Any, physical_offset: int) -> bool:
        if isinstance(self._store, waits.SlaveWaits):
            return await real_wait(self, physical_offset)
        return True

    patches.set(Store, "__init__", init)
    patches.set(FlushWaits, "wait", wait)


@_bug("the flush counts what was written while it ran")
def flush_counts_too_much(patches: Patches) -> None:
    real = CommitLogFlusher.flush

    def flush(self: Any) -> int:
        offset = real(self)
        end = self._written()[0]
        if offset and not self.failure and end > offset:
            self.flushed_offset = end
            self._on_flush()
        return int(self.flushed_offset)

    patches.set(CommitLogFlusher, "flush", flush)


@_bug("a failed or slow disk is forgotten: nothing is brought to it")
def flush_without_sync(patches: Patches) -> None:
    patches.set(CommitLogFlusher, "_sync_file", lambda self, index: None)


@_bug("recovery leaves queue entries behind the end of the log")
def queues_not_cut(patches: Patches) -> None:
    patches.set(QueueRepair, "truncate", lambda self, end: False)
    patches.set(QueueRepair, "find_disowned", lambda self, begin: None)


@_bug("recovery leaves what stands behind the end of the log")
def log_not_cleared(patches: Patches) -> None:
    real = LogQuarantine.end_at

    def end_at(self: Any, end: int) -> None:
        log, files = self._log, dict(self._log.files)
        if end < log.max_offset and len(files) == 1:
            log.max_offset = log.end_offset = end
            log.open_tail()
            return
        real(self, end)

    patches.set(LogQuarantine, "end_at", end_at)


@_bug("recovery writes no entries that are missing")
def entries_not_written(patches: Patches) -> None:
    patches.set(QueueRepair, "dispatch", lambda self, begin, **_: None)


@_bug("the record is written before its queue entry, and recovery relies on the order")
def record_before_entry(patches: Patches) -> None:
    real_put, real_write = ConsumeQueue.put_entries, ConsumeQueue.count_entries

    def count(self: Any, entries: Any) -> None:
        real_put(self, entries)
        real_write(self, entries)

    patches.set(ConsumeQueue, "put_entries", lambda self, entries: None)
    patches.set(ConsumeQueue, "count_entries", count)
    entries_not_written(patches)


@_bug("a record whose queue entry could not be taken back keeps it")
def entries_not_taken_back(patches: Patches) -> None:
    def take_back(self: Any, queues: Any) -> None:
        for queue in queues:
            queue.max_offset = queue.next_offset
            queue.pending.clear()

    patches.set(Appender, "take_back", take_back)


@_bug("the checkpoint is ahead of the disk, and a crash of the machine is taken for a kill")
def checkpoint_too_new(patches: Patches) -> None:
    real = Checkpoint.flush

    def flush(self: Any) -> None:
        self.physic_timestamp += 3_600_000
        self.logics_timestamp += 3_600_000
        real(self)

    patches.set(Checkpoint, "flush", flush)
    patches.set(Checkpoint, "safe_timestamp", lambda self, now_ms: self.min_timestamp)
    patches.set(AbortFile, "is_same_boot", lambda self: True)


@_bug("a file's name is never synced")
def names_not_synced(patches: Patches) -> None:
    from kerolox.store import flush
    from kerolox.store.log import preallocate

    for module in (flush, preallocate):
        patches.set(module, "sync_path", lambda path: None)


# -- master and slaves --------------------------------------------------------------
@_bug("SYNC_MASTER answers before a slave has it")
def answer_before_slave(patches: Patches) -> None:
    async def wait(self: Any, end_offset: int) -> bool:
        return True

    patches.set(waits.SlaveWaits, "wait", wait)
    patches.set(Store, "set_slave_timeout", lambda self, timeout_ms: None)


@_bug("a slave acknowledges what it has not appended")
def slave_acknowledges_too_much(patches: Patches) -> None:
    def received(self: Any, data: bytes, now_ms: int) -> bytes:
        self._received_ms = now_ms
        before = self._position
        for piece in self._frames.feed(data):
            if self._position < 0:
                self._position = self._end = piece.offset
            self._position += len(piece.data)
        if self._position == before:
            return b""
        return bytes(self._report(self._position, now_ms))

    patches.set(MasterLink, "received", received)


@_bug("a slave does not look where the master goes on")
def slave_ignores_place(patches: Patches) -> None:
    real = MasterLink._take

    def take(self: Any, piece: Any) -> None:
        if piece.data and self._position == self._end and len(piece.data) > 3_000:
            # One byte is changed on its way.
            data = bytearray(piece.data)
            data[-200] ^= 1
            piece = piece._replace(data=memoryview(data))
        real(self, piece)

    patches.set(MasterLink, "_take", take)


@_bug("the master takes any report for an acknowledgement of all that it sent")
def heartbeat_counts(patches: Patches) -> None:
    real = SlaveLink.received

    def received(self: Any, data: bytes, log: Any, now_ms: int) -> None:
        real(self, data, log, now_ms)
        self.acknowledged = max(self.acknowledged, log.end)

    patches.set(SlaveLink, "received", received)


@_bug("a slave's log is not compared with its master's when they meet again")
def logs_not_compared(patches: Patches) -> None:
    patches.set(MasterLink, "_compare", lambda self, data: None)


@_bug("a slave counts its master's positions of halves before it has what they stand for")
def half_positions_ahead(patches: Patches) -> None:
    real = SlaveTables._wait_for_log

    def wait_for_log(self: Any, positions: Any) -> None:
        self._offsets.put_all(positions.transactions)
        real(self, positions)

    patches.set(SlaveTables, "_wait_for_log", wait_for_log)


# -- what is delivered later ----------------------------------------------------------
@_bug("a delayed message is delivered before its time")
def delay_early(patches: Patches) -> None:
    patches.set(
        DelaySchedule, "_is_due", lambda self, level, due_ms: due_ms - 600 <= self._now_ms()
    )


@_bug("a refused delivery of a delayed message counts as done")
def delay_lost(patches: Patches) -> None:
    real = DelaySchedule._deliver

    def deliver(self: Any, schedule_queue: int, physical_offset: int) -> bool:
        real(self, schedule_queue, physical_offset)
        return True

    patches.set(DelaySchedule, "_deliver", deliver)


@_bug("the position of delayed messages is one too far after a start")
def delay_position(patches: Patches) -> None:
    real = DelaySchedule.load

    def load(self: Any) -> None:
        real(self)
        for level in self._offsets:
            self._offsets[level] += 1

    patches.set(DelaySchedule, "load", load)


# -- transactions -----------------------------------------------------------------------
@_bug("nobody remembers that a half was ended")
def half_ended_twice(patches: Patches) -> None:
    patches.set(Transactions, "_was_ended", lambda self, half: False)
    patches.set(Transactions, "_was_committed", lambda self, half: False)


@_bug("an op message is not stored")
def op_lost(patches: Patches) -> None:
    patches.set(
        Transactions,
        "note_place",
        lambda self, offset: self.ops.know(offset, self.ops._op_end),
    )
    patches.set(Transactions, "_was_committed", lambda self, half: False)


@_bug("the check passes a half that is open")
def half_passed(patches: Patches) -> None:
    real = OpQueue.load

    def load(self: Any) -> None:
        is_first = not self._is_loaded
        real(self)
        if is_first and self.half_position:
            self.half_position += 1

    patches.set(OpQueue, "load", load)


@_bug("a rollback is taken for a commit when the broker asks")
def rollback_commits(patches: Patches) -> None:
    real = Transactions.end_now

    def end_now(self: Any, half: Any, *, commit: bool) -> Any:
        asked = "TRANSACTION_CHECK_TIMES" in half.properties
        return real(self, half, commit=commit or asked)

    patches.set(Transactions, "end_now", end_now)


# -- groups -------------------------------------------------------------------------------
@_bug("a message is committed when it is given out, not when it is consumed")
def commit_before_consumed(patches: Patches) -> None:
    real = Consuming.submit

    def submit(self: Any, assignment: Any, pulled: Any) -> None:
        real(self, assignment, pulled)
        last = assignment.process_queue.last_offset
        if last is not None:
            self._offsets.table.update(assignment.queue, last + 1, increase_only=True)

    patches.set(Consuming, "submit", submit)


@_bug("the committed offset is one too far")
def offset_off_by_one(patches: Patches) -> None:
    real = ProcessQueue.remove

    def remove(self: Any, messages: Any) -> int:
        offset = real(self, messages)
        return offset + 1 if offset >= 0 and len(self) else offset

    patches.set(ProcessQueue, "remove", remove)


@_bug("the last queue belongs to nobody when a group has two members")
def rebalance_drops_queue(patches: Patches) -> None:
    real = rebalance.allocate_averagely

    def allocate(client_id: str, queues: Any, client_ids: Any) -> Any:
        share = real(client_id, queues, client_ids)
        return [queue for queue in share if len(client_ids) == 1 or queue != queues[-1]]

    patches.set_item(rebalance.STRATEGIES, "AVG", allocate)


@_bug("a message that is to be retried is dropped when the broker does not answer")
def retry_lost(patches: Patches) -> None:
    async def again(self: Any, message: Any, broker_name: str) -> bool:
        return True

    async def back(self: Any, message: Any, delay_level: int, broker_name: str) -> bool:
        return True

    patches.set(SendBacks, "_send_retry", again)
    patches.set(SendBacks, "_ask_back", back)


@_bug("any member has the lock of a queue that asks for it")
def lock_for_all(patches: Patches) -> None:
    patches.set(QueueLocks, "lock", lambda self, group, queues, client_id: list(queues))


@_bug("offsets are kept a little too high when the broker starts again")
def offsets_too_high(patches: Patches) -> None:
    real = OffsetTable.load

    def load(self: Any) -> None:
        real(self)
        for key, queues in self._drained.by_key.items():
            if not key.startswith("RMQ_SYS"):
                for queue_id in queues:
                    queues[queue_id] += 1

    patches.set(OffsetTable, "load", load)


@_bug("a pull that is held is not woken by what arrives")
def held_pull_not_woken(patches: Patches) -> None:
    patches.set(HeldPulls, "matching", lambda self, key, codes: [])


# -- what changes while clients run ---------------------------------------------------------
@_bug("the offsets of groups outlive their topic")
def offsets_outlive_topic(patches: Patches) -> None:
    patches.set(OffsetTable, "begin_anew", lambda self, *_, **__: [])


@_bug("a delayed message comes to the queue that it names, though the topic has lost it")
def delayed_to_lost_queue(patches: Patches) -> None:
    patches.set(FormerQueues, "queue_now", lambda self, topic, queue_id: queue_id)


@_bug("fewer retry queues of a group are fewer that it reads")
def retry_queues_not_read(patches: Patches) -> None:
    real = TopicTable.set_write_queues

    def narrow(self: Any, topic: str, queues: int) -> Any:
        real(self, topic, queues)
        known = self.get(topic)
        if known is not None and known.read_queue_nums > queues:
            self.put(msgspec.structs.replace(known, read_queue_nums=queues))

    patches.set(TopicTable, "set_write_queues", narrow)


@_bug("of two subscriptions that of the highest version counts, though nobody has it any more")
def highest_version_counts(patches: Patches) -> None:
    real = GroupSubscriptions._recount

    def judge(self: Any, topics: Any, updated: Any) -> Any:
        before = dict(self.current)
        changes = real(self, topics, updated)
        for topic, old in before.items():
            now = self.current.get(topic)
            if now is not None and now.sub_version < old.sub_version:
                self.current[topic] = old
        return changes

    patches.set(GroupSubscriptions, "_recount", judge)


# -- producers and name servers ---------------------------------------------------------
@_bug("a send that nobody answered counts as stored")
def timeout_is_success(patches: Patches) -> None:
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.core.sending.send import SendResult, SendStatus
    from kerolox.errors import KeroloxError
    from kerolox.message import MessageQueue

    real = Delivery._try

    async def attempt(
        self: Any, cluster: Any, plan: Any, outgoing: Any, target: Any, limit: Any
    ) -> Any:
        try:
            return await real(self, cluster, plan, outgoing, target, limit)
        except KeroloxError:
            queue = MessageQueue(outgoing.topic, target.broker_name, target.queue_id)
            return SendResult(SendStatus.SEND_OK, outgoing.message_id, "", queue, 0)

    patches.set(Delivery, "_try", attempt)


@_bug("a name server forgets a broker that is there")
def namesrv_forgets(patches: Patches) -> None:
    from kerolox.namesrv import route_table, server

    patches.set(route_table, "BROKER_EXPIRY_MS", 1_000)
    patches.set(server, "SCAN_FIRST_SECONDS", 1.0)
    patches.set(server, "SCAN_INTERVAL_SECONDS", 1.0)
