"""Moving a group to a position in its queues: planned first, then done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kerolox.admin.asking import all_answers, is_kerolox, masters_of_topic, nodes_of_topic
from kerolox.admin.consumers.offsets import END, OffsetRequests
from kerolox.admin.messages.reading import nearest_offset
from kerolox.admin.positions import Position, PositionKind
from kerolox.admin.topics import queue_statuses
from kerolox.client.aio.network.times import first_since
from kerolox.client.core.checking import checked
from kerolox.errors import ClientError, ConsumerNotOnlineError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import ResetOffsetHeader


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """Where a group stands in a queue, and where it is to stand."""

    queue: MessageQueue
    old: int
    """-1: the group has no offset of it."""
    new: int
    min_offset: int
    """Of the first message that is there."""
    max_offset: int
    """Of the next message that comes."""

    @property
    def again(self) -> int:
        """Messages that the group gets once more."""
        return max(self.old - self.new, 0) if self.old >= 0 else 0

    @property
    def skipped(self) -> int:
        """Messages that the group has not consumed and will not get."""
        return max(self.new - max(self.old, self.min_offset), 0)


@checked()
class OffsetMoveRequests(OffsetRequests):
    """Moves offsets of a group to positions."""

    async def move_offsets(
        self,
        group: str,
        topic: str,
        position: Position,
        *,
        queues: Collection[MessageQueue] = (),
        dry_run: bool = False,
    ) -> list[OffsetMove]:
        """Have a group go on at a position of each queue; sorted by queue. Members that are online
        get a notice (code 222) and go on there. Where nobody is, the broker sets the offset (code
        15).

        A time is the first message from then on. Members that are online at a broker of RocketMQ 4
        go to the message nearest to the time, which may be an older one. So that broker does it,
        and so the plan says.

        Args:
            group: its name.
            topic: the topic.
            position: in each queue.
            queues: only these; empty: all of the topic.
            dry_run: only say what would be done.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            ClientError: the topic has no such queue; a broker of it has no master now; or members
                are online at a broker of RocketMQ 4, which can have them go on at a time only, in
                all queues of the topic. Nothing was changed then.
            BrokerError, RemotingError: a broker refused or does not answer. The offsets of other
                queues may be moved by then.
        """
        nodes = await (nodes_of_topic if dry_run else masters_of_topic)(self, topic)
        plans = await all_answers(
            nodes.values(), lambda address: self._plan(group, topic, position, address)
        )
        at = {each.queue: address for address, plan in plans.items() for each in plan}
        moves = {each.queue: each for plan in plans.values() for each in plan}
        if unknown := set(queues) - moves.keys():
            queue = min(unknown)
            raise ClientError(
                f"topic {topic!r} has no queue {queue.broker_name}/{queue.queue_id}; it has "
                + ", ".join(f"{each.broker_name}/{each.queue_id}" for each in sorted(moves))
            )
        wanted = [moves[queue] for queue in sorted(queues or moves)]
        if not dry_run:
            timestamp_ms = None if queues else _timestamp_ms(position)
            await self._move(group, topic, wanted, at, timestamp_ms)
        return wanted

    async def _plan(
        self, group: str, topic: str, position: Position, address: str
    ) -> list[OffsetMove]:
        statuses = await queue_statuses(self.access, address, topic)
        is_nearest = (
            position.kind is PositionKind.TIME
            and await self._is_online(group, address)
            and not await is_kerolox(self, address)
        )

        async def move(queue: MessageQueue) -> OffsetMove:
            bounds = statuses[queue].min_offset, statuses[queue].max_offset
            old = await self.get_offset(group, queue, broker=address)

            async def by_time(when: int) -> int:
                if is_nearest:
                    return await nearest_offset(self.access, queue, when, broker=address)
                return await first_since(self.access, queue, when, address=address, bounds=bounds)

            return OffsetMove(queue, old, await position.offset(bounds, by_time), *bounds)

        return list((await all_answers(statuses, move)).values())

    async def _move(
        self,
        group: str,
        topic: str,
        moves: list[OffsetMove],
        at: dict[MessageQueue, str],
        timestamp_ms: int | None,
    ) -> None:
        """``at``: the address of each queue's broker. ``timestamp_ms``: that of all queues of
        the topic, as code 222 has it; None: each queue has an offset of its own, which only
        brokers of ours tell their members. They get the offsets where a time is meant, too:
        code 222 itself takes the message that is nearest to it.
        """
        addresses = {at[each.queue] for each in moves}
        online = await all_answers(addresses, lambda address: self._is_online(group, address))
        time_moves: list[str] = []
        for address, has_members in online.items():
            if not has_members:
                continue
            if timestamp_ms in (0, END):
                time_moves.append(address)
            elif await is_kerolox(self, address):
                continue
            elif timestamp_ms is not None:
                time_moves.append(address)
            else:
                raise ClientError(
                    f"members of group {group!r} are online at {address}, a broker of RocketMQ 4, "
                    "which can only send all queues of a topic to a time: stop the members first, "
                    "or reset the group to a time"
                )

        async def send(address: str, queue_id: int, offset: int) -> None:
            fields = _reset_fields(group, topic, timestamp_ms or 0, queue_id, offset)
            await self.access.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)

        async def move_on(address: str) -> None:
            # One after the other: of two first offsets of a group at once a Java broker may lose
            # one.
            for each in moves:
                if at[each.queue] != address:
                    continue
                if not online[address]:
                    await self.set_offset(group, each.queue, each.new)
                elif address not in time_moves:
                    await send(address, each.queue.queue_id, each.new)

        await all_answers(addresses, move_on)
        await all_answers(time_moves, lambda address: send(address, -1, -1))

    async def _is_online(self, group: str, address: str) -> bool:
        try:
            await self.consumer_connections(group, broker=address)
        except ConsumerNotOnlineError:
            return False
        return True


def _reset_fields(
    group: str, topic: str, timestamp_ms: int, queue_id: int, offset: int
) -> dict[str, str]:
    header = ResetOffsetHeader(
        topic=topic,
        group=group,
        timestamp=timestamp_ms,
        is_force=True,
        queue_id=queue_id,
        offset=offset,
    )
    fields = header.encode()
    if queue_id < 0:
        # Tools of 4.x do not name a queue.
        for name in ("queue_id", "offset"):
            fields.pop(ResetOffsetHeader.wire_name(name))
    return fields


def _timestamp_ms(position: Position) -> int | None:
    """A position of a whole topic as code 222 knows it: a time; None: it is no time."""
    match position.kind:
        case PositionKind.BEGINNING:
            return 0
        case PositionKind.END:
            return END
        case PositionKind.TIME:
            return position.number
        case PositionKind.BACK | PositionKind.OFFSET:
            return None
