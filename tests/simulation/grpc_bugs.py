"""Deliberate bugs in what calls by gRPC make of pops, as :mod:`tests.simulation.pop_bugs` has them
for the pops themselves."""

from __future__ import annotations

import functools
from typing import Any

from kerolox.broker.grpc import receiving, renewals, sending
from kerolox.broker.requests import pop_acks
from kerolox.protocol.codes import MessageSysFlag
from kerolox.protocol.headers import AckMessageHeader, EndTransactionHeader, PopMessageHeader
from tests.simulation.bugs import SeededBug, seeded
from tests.simulation.patches import Patches

GRPC_BUGS: dict[str, SeededBug] = {}
_bug = functools.partial(seeded, GRPC_BUGS)


@_bug(12)
def messages_of_a_call_that_is_over_are_done(patches: Patches) -> None:
    """They are acknowledged in place of being given back."""

    def change(broker: Any, key: Any, offset: int, receipt: Any, invisible_ms: int) -> Any:
        changed = real(broker, key, offset, receipt, invisible_ms)
        if changed is not None and invisible_ms == renewals.GIVEN_BACK_MS:
            committed = broker.tables.offsets.query(*key)
            broker.tables.pops.state.ack(
                key, offset, changed.pop_time, is_order=receipt.is_order, committed=committed
            )
        return changed

    real = pop_acks.change
    patches.set(renewals, "change", change)


@_bug(24)
def all_attempts_are_one(patches: Patches) -> None:
    """An ordered receive is taken for the one before, whose answer was lost."""

    def header(**members: Any) -> Any:
        return PopMessageHeader(**{**members, "attempt_id": "one"})

    patches.set(receiving, "PopMessageHeader", header)


@_bug(24)
def acknowledgement_is_of_the_next_message(patches: Patches) -> None:
    """The offset of a receipt is one too high."""

    def header(**members: Any) -> Any:
        return AckMessageHeader(**{**members, "offset": members["offset"] + 1})

    patches.set(receiving, "AckMessageHeader", header)


@_bug(11)
def dead_letter_is_not_stored(patches: Patches) -> None:
    """A message that is forwarded is done, and no dead letter."""

    async def nothing(*_: Any) -> None:
        pass

    patches.set(receiving, "_send_dead_letter", nothing)


@_bug(9)
def each_transaction_is_rolled_back(patches: Patches) -> None:
    """Whatever its producer decides."""

    def header(**members: Any) -> Any:
        decided = MessageSysFlag.TRANSACTION_ROLLBACK
        return EndTransactionHeader(**{**members, "commit_or_rollback": decided})

    patches.set(sending, "EndTransactionHeader", header)
