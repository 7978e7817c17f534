"""Allocation strategies that need more than the lists of queues and members.

Each gives the function that :class:`kerolox.client.PushConsumerSettings` takes as ``allocation``.
All members of a group must have the same one, made of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kerolox.client.core.consuming.rebalance import AllocationStrategy, allocate_averagely
from kerolox.client.core.routes import ROOM_END
from kerolox.errors import ClientError
from kerolox.message import MessageQueue
from kerolox.protocol.names import RETRY_PREFIX

_Item = TypeVar("_Item")


def allocate_by_config(queues: Iterable[MessageQueue]) -> AllocationStrategy:
    """CONFIG: this member reads these queues, whoever else is there.

    The queues of the group's retry topic are shared averagely, unless some are named here; with
    RocketMQ nobody reads them then.
    """
    wanted = frozenset(queues)
    names_retries = any(queue.topic.startswith(RETRY_PREFIX) for queue in wanted)

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not names_retries and any(queue.topic.startswith(RETRY_PREFIX) for queue in queues):
            return allocate_averagely(client_id, queues, client_ids)
        return [queue for queue in queues if queue in wanted]

    return allocate


def allocate_by_machine_room(rooms: Iterable[str]) -> AllocationStrategy:
    """MACHINE_ROOM: all members share the queues of brokers named ``room@name`` of these rooms.

    Queues of other brokers are read by nobody in the group.
    """
    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ours = [queue for queue in queues if _room_of(queue) in wanted]
        index, members = client_ids.index(client_id), len(client_ids)
        size, remainder = divmod(len(ours), members)
        share = ours[size * index : size * (index + 1)]
        return share + ([ours[index + size * members]] if index < remainder else [])

    return allocate


def allocate_nearby(
    inner: AllocationStrategy = allocate_averagely,
    *,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> AllocationStrategy:
    """MACHINE_ROOM_NEARBY: members read the queues of their own machine room.

    Args:
        inner: how the members of one room share; a room without members is shared by all so.
        room_of_queue: the machine room of a queue's broker.
        room_of_client: that of a member, from its client id.
    """

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of = _by_room(queues, room_of_queue)
        members_of = _by_room(client_ids, room_of_client)
        own = room_of_client(client_id)
        ours: list[MessageQueue] = []
        if own in queues_of:
            ours += inner(client_id, queues_of[own], members_of[own])
        for room in sorted(queues_of.keys() - members_of.keys()):
            ours += inner(client_id, queues_of[room], client_ids)
        return ours

    return allocate


def _room_of(queue: MessageQueue) -> str | None:
    room, separator, name = queue.broker_name.partition(ROOM_END)
    return room if separator and name and ROOM_END not in name else None


def _by_room(items: Sequence[_Item], room_of: Callable[[_Item], str]) -> dict[str, list[_Item]]:
    rooms: dict[str, list[_Item]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ClientError(f"allocate_nearby: {item!r} has no machine room")
        rooms.setdefault(room, []).append(item)
    return rooms
