"""Changing a topic: what is not named stays as each broker has it.

RocketMQ's ``updateTopic`` replaces all settings by those given or their defaults. So a topic of
eight queues becomes one of the default number, and nobody reads its other queues any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.asking import ask_each, beside, listed, masters_of
from kerolox.admin.topics import (
    TopicRequests,
    brokers_of,
    changes_text,
    check_attributes,
    check_not_internal,
    order_entry,
)
from kerolox.client.core.checking import checked
from kerolox.errors import ClientError, NotFoundError
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.client.aio.network.access import Access
    from kerolox.protocol.bodies import TopicConfig


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The result of a change of a topic on one broker."""

    broker_name: str
    address: str
    old: TopicConfig
    new: TopicConfig
    kept_read_queues: int = 0
    """Read queues that fewer were asked for than there are, and that stay; 0: none."""


@checked()
class TopicUpdateRequests(TopicRequests):
    """Changes topics."""

    async def update_topic(
        self,
        topic: str,
        *,
        cluster: str = "",
        broker: str = "",
        queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        shrink_read_queues: bool = False,
        dry_run: bool = False,
    ) -> list[TopicChange]:
        """Change settings of a topic where it is (code 17); what changed, by broker. Arguments that
        are None change nothing. Brokers that have it as wanted already hear it again.

        Args:
            topic: its name.
            cluster: only on the masters of this one; empty: of all.
            broker: only on the broker of this address.
            queues: write queues on each broker, and read queues where that makes more of them.
            perm: 2 write, 4 read, 6 both.
            order: whether the name servers have an order of it (ORDER_TOPIC_CONFIG).
            attributes: of RocketMQ 5, by name (:meth:`create_topic`); None takes one away. What is
                not named stays.
            shrink_read_queues: fewer read queues too. What a queue holds that is no read queue any
                more is delivered to nobody, and counts as lag. Delayed messages and open
                transactions that are for it come to the others, on brokers of ours.
            dry_run: change nothing.

        Raises:
            TopicRouteNotFoundError: no name server knows it.
            MessageRejectedError: it is RocketMQ's own.
            ConfigError: the attributes have characters that they can't have.
            ClientError: it is not there; or not all that was to be done could be: the text says
                what is done, what is not and why. Another run finishes it.
            BrokerError, RemotingError: a broker does not say what it has.
        """
        check_not_internal(topic)
        given = attributes or {}
        changes_text(given, None)
        places = await _places(self.access, topic, cluster, broker)
        changes = []
        for address, name in places.items():
            old = await self.topic_settings(address, topic)
            if old is None:
                raise ClientError(f"topic {topic!r} is not on broker {address}; create it there")
            change = _change(name, address, old, queues, perm, order, shrink_read_queues)
            changes.append(_with_attributes(change, given))
        if dry_run:
            return changes
        # What is as wanted, too: a broker may have it in memory alone, since its disk was full.
        wanted = {each.address: each for each in changes}
        await _put(self.access, topic, wanted, given)
        await _write_order(self.access, topic, changes)
        await check_attributes(self, topic, wanted, given)
        return changes


async def _places(access: Access, topic: str, cluster: str, broker: str) -> dict[str, str]:
    """Address → name of the masters that have the topic."""
    brokers, unasked = await brokers_of(access, topic)
    if unasked:
        raise ClientError(
            f"name server {listed(unasked)} does not say where topic {topic!r} is; run the command "
            "again when all answer, or name only those that do (-n)"
        )
    masters = masters_of(brokers, cluster)
    if broker:
        return {broker: masters.get(broker, broker)}
    if not masters:
        where = f"cluster {cluster!r}" if cluster else "any master"
        raise ClientError(f"topic {topic!r} is not on {where}")
    return dict(sorted(masters.items()))


async def _put(
    access: Access,
    topic: str,
    wanted: Mapping[str, TopicChange],
    attributes: Mapping[str, str | None],
) -> None:
    """Have brokers make their changes, by address."""

    async def put(address: str) -> None:
        change = wanted[address]
        text = changes_text(attributes, change.old.attributes)
        await access.put_topic(address, change.new, text)

    done, failed = await ask_each(wanted, put)
    if failed:
        raise ClientError(
            f"topic {topic!r} could not be changed on broker {listed(failed)}"
            f"{beside('it is changed on', done)}; run the command again when all answer"
        )


def _change(
    name: str,
    address: str,
    old: TopicConfig,
    queues: int | None,
    perm: int | None,
    order: bool | None,
    shrink: bool,
) -> TopicChange:
    write = old.write_queue_nums if queues is None else queues
    read = old.read_queue_nums if queues is None else queues
    kept = 0
    if read < old.read_queue_nums and not shrink:
        read = kept = old.read_queue_nums
    new = msgspec.structs.replace(
        old,
        write_queue_nums=write,
        read_queue_nums=read,
        perm=old.perm if perm is None else perm,
        order=old.order if order is None else order,
    )
    return TopicChange(name, address, old, new, kept)


def _with_attributes(change: TopicChange, given: Mapping[str, str | None]) -> TopicChange:
    if not given:
        return change
    kept = {k: v for k, v in (change.old.attributes or {}).items() if k not in given}
    kept.update((name, value) for name, value in given.items() if value is not None)
    return replace(change, new=msgspec.structs.replace(change.new, attributes=kept or None))


async def _write_order(access: Access, topic: str, changes: list[TopicChange]) -> None:
    """Have the name servers know the write queues of an ordered topic, and forget those of one that
    is not ordered any more."""

    async def write(name_server: str) -> None:
        entry = order_entry(topic)
        counts: dict[str, str] = {}
        try:
            known = await access.ask(name_server, RequestCode.GET_KV_CONFIG, entry)
            items = (known.ext_fields.get("value") or "").split(";")
            counts = dict(item.rsplit(":", 1) for item in items if ":" in item)
        except NotFoundError:
            pass
        before = dict(counts)
        for each in changes:
            if each.new.order:
                counts[each.broker_name] = str(each.new.write_queue_nums)
            elif each.old.order:
                counts.pop(each.broker_name, None)
        if counts == before:
            return
        if counts:
            value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
            await access.ask(name_server, RequestCode.PUT_KV_CONFIG, {**entry, "value": value})
        else:
            await access.ask(name_server, RequestCode.DELETE_KV_CONFIG, entry)

    if not any(each.old.order or each.new.order for each in changes):
        return
    done, failed = await ask_each(access.name_servers, write)
    if failed:
        raise ClientError(
            f"topic {topic!r} is changed on its brokers, and its order could not be written to "
            f"name server {listed(failed)}{beside('it is at', done)}; run the command again when "
            "all answer, or name only those that do (-n)"
        )
