"""One node of Raft on an event loop, with its files and its state machine.

The loop owns the node; a thread writes, and what comes in meanwhile is stepped. Time goes by ticks
of a timer: a process that stood still for a minute has had one tick, so it does not begin an
election for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from kerolox.controller.raft.messages import Configuration, Entry, EntryType, Message
from kerolox.controller.raft.raft import NotLeaderError, Raft, Ready, Role
from kerolox.controller.storage import RaftStorage
from kerolox.tasks import end_tasks

TICK_SECONDS = 0.1
"""With ten ticks for an election: one second without a leader, up to two by chance."""

ANSWER_SECONDS_MAX = 5.0
"""How long a proposal or a read waits (RocketMQ's ``WAIT_TIMEOUT_OUT``)."""

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class StateMachine(Protocol):
    """What all nodes have alike."""

    def apply(self, data: bytes) -> object:
        """Do what an entry says; its result is told to who proposed it. msgspec.DecodeError: it
        is nothing that this version knows."""

    def encode(self) -> bytes:
        """All of it."""

    def restore(self, data: bytes) -> None:
        """Become what ``encode`` gave; empty: the beginning. msgspec.DecodeError: it is something
        else, and nothing changed."""


@dataclass(slots=True)
class _Proposal:
    term: int
    result: asyncio.Future[object]


class RaftGroup:
    """Runs one member of a group."""

    def __init__(
        self,
        raft: Raft,
        storage: RaftStorage,
        state_machine: StateMachine,
        send: Callable[[Message], None],
        *,
        on_leader_change: Callable[[], None] = lambda: None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """Nothing happens before :meth:`start`.

        Args:
            raft: made of what ``storage`` has.
            storage: open; whoever opened it closes it, after :meth:`stop`.
            state_machine: becomes what the snapshot has.
            send: sends a message, or drops it; never waits.
            on_leader_change: called when the leader, or the term that it leads in, is another one.
            tick_seconds: time of a tick.
        """
        self.raft, self.storage, self._state_machine = raft, storage, state_machine
        self._send, self._on_leader_change = send, on_leader_change
        self._tick_seconds = tick_seconds
        self._wake = asyncio.Event()
        self._proposals: dict[int, _Proposal] = {}
        self.proposals = Counter[str]()
        """How they ended: ``success``, ``failed``, ``timeout``."""
        self._reads: set[asyncio.Future[None]] = set()
        self._led_by = (0, "")
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._writing: asyncio.Future[None] | None = None
        self.fault: str | None = None
        """Why it takes no part any more: its disk failed; None: it does."""
        state_machine.restore(raft.log.snapshot.data)

    def start(self) -> None:
        """Take part."""
        loop = asyncio.get_running_loop()
        self._tasks = (loop.create_task(self._tick_always()), loop.create_task(self._work_always()))
        self._wake.set()

    async def stop(self) -> None:
        """Take no part any more; a write that is under way ends first. Idempotent."""
        tasks, self._tasks = self._tasks, ()
        await end_tasks(*tasks)
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        self._fail_waiting(NotLeaderError(f"{self.raft.node_id} stops"), proposals=True)

    @property
    def is_leader(self) -> bool:
        """It leads, as far as it knows."""
        return self.raft.role is Role.LEADER and self.fault is None

    def step(self, message: Message) -> None:
        """A message came in."""
        if self.fault is None:
            self.raft.step(message)
            self._wake.set()

    async def propose(self, data: bytes) -> object:
        """Have an entry applied by all; its result here. NotLeaderError: it was not applied;
        ProposalError: it is not taken; TimeoutError: nobody knows yet."""
        self._require_no_fault()
        return await self._committed(self.raft.propose(data))

    async def _committed(self, index: int) -> object:
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._drop_proposal(index)  # Of an earlier term, whose entry this one replaced.
        self._proposals[index] = proposal = _Proposal(self.raft.term, result)
        self._wake.set()
        status = "failed"
        try:
            answer = await _answered(result)
            status = "success"
            return answer
        except TimeoutError:
            status = "timeout"
            raise
        finally:
            self.proposals[status] += 1
            if self._proposals.get(index) is proposal:
                del self._proposals[index]

    async def change_members(self, members: Configuration) -> None:
        """Have a member added, taken out or moved; done when that is committed. Errors:
        :meth:`propose`."""
        self._require_no_fault()
        await self._committed(self.raft.propose_configuration(members))

    async def confirm_read(self) -> None:
        """Wait until the state machine may be read: it has all that was acknowledged before.
        NotLeaderError, ProposalError; TimeoutError: no majority answers."""
        self._require_no_fault()
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.raft.read(confirmed)
        self._reads.add(confirmed)
        self._wake.set()
        try:
            await _answered(confirmed)
        finally:
            self._reads.discard(confirmed)

    # -- the loop -----------------------------------------------------------------------------
    async def _tick_always(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            if self.fault is None:
                self.raft.tick()
                self._wake.set()

    async def _work_always(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._work():
                    pass
            except OSError as error:
                self._give_up(f"its disk failed: {error}", "mend that")
                return
            except msgspec.DecodeError as error:
                self._give_up(
                    f"its log has what it does not understand: {error}",
                    "use the version of the other controllers",
                )
                return

    def _give_up(self, fault: str, advice: str) -> None:
        self.fault = fault
        _log.critical(
            "controller %s takes no part any more: %s; %s, and start it again",
            *(self.raft.node_id, fault, advice),
        )
        self._fail_waiting(NotLeaderError(fault), proposals=True)
        self._on_leader_change()

    async def _work(self) -> bool:
        """Do what is ready; False: there was nothing."""
        ready = self.raft.ready()
        if ready.snapshot is not None:
            # Before it is written: one that makes no sense must not take the place of what does.
            self._state_machine.restore(ready.snapshot.data)
        if ready.snapshot or ready.entries or ready.hard_state:
            await self._write(self.storage.save, ready)
        for message in ready.messages:
            self._send(message)
        self._apply(ready)
        self.raft.advance(ready)
        self._report_leader()
        if self.storage.wants_snapshot:
            await self._compact()
        return bool(ready)

    def _apply(self, ready: Ready) -> None:
        for entry in ready.committed:
            result = None
            if entry.type is EntryType.NORMAL and entry.data:
                result = self._state_machine.apply(entry.data)
            self._answer(entry, result)
        for confirmed in ready.reads:
            assert isinstance(confirmed, asyncio.Future)
            if not confirmed.done():
                confirmed.set_result(None)

    def _answer(self, entry: Entry, result: object) -> None:
        proposal = self._proposals.get(entry.index)
        if proposal is not None and proposal.term == entry.term and not proposal.result.done():
            proposal.result.set_result(result)
        self._drop_proposal(entry.index)

    def _drop_proposal(self, index: int) -> None:
        """It is answered, or another leader's entry has its place."""
        proposal = self._proposals.pop(index, None)
        if proposal is not None and not proposal.result.done():
            proposal.result.set_exception(NotLeaderError("another leader's entry took its place"))

    def _report_leader(self) -> None:
        led_by = (self.raft.term, self.raft.leader)
        if led_by == self._led_by:
            return
        self._led_by = led_by
        if not self.is_leader:
            self._fail_waiting(NotLeaderError(f"{self.raft.node_id} is no leader any more"))
        _log.info(
            "controller %s: term %d is led by %s",
            self.raft.node_id,
            self.raft.term,
            self.raft.leader or "nobody yet",
        )
        self._on_leader_change()

    async def _compact(self) -> None:
        """Put a snapshot in the place of the log."""
        snapshot = self.raft.make_snapshot(self._state_machine.encode())
        log = self.raft.log
        entries = log.between(snapshot.index, log.stable)
        await self._write(self.storage.compact, snapshot, self.storage.hard_state, entries)
        self.raft.compact(snapshot)

    async def _write(self, write: Callable[..., None], *arguments: object) -> None:
        """Have a thread write. It ends what it began, whoever cancels this."""
        self._writing = asyncio.ensure_future(asyncio.to_thread(write, *arguments))
        await asyncio.shield(self._writing)

    # -- who waits ----------------------------------------------------------------------------
    def _require_no_fault(self) -> None:
        if self.fault is not None:
            raise NotLeaderError(self.fault)

    def _fail_waiting(self, error: Exception, *, proposals: bool = False) -> None:
        """End reads, and proposals too, which may be applied nevertheless by the next leader."""
        waiting: list[asyncio.Future[object]] = list(self._reads)  # type: ignore[arg-type]
        if proposals:
            waiting += [each.result for each in self._proposals.values()]
            self._proposals.clear()
        for each in waiting:
            if not each.done():
                each.set_exception(error)


async def _answered(future: asyncio.Future[_Result]) -> _Result:
    """What a future gives. TimeoutError: nothing in ``ANSWER_SECONDS_MAX``. A handler may wait for
    it before it is a task, which :func:`asyncio.timeout` does not allow."""
    await asyncio.wait((future,), timeout=ANSWER_SECONDS_MAX)
    if not future.done():
        future.cancel()
        raise TimeoutError(f"no majority answered in {ANSWER_SECONDS_MAX:g} s")
    return future.result()
