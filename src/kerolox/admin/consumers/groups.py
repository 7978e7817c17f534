"""Settings of consumer groups: list, make, change, delete.

Brokers own them, each its own. A broker makes a group with defaults when its first member comes
(``autoCreateSubscriptionGroup``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.answers import read_object, read_struct
from kerolox.admin.asking import all_answers, answers_of, do_on_each, targets
from kerolox.admin.topic_changes.deletion import TopicDeletionRequests
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    KeroloxError,
    RemoteProtocolError,
    TopicRouteNotFoundError,
)
from kerolox.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.dead_letter_marks import is_marks_group
from kerolox.protocol.headers import DeleteGroupHeader, GroupsHeader
from kerolox.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_system_group,
)
from kerolox.protocol.request_modes import MessageRequestMode

RETRY_QUEUES_MAX = 65_535
"""Of a group; brokers have room for one more."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.client.aio.network.access import Access


OFFSET_KEY_SEPARATOR = "@"
"""Between topic and group, in a broker's table of offsets."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The result of a change of a group on one broker."""

    address: str
    old: SubscriptionGroupConfig | None
    """None: the broker did not have it."""
    new: SubscriptionGroupConfig


@dataclass(frozen=True, slots=True)
class GroupState:
    """Where a group has settings, and whether it gets messages there."""

    group: str
    delivering: tuple[str, ...] = ()
    """Names of the brokers that deliver to it."""
    paused: tuple[str, ...] = ()
    """Names of those that do not (``consumeEnable`` is false)."""
    ordered: tuple[str, ...] = ()
    """Names of those where clients by gRPC get messages in order (``consumeMessageOrderly``)."""

    @property
    def has_settings(self) -> bool:
        """Some broker has any of it; else there are offsets alone."""
        return bool(self.delivering or self.paused)

    @property
    def text(self) -> str:
        """``active``, ``paused``, ``paused on`` some brokers, or ``no settings``: the group has
        offsets alone."""
        if not self.paused:
            return "active" if self.has_settings else "no settings"
        return f"paused on {', '.join(self.paused)}" if self.delivering else "paused"


