"""Requests to several servers: all at once but bounded, with each one's outcome."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, TypeVar

from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.routes import MASTER_ID, BrokerAddresses
from kerolox.errors import (
    ClientError,
    KeroloxError,
    RequestCodeNotSupportedError,
    TopicRouteNotFoundError,
)
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


_ADDRESS = re.compile(r":[0-9]{1,5}$")
"""How an address ends, and no name."""

ASKED_AT_ONCE_MAX = 32
"""Questions of one call that are open at the same time."""

_Result = TypeVar("_Result")
_Key = TypeVar("_Key")


async def ask_each(
    addresses: Iterable[str], ask: Callable[[str], Awaitable[object]]
) -> tuple[list[str], dict[str, KeroloxError]]:
    """Ask all of them, whatever becomes of one: who did it, and the errors of the others."""
    answers, failed = await answers_of(addresses, ask)
    return list(answers), failed


async def answers_of(
    keys: Iterable[_Key],
    ask: Callable[[_Key], Awaitable[_Result]],
    *,
    at_once_max: int = ASKED_AT_ONCE_MAX,
) -> tuple[dict[_Key, _Result], dict[_Key, KeroloxError]]:
    """Ask about each of them: the answers, and the errors of those that gave none."""
    asked = list(dict.fromkeys(keys))
    room = asyncio.Semaphore(at_once_max)

    async def ask_one(key: _Key) -> _Result | KeroloxError:
        async with room:
            try:
                return await ask(key)
            except KeroloxError as error:
                return error

    found: dict[_Key, _Result] = {}
    failed: dict[_Key, KeroloxError] = {}
    tasks = [asyncio.ensure_future(ask_one(key)) for key in asked]
    try:
        for key, answer in zip(asked, await asyncio.gather(*tasks), strict=True):
            if isinstance(answer, KeroloxError):
                failed[key] = answer
            else:
                found[key] = answer
    finally:
        # Some are left when one failed otherwise. What they undo is undone while there is a
        # connection still.
        await end_tasks(*tasks)
    return found, failed


async def all_answers(
    keys: Iterable[_Key], ask: Callable[[_Key], Awaitable[_Result]]
) -> dict[_Key, _Result]:
    """Ask about each of them; the answers, or the error of the first that got none."""
    found, failed = await answers_of(keys, ask)
    for error in failed.values():
        raise error
    return found


async def do_on_each(
    addresses: Iterable[str], do: Callable[[str], Awaitable[object]], what: str
) -> list[str]:
    """Have each server do something; all their addresses. ``what`` names the whole in an error, for
    example "group 'g' could not be made". ClientError: some did it and some did not; the text says
    who. KeroloxError: none did it; the first one's error.
    """
    done, failed = await ask_each(addresses, do)
    if failed and not done:
        raise next(iter(failed.values()))
    if failed:
        raise ClientError(
            f"{what} on {listed(failed)}{beside('it is done on', done)}; run it again when all "
            "answer"
        )
    return done


async def targets(admin: ClusterRequests, *, cluster: str = "", broker: str = "") -> list[str]:
    """The addresses that a change goes to: one broker, by its ``host:port``, or else all masters of
    a cluster, empty: of the only one there is. ClientError: no such cluster, or several to choose
    from.
    """
    if broker:
        return [broker]
    info = await admin.cluster_info()
    return info.masters(cluster or info.only_cluster())


async def broker_address(admin: ClusterRequests, broker: str) -> str:
    """The address of a broker that is named: ``host:port`` as it is, ``broker-a`` its master,
    ``broker-a@1`` its slave with id 1. ClientError: no such broker is registered; the text says
    which are. Or it is a name server.
    """
    if broker in admin.access.name_servers:
        raise ClientError(
            f"{broker} is a name server of the cluster, and no broker; 'kerolox broker list' has "
            "the brokers with their addresses"
        )
    if _ADDRESS.search(broker):
        return broker
    name, at, number = broker.rpartition("@")
    if not (at and number.isascii() and number.isdecimal() and len(number) < 10):
        name, number = broker, str(MASTER_ID)
    known = (await admin.cluster_info()).brokers
    found = known.get(name)
    address = found.addresses.get(int(number)) if found is not None else None
    if address is not None:
        return address
    if found is not None:
        there = ", ".join(
            f"{node_name(name, number)} ({address})" for number, address in found.addresses.items()
        )
        raise ClientError(f"{node_name(name, int(number))} is not registered; there is {there}")
    names = ", ".join(sorted(known)) or "none"
    raise ClientError(
        f"no broker {broker!r} is registered (known: {names}); write a name or HOST:PORT"
    )


def node_name(broker_name: str, broker_id: int) -> str:
    """How a node is named: ``broker-a`` the master, ``broker-a@1`` the slave with id 1."""
    return broker_name if broker_id == MASTER_ID else f"{broker_name}@{broker_id}"


def masters_of(brokers: Iterable[BrokerAddresses], cluster: str) -> dict[str, str]:
    """Address → name of the masters; only those of a cluster, unless that is empty."""
    return {
        each.addresses[MASTER_ID]: each.broker_name
        for each in brokers
        if MASTER_ID in each.addresses and cluster in ("", each.cluster)
    }


async def is_kerolox(admin: ClusterRequests, address: str) -> bool:
    """Whether a broker is one of Kerolox: it knows what it is (code 31038)."""
    try:
        await admin.access.ask(address, RequestCode.GET_BROKER_ROLE, {"tailFrom": -1})
    except RequestCodeNotSupportedError:
        return False
    return True


async def nodes_of_topic(admin: ClusterRequests, topic: str) -> dict[str, str]:
    """Name → address of the brokers of a topic: the master's, else any (``selectBrokerAddr``).
    TopicRouteNotFoundError: no name server knows it.
    """
    route = await admin.access.route(topic)
    nodes = {broker.broker_name: broker.any_address() for broker in route.brokers}
    return {name: address for name, address in nodes.items() if address is not None}


async def masters_of_topic(admin: ClusterRequests, topic: str) -> dict[str, str]:
    """The same, for what is changed: a slave would take it, and its master's next tables replace
    that. ClientError: a broker of the topic has no master now.
    """
    nodes = {}
    for broker in (await admin.access.route(topic)).brokers:
        if MASTER_ID not in broker.addresses:
            raise ClientError(
                f"broker {broker.broker_name!r} of topic {topic!r} has no master now, and a slave "
                "can't change offsets for it: start the master, or promote a slave, and try again"
            )
        nodes[broker.broker_name] = broker.addresses[MASTER_ID]
    return nodes


async def nodes_of_group(admin: ClusterRequests, group: str, *, topic: str = "") -> dict[str, str]:
    """Name → address of the brokers that may know a consumer group: those of its retry topic, which
    it has from its first member on; before that those of ``topic``, or else all.
    TopicRouteNotFoundError: no name server knows ``topic``.
    """
    try:
        return await nodes_of_topic(admin, RETRY_PREFIX + group)
    except TopicRouteNotFoundError:
        if topic:
            return await nodes_of_topic(admin, topic)
    nodes = {each.broker_name: each.any_address() for each in (await admin.cluster_info()).nodes()}
    return {name: address for name, address in nodes.items() if address is not None}


def listed(failed: dict[str, KeroloxError]) -> str:
    """Addresses with their errors, for an error's text."""
    return ", ".join(f"{address} ({error})" for address, error in failed.items())


def beside(what: str, addresses: list[str]) -> str:
    """``; what addresses``, or nothing where there is none."""
    return f"; {what} {', '.join(addresses)}" if addresses else ""
