"""Deliberate bugs of controllers and brokers: each is a world in which one rule is broken.

Four are of RocketMQ: an election although the master is alive (issue 8380), a set that grows before
acknowledgements wait for it (5663), members that nobody waits for (6662), and two changes of a set
at once (7219 and 9897).

``BUGS`` gives each with a seed that finds it. When a change of the source moves it, search again:
``python -m tests.controller.broker_bugs [NAME]``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from kerolox.controller.replicas_info import (
    BrokerSet,
    Command,
    ElectMaster,
    ReplicasInfoManager,
    Result,
    decode_command,
)
from tests.controller.broker_world import SLOW, Broker, BrokerWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.controller.live_brokers import BrokerIdentity
    from tests.controller.simulated import Node

SEEDS_MAX = 1_000


class _ReplacesMasters(ReplicasInfoManager):
    def apply(self, command: Command) -> Result:
        broker_set = self.broker_sets.get(command.broker_name)
        if isinstance(command, ElectMaster) and broker_set is not None:
            others = [each for each in command.alive if each != broker_set.master_broker_id]
            if any(each in broker_set.sync_state_set for each in others):
                command = msgspec.structs.replace(command, alive=others)
        return super().apply(command)


class ElectsThoughTheMasterIsAlive(BrokerWorld):
    """A slave that is gone has the master replaced (issue 8380)."""

    manager_type = _ReplacesMasters

    def _must_elect(self, gone: list[BrokerIdentity], master: BrokerIdentity) -> bool:
        return bool(gone)


class _CountsWhatItKnows(Broker):
    def counted(self) -> frozenset[int]:
        return self.members


class CountsTheKnownSetAlone(BrokerWorld):
    """A set that grows counts only when the answer is here (issue 5663)."""

    broker_type = _CountsWhatItKnows


class _ElectsAnybody(ReplicasInfoManager):
    def apply(self, command: Command) -> Result:
        if isinstance(command, ElectMaster):
            command = msgspec.structs.replace(command, may_be_unclean=True)
        return super().apply(command)


class ElectsOutOfTheSet(BrokerWorld):
    """Who is alive may be elected, in sync or not."""

    manager_type = _ElectsAnybody


class _KeepsEpoch(BrokerSet):
    def use_master(self, broker_id: int | None, newest_epoch: int = 0) -> None:
        epoch = self.master_epoch or 1
        super().use_master(broker_id, newest_epoch)
        self.master_epoch = epoch


class _Made(ReplicasInfoManager):
    """Its sets are of another class."""

    made: type[BrokerSet] = BrokerSet

    def apply(self, command: Command) -> Result:
        self._turn()
        result = super().apply(command)
        self._turn()
        return result

    def _turn(self) -> None:
        for name, each in self.broker_sets.items():
            self.broker_sets[name] = self.made(**msgspec.structs.asdict(each))


class _KeepsEpochs(_Made):
    made = _KeepsEpoch


class DoesNotRaiseTheEpoch(BrokerWorld):
    """Two masters, one epoch."""

    manager_type = _KeepsEpochs


class _ForgetsSets(ReplicasInfoManager):
    def encode(self) -> bytes:
        for each in self.broker_sets.values():
            each.sync_state_set_epoch = min(each.sync_state_set_epoch, 3)
        return super().encode()


class ForgetsEpochsInASnapshot(BrokerWorld):
    """A snapshot has less than there was."""

    def _apply_entry(self, node: Node, entry: object) -> None:
        self.states.clear()
        super()._apply_entry(node, entry)  # type: ignore[arg-type]

    manager_type = _ForgetsSets


class JudgesByItsOwnTable(BrokerWorld):
    """Each controller judges by who is alive as it knows it."""

    def _command(self, node: Node, data: bytes) -> Command:
        command = decode_command(data)
        if isinstance(command, ElectMaster):
            return msgspec.structs.replace(command, alive=self._alive(node))
        return command


class ReadsWithoutAsking(BrokerWorld):
    """A controller tells what it knows, leader or not."""

    def _read(self, node: Node, read: Callable[[], None]) -> None:
        read()


class AcknowledgesAtOnce(BrokerWorld):
    """A master waits for nobody."""

    def _acknowledge(self, broker: Broker) -> None:
        members, broker.members = broker.members, frozenset({broker.broker_id})
        wished, broker.wished = broker.wished, frozenset()
        super()._acknowledge(broker)
        broker.members, broker.wished = members, wished


class DoesNotCutItsLog(BrokerWorld):
    """A slave copies behind what it has."""

    def _serve(self, master: Broker, slave: Broker, have: tuple[int, ...], epoch: int) -> None:
        same = tuple(each for each, _ in master.log[: len(have)])
        if len(same) == len(have) and same != have and master.is_master:
            rest = master.log[len(have) :]
            copied = master.epoch, len(have), rest, have
            self._pass(master.name, slave.name, lambda: self._copy(slave, master, *copied))
            master.have[slave.broker_id] = len(have)
            return
        super()._serve(master, slave, have, epoch)


class EntersTheSetTooSoon(BrokerWorld):
    """A slave that is near the end of the log enters, though it lacks what was acknowledged."""

    def _may_enter(self, broker: Broker) -> Callable[[int], bool]:
        return lambda each: self._clock_of(broker) - broker.caught_up[each] <= SLOW


class _WaitsForWhoCame(Broker):
    def counted(self) -> frozenset[int]:
        return super().counted() & {self.broker_id, *self.have}


class WaitsForConnectedMembersAlone(BrokerWorld):
    """A member of the set that did not come yet is not waited for (issue 6662)."""

    broker_type = _WaitsForWhoCame


class ChangesASetTwiceAtOnce(BrokerWorld):
    """A change takes the place of one that is under way (issues 7219 and 9897)."""

    def _lead(self, broker: Broker) -> None:
        broker.wished = frozenset()
        super()._lead(broker)


class ShrinksTheSetByItself(BrokerWorld):
    """A master waits no more for a slave that it wants to leave."""

    def _wish(self, broker: Broker, wanted: frozenset[int]) -> None:
        broker.members &= wanted
        super()._wish(broker, wanted)


class GoesOnInTheOldEpoch(BrokerWorld):
    """A master writes in the epoch of the last message that it has."""

    def _lead(self, broker: Broker) -> None:
        before = broker.log[-1:]
        length = len(broker.log)
        super()._lead(broker)
        if before and len(broker.log) > length:
            broker.log[-1] = (before[0][0], broker.log[-1][1])


BUGS: dict[type[BrokerWorld], int] = {
    ElectsThoughTheMasterIsAlive: 3,
    CountsTheKnownSetAlone: 172,
    ElectsOutOfTheSet: 5,
    DoesNotRaiseTheEpoch: 2,
    ForgetsEpochsInASnapshot: 0,
    JudgesByItsOwnTable: 2,
    ReadsWithoutAsking: 19,
    AcknowledgesAtOnce: 12,
    DoesNotCutItsLog: 12,
    EntersTheSetTooSoon: 87,
    GoesOnInTheOldEpoch: 12,
    ShrinksTheSetByItself: 28,
    WaitsForConnectedMembersAlone: 171,
    ChangesASetTwiceAtOnce: 170,
}


def finds(bug: type[BrokerWorld], seed: int) -> bool:
    """Whether a run of that seed shows the bug."""
    try:
        bug(seed).run()
    except Exception:
        return True
    return False


def search(names: list[str]) -> None:
    """Print the first seed that finds each bug, and is well without it."""
    for bug in BUGS:
        if names and bug.__name__ not in names:
            continue
        seeds = (s for s in range(SEEDS_MAX) if finds(bug, s) and not finds(BrokerWorld, s))
        print(f"{bug.__name__}: {next(seeds, None)}", flush=True)


if __name__ == "__main__":
    search(sys.argv[1:])