@checked()
class GroupRequests(TopicDeletionRequests):
    """Asks about consumer groups, and changes them."""

    async def all_group_settings(
        self, broker: str, *, internal: bool = False
    ) -> dict[str, SubscriptionGroupConfig]:
        """The groups of a broker by name, sorted (code 201).

        Args:
            broker: ``host:port``.
            internal: RocketMQ's own too.

        Raises:
            BrokerError: it refused.
            RemotingError: it does not answer, or with something else.
        """
        table = await _group_table(self.access, broker)
        return {
            name: table[name] for name in sorted(table) if internal or not is_system_group(name)
        }

    async def list_groups(self, *, cluster: str = "", internal: bool = False) -> list[str]:
        """The consumer groups of a cluster, or of all, sorted: those with settings or offsets.

        Args:
            cluster: its name; empty: all clusters.
            internal: RocketMQ's own too.

        Raises:
            ClientError: there is no such cluster.
            BrokerError, RemotingError: a master refused or does not answer.
        """
        return list(await self.group_states(cluster=cluster, internal=internal))

    async def group_states(
        self, *, cluster: str = "", internal: bool = False
    ) -> dict[str, GroupState]:
        """The consumer groups of a cluster, or of all, with where they are paused; sorted by
        name. Arguments and errors: see :meth:`list_groups`.
        """
        states, silent = await group_states_told(self, cluster=cluster, internal=internal)
        for error in silent.values():
            raise error
        return states

    async def group_state(self, group: str) -> GroupState:
        """Where one group has settings, and whether it gets messages there. Masters that do not
        answer are left out.

        Raises:
            RemotingError: no name server answers.
        """
        nodes = (await self.cluster_info()).nodes()
        masters = {node.broker_name: node.addresses.get(MASTER_ID) for node in nodes}
        found, _ = await answers_of(
            [name for name, address in masters.items() if address],
            lambda name: self.group_settings(str(masters[name]), group),
        )
        known = {name: found[name] for name in sorted(found)}
        settings = {name: each for name, each in known.items() if each is not None}
        return GroupState(
            group,
            delivering=tuple(name for name, each in settings.items() if each.consume_enable),
            paused=tuple(name for name, each in settings.items() if not each.consume_enable),
            ordered=tuple(name for name, each in settings.items() if each.consume_message_orderly),
        )

    async def group_exists(self, group: str) -> bool:
        """Whether a cluster knows a group: it has settings, offsets or a topic of its retries or
        dead letters. Errors: see :meth:`list_groups`.
        """
        if (await self.group_state(group)).has_settings:
            return True
        topics = await self.list_topics()
        if RETRY_PREFIX + group in topics or DLQ_PREFIX + group in topics:
            return True
        return group in await self.group_states(internal=True)

    async def group_settings(self, broker: str, group: str) -> SubscriptionGroupConfig | None:
        """What a broker has of a group (``getConsumerConfig``, by code 201); None: it has none
        of that name. Errors: see :meth:`all_group_settings`.
        """
        # Brokers of 5.x make the group that 352 asks for. Those of RocketMQ pass over the header
        # here, and answer with all groups.
        header = GroupsHeader(group=group).encode()
        return (await _group_table(self.access, broker, header)).get(group)

    async def put_group(
        self,
        settings: SubscriptionGroupConfig,
        *,
        cluster: str = "",
        broker: str = "",
        drop_retries: bool = False,
    ) -> list[str]:
        """Make a group, or replace all settings of one (code 200); the addresses of the brokers.

        Args:
            settings: all of them.
            cluster: on all masters of this one; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.
            drop_retries: no retry queues are wanted (:meth:`update_group`).

        Raises:
            ConfigError: the name is illegal, or the retries do not fit.
            ClientError: no such cluster; or some took it and some did not: the text says who.
            BrokerError, RemotingError: none took it.
        """
        check_consumer_group(settings.group_name)
        _check_retries(settings.retry_queue_nums, None, drop_retries)
        return await self._put_group(settings, cluster, broker)

    async def _put_group(
        self, settings: SubscriptionGroupConfig, cluster: str, broker: str
    ) -> list[str]:
        # The broker takes attributes here for changes of those that it has.
        body = encode_body(msgspec.structs.replace(settings, attributes=None))
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda address: self.access.ask(address, code, body=body),
            f"group {settings.group_name!r} could not be made",
        )

    async def update_group(
        self,
        group: str,
        *,
        cluster: str = "",
        broker: str = "",
        consume_enable: bool | None = None,
        consume_from_min_enable: bool | None = None,
        consume_broadcast_enable: bool | None = None,
        consume_message_orderly: bool | None = None,
        retry_queue_nums: int | None = None,
        retry_max_times: int | None = None,
        broker_id: int | None = None,
        which_broker_when_consume_slowly: int | None = None,
        notify_consumer_ids_changed_enable: bool | None = None,
        drop_retries: bool = False,
        dry_run: bool = False,
    ) -> list[GroupChange]:
        """Change a group where it is, make it where it is not (``updateSubGroup``); changes by
        broker.

        What is None stays. ``mqadmin`` replaces all settings by those given, or their defaults.

        Args:
            group: its name.
            cluster, broker: as those of :meth:`put_group`.
            consume_enable: its members get messages.
            consume_from_min_enable: members may start at the first message of a queue.
            consume_broadcast_enable: members may broadcast.
            consume_message_orderly: clients by gRPC get the messages of a queue in order.
            retry_queue_nums: queues of its retry topic, 1 to 65,535. Those there are still read.
            retry_max_times: tries before a message is a dead letter, of clients that do not say it
                themselves (``maxReconsumeTimes``): Java's from 3.4.9 on, and Kerolox's, do.
            broker_id: the node that members read from.
            which_broker_when_consume_slowly: the node for members that are far behind.
            notify_consumer_ids_changed_enable: members hear of those that come and go.
            drop_retries: has 0 retry queues taken: brokers drop what the group gives back.
            dry_run: change nothing.

        Raises:
            ConfigError: the name is illegal, or the retries do not fit.
            ClientError: no such cluster; or some took it and some did not: the text says who.
            BrokerError, RemotingError: none took it.
        """
        check_consumer_group(group)
        _check_retries(retry_queue_nums, retry_max_times, drop_retries)
        given = {
            "consume_enable": consume_enable,
            "consume_from_min_enable": consume_from_min_enable,
            "consume_broadcast_enable": consume_broadcast_enable,
            "consume_message_orderly": consume_message_orderly,
            "retry_queue_nums": retry_queue_nums,
            "retry_max_times": retry_max_times,
            "broker_id": broker_id,
            "which_broker_when_consume_slowly": which_broker_when_consume_slowly,
            "notify_consumer_ids_changed_enable": notify_consumer_ids_changed_enable,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        to = await targets(self, cluster=cluster, broker=broker)
        return await self._change_group(group, to, wanted, dry_run=dry_run)

    async def _change_group(
        self,
        group: str,
        addresses: list[str],
        wanted: dict[str, int],
        *,
        dry_run: bool = False,
    ) -> list[GroupChange]:
        found = await all_answers(addresses, lambda address: self.group_settings(address, group))
        changes = {
            address: GroupChange(
                address,
                old,
                msgspec.structs.replace(old or SubscriptionGroupConfig(group_name=group), **wanted),
            )
            for address, old in found.items()
        }
        if dry_run:
            return list(changes.values())
        # What is as wanted, too: a broker may have it in memory alone, since its disk was full.
        await do_on_each(
            list(changes),
            lambda address: self._put_group(changes[address].new, "", address),
            f"group {group!r} could not be changed",
        )
        return list(changes.values())

    async def set_request_mode(
        self,
        group: str,
        topic: str,
        mode: str,
        *,
        share_queues: int = 0,
        cluster: str = "",
        broker: str = "",
    ) -> list[str]:
        """Say how members of a group read a topic that leave it to the brokers
        (``setConsumeMode``, code 401); the addresses of the brokers. Such are push consumers with
        ``client_rebalance=False``.

        Args:
            group: its name; brokers have to know it.
            topic: its name; brokers have to know it.
            mode: PULL, in the order of the queues, or POP, message by message; in any case.
            share_queues: with POP: how many of the members after it each one helps; 0: all.
            cluster: on all masters of this one; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ConfigError: there is no such mode.
            ClientError: no such cluster; or some took it and some did not: the text says who.
            BrokerError, RemotingError: none took it.
        """
        wanted = mode.upper()
        if wanted not in ("PULL", "POP"):
            raise ConfigError(f"mode is {mode!r}; it must be PULL or POP")
        body = encode_body(
            MessageRequestMode(
                consumer_group=group,
                topic=topic,
                mode="POP" if wanted == "POP" else "PULL",
                pop_share_queue_num=share_queues,
            )
        )
        return await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda address: self.access.ask(
                address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body
            ),
            f"the mode of group {group!r} could not be set",
        )

    async def delete_group(
        self, group: str, *, cluster: str = "", broker: str = "", remove_offsets: bool = False
    ) -> list[str]:
        """Delete a group (``deleteSubGroup``, code 207); the addresses of the brokers. Where it is
        deleted on a whole cluster, its retry and dead-letter topics go too.

        Args:
            group: its name.
            cluster: on all masters of this one; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then, and the topics stay.
            remove_offsets: what it consumed is forgotten too.

        Raises:
            ClientError: it is RocketMQ's own; no such cluster; or some did it and some did not: the
                text says who.
            BrokerError, RemotingError: none did it.
        """
        if is_system_group(group):
            raise ClientError(f"group {group!r} belongs to RocketMQ itself; it must stay")
        header = DeleteGroupHeader(group_name=group, remove_offset=remove_offsets).encode()
        addresses = await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda address: self.access.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
            f"group {group!r} could not be deleted",
        )
        if not broker:
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                try:
                    await self.delete_topic(prefix + group, cluster=cluster)
                except TopicRouteNotFoundError:
                    continue  # it never had one
        return addresses


