"""Brokers: metrics, settings, changing one of those, taking one out of service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.responses import Response

from kerolox.admin import BrokerRole, BrokerRuntime, ProducerInfo, ReplicationStatus
from kerolox.admin.setting_states import SettingState, setting_states
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.history.sampler import rate_series
from kerolox.console.pages.overview import HOURS, hours_of
from kerolox.console.visit import Visit
from kerolox.errors import BrokerError, ClientError
from kerolox.remoting.audit import HIDDEN, is_secret
from kerolox.text import counted

__all__ = [
    "bring_back",
    "change_setting",
    "described",
    "examined",
    "listed",
    "plan_promotion",
    "promote",
    "retire",
    "without_secret",
]

PRODUCERS_SHOWN_MAX = 100
PROMOTION_SECONDS_MAX = 60.0
"""How long a slave may take to come near the end of its master's log."""

_Answer = TypeVar("_Answer")


async def listed(visit: Visit) -> Response:
    """All nodes of all clusters, and their controllers."""
    nodes = await visit.shared("nodes", visit.admin.cluster_status)
    cluster = visit.console.cluster
    controllers = await visit.shared("controllers", lambda: cluster.controllers(nodes))
    return visit.page("brokers.html", nodes=nodes, controllers=controllers)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What one node tells of itself."""

    runtime: BrokerRuntime
    settings: dict[str, str]
    replication: ReplicationStatus | None
    """None: it does not tell, as a broker of RocketMQ 4."""
    role: BrokerRole | None
    """None: it is no broker of Kerolox."""
    producers: list[ProducerInfo] | None
    """None: it does not tell, as one before 4.9.3."""


async def described(visit: Visit) -> Response:
    """One node: metrics, slaves, producers, settings without secrets."""
    address = await visit.console.cluster.broker_address(visit.needed("address"))
    wanted = visit.asked("q").lower()
    state = await visit.shared(("broker", address), lambda: examined(visit, address))
    states = [without_secret(each) for each in setting_states(state.settings)]
    name = state.settings.get("brokerName", "")
    return visit.page(
        "broker.html",
        address=address,
        broker_name=name,
        is_slave=state.settings.get("brokerId", "0") != "0",
        runtime=state.runtime,
        replication=state.replication,
        role=state.role,
        producers=state.producers,
        producers_max=PRODUCERS_SHOWN_MAX,
        figures=dict(state.runtime.values),
        waiting=[each for each in states if each.after_restart is not None],
        changed=[each for each in states if each.is_set],
        shown_settings=[each for each in states if wanted in each.key.lower()],
        q=visit.asked("q"),
        hours=hours_of(visit),
        hours_choices=HOURS,
        charted=[rate_series("in", name), rate_series("out", name)],
    )


async def examined(visit: Actor, address: str) -> BrokerState:
    """What a node tells of itself."""
    admin = visit.admin
    return BrokerState(
        *await asyncio.gather(
            admin.broker_runtime(address),
            admin.broker_settings(address),
            _answered(admin.replication_status(address)),
            _answered(admin.broker_role(address)),
            _answered(admin.all_producers(address)),
        )
    )


async def _answered(question: Awaitable[_Answer]) -> _Answer | None:
    """The answer; None: the broker refuses, or knows no such question."""
    try:
        return await question
    except BrokerError:
        return None


def without_secret(state: SettingState) -> SettingState:
    """The same without a secret that was set."""
    if not is_secret(state.key):
        return state
    return replace(
        state,
        value=HIDDEN if state.value else "",
        after_restart=HIDDEN if state.after_restart else state.after_restart,
    )


async def change_setting(visit: Actor) -> ActionResult:
    """Change one setting of a broker."""
    address = await visit.console.cluster.broker_address(visit.required("address"))
    name = visit.required("name")
    value = visit.given("value")
    old = await visit.admin.broker_settings(address)
    if name not in old:
        raise ClientError(f"the broker has no setting {name!r}; nothing was changed")
    said = await visit.admin.update_broker_settings({name: value}, broker=address)
    return ActionResult(
        f"{name} is {HIDDEN if is_secret(name) else value!r} on {address}. "
        + " ".join(said.values()),
        visit.path("/broker", address=address, q=name),
        {"brokerAddr": address},
        old={name: old[name]},
        new={name: value},
    )


async def retire(visit: Actor) -> ActionResult:
    """Have producers send to a broker no more, and say what it still has to do."""
    address = await visit.console.cluster.broker_address(visit.required("address"))
    alone = await visit.admin.retire_broker(address, force=visit.given("force") == "1")
    left = await visit.admin.broker_drain(address)
    lag = sum(left.lag.values())
    parts = [f"{address} gets no new messages."]
    if alone:
        are = "is" if len(alone) == 1 else "are"
        parts.append(f"Nobody can send to {counted(len(alone), 'topic')} that {are} nowhere else.")
    parts.append(
        f"Left: {counted(lag, 'message')} for groups, {left.delayed} delayed, "
        f"{counted(left.transactions, 'open transaction')}."
    )
    return ActionResult(
        " ".join(parts),
        visit.path("/broker", address=address, q="brokerPermission"),
        {"brokerAddr": address},
        new="gets no new messages",
    )


async def bring_back(visit: Actor) -> ActionResult:
    """Have producers send to a broker again."""
    address = await visit.console.cluster.broker_address(visit.required("address"))
    await visit.admin.return_broker(address)
    return ActionResult(
        f"{address} gets new messages again.",
        visit.path("/broker", address=address, q="brokerPermission"),
        {"brokerAddr": address},
        new="gets new messages",
    )


async def plan_promotion(visit: Visit) -> Response:
    """What becomes of a slave and its master when it is promoted; nothing is changed."""
    address = await visit.console.cluster.broker_address(visit.needed("address"))
    return visit.page("promote.html", plan=await visit.admin.plan_promotion(address))


async def promote(visit: Actor) -> ActionResult:
    """Make a slave the master of its name. What may be lost is accepted by a box of the form."""
    address = await visit.console.cluster.broker_address(visit.required("address"))
    accepts_loss = visit.given("loss") == "accepted"
    if accepts_loss:
        visit.target["acceptLoss"] = "true"
    changed = await visit.admin.promote_broker(
        address, accept_loss=accepts_loss, timeout_seconds=PROMOTION_SECONDS_MAX
    )
    untold = [f"{who} was not told: {why}." for who, why in changed.not_told.items()]
    unlisted = [f"{who} does not list it: {why}." for who, why in changed.not_listed_at.items()]
    former = f"; {changed.former_master} is its slave" if changed.former_master else ""
    return ActionResult(
        " ".join(
            (f"{address} is the master of {changed.broker_name}{former}.", *untold, *unlisted)
        ),
        visit.path("/brokers"),
        visit.target | {"brokerAddr": address, "brokerName": changed.broker_name},
        old={"master": changed.former_master},
        new={"master": changed.master, "epoch": changed.epoch, "role": changed.role},
    )