async def _group_table(
    access: Access, broker: str, header: Mapping[str, object] | None = None
) -> dict[str, SubscriptionGroupConfig]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    response = await access.ask(broker, code, header)
    answer = await read_struct(response, SubscriptionGroupTable, "the groups", broker)
    return answer.subscription_group_table


async def group_states_told(
    admin: GroupRequests, *, cluster: str = "", internal: bool = False
) -> tuple[dict[str, GroupState], dict[str, KeroloxError]]:
    """The same as far as masters tell, and why the others do not, by broker's name.

    Raises:
        ClientError: there is no such cluster.
        RemotingError: no name server answers.
    """
    info = await admin.cluster_info()
    masters = {
        node.addresses[MASTER_ID]: node.broker_name
        for node in info.nodes(cluster)
        if node.addresses.get(MASTER_ID)
    }

    async def query(address: str) -> tuple[dict[str, SubscriptionGroupConfig], set[str]]:
        return (
            await admin.all_group_settings(address, internal=internal),
            await _groups_with_offsets(admin.access, address),
        )

    delivering: dict[str, list[str]] = {}
    paused: dict[str, list[str]] = {}
    names: set[str] = set()
    found, failed = await answers_of(masters, query)
    for address, (table, others) in found.items():
        names.update(table, (each for each in others if internal or not is_system_group(each)))
        for name, settings in table.items():
            states = delivering if settings.consume_enable else paused
            states.setdefault(name, []).append(masters[address])
    told = {
        name: GroupState(
            name, tuple(sorted(delivering.get(name, ()))), tuple(sorted(paused.get(name, ())))
        )
        for name in sorted(names)
    }
    return told, {masters[address]: error for address, error in failed.items()}


async def _groups_with_offsets(access: Access, broker: str) -> set[str]:
    """The groups that a broker has offsets of, with settings or without (code 43)."""
    try:
        response = await access.ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = (await read_object(response, "the offsets", broker)).members("offsetTable")
    except (BrokerError, RemoteProtocolError):
        # Who may not see all offsets, or as many as can't be read, sees the groups with settings.
        return set()
    pairs = [key.split(OFFSET_KEY_SEPARATOR) for key in table.own_names()]
    return {pair[1] for pair in pairs if len(pair) == 2 and not is_marks_group(pair[1])}


def _check_retries(queues: int | None, times: int | None, drop: bool) -> None:
    """Refuse what an operator can't want, unless it is said twice. None: not given."""
    if queues is not None and not 0 <= queues <= RETRY_QUEUES_MAX:
        raise ConfigError(f"{queues} retry queues; from 1 to {RETRY_QUEUES_MAX} fit")
    if queues == 0 and not drop:
        raise ConfigError(
            "without retry queues brokers drop each message that the group gives back: it is not "
            "tried again and is no dead letter. If that is wanted: drop_retries=True "
            "(--drop-retries)"
        )
    if drop and queues != 0:
        raise ConfigError("drop_retries (--drop-retries) goes with 0 retry queues alone")
    if times is not None and times < 0:
        raise ConfigError(
            f"{times} retries; 0 makes a message a dead letter when it fails for the first time"
        )
