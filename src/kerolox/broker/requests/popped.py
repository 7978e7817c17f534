"""What operators see of pops, and do: GET_POPPED_MESSAGES (31040), RELEASE_POPPED_MESSAGES (31041);
see :mod:`kerolox.protocol.extensions.popped`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kerolox.broker.context import Context
from kerolox.broker.errors import no_permission
from kerolox.broker.pop.copies import normal_topic
from kerolox.broker.pop.leases import Held, Instant, QueueKey
from kerolox.protocol.bodies import decode_request, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.popped import (
    ANY,
    OWNERS_MAX,
    PoppedAnswer,
    PoppedMessage,
    PoppedOwner,
    PoppedQueue,
    PoppedSelection,
)
from kerolox.protocol.headers import EmptyHeader
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices

RELEASED_PER_STEP = 1_000
"""Messages that are released before others may run."""

router: Router[Context] = Router()


@router.on(RequestCode.GET_POPPED_MESSAGES, EmptyHeader.decode)
async def popped_messages(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """What is out, and who has it for how long."""
    selection = decode_request(request.body, PoppedSelection)
    _check_master(broker)
    found = _Found(selection, broker.now_ms())
    names, slices = _names(broker, selection.group), TimeSlices()
    for key in _keys(broker, selection):
        found.take(key, _chosen(broker, selection, names, key))
        await slices.checkpoint()
    return Reply(body=encode_body(found.answer()))


@router.on(RequestCode.RELEASE_POPPED_MESSAGES, EmptyHeader.decode, changes=True)
async def release_messages(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Messages come again at once; receipts of before count no more."""
    selection = decode_request(request.body, PoppedSelection)
    _check_master(broker)
    found = _Found(selection, broker.now_ms())
    pops = broker.tables.pops
    names, slices = _names(broker, selection.group), TimeSlices()
    for key in _keys(broker, selection):
        chosen = _chosen(broker, selection, names, key)
        found.take(key, chosen)
        offsets = [each.offset for each in chosen]
        # What is done meanwhile is passed over.
        for begin in range(0, len(offsets), RELEASED_PER_STEP):
            step = frozenset(offsets[begin : begin + RELEASED_PER_STEP])
            pops.state.release(key, step, pops.now())
            await slices.checkpoint()
        # Ordered ones are read again; the others are copied first, by the task for that.
        if any(each.is_order for each in chosen):
            broker.popping.is_visible(normal_topic(key), key.group)
        await slices.checkpoint()
    answer = found.answer()
    broker.audit.changed(
        request,
        "popped",
        selection.group,
        {"out": answer.messages},
        {"released": answer.messages} if answer.messages else {"out": 0},
    )
    return Reply(body=encode_body(answer))


def _check_master(broker: Context) -> None:
    if broker.role.current.is_slave:
        raise no_permission(
            f"the broker[{broker.config.broker_ip1}] is a slave, which keeps no popped messages; "
            "ask the master"
        )


def _keys(broker: Context, selection: PoppedSelection) -> list[QueueKey]:
    """The queues that are meant and of which something is out."""
    return sorted(
        {
            key
            for key in broker.tables.pops.state.held_queues()
            if key.group == selection.group
            and selection.topic in ("", key.topic, normal_topic(key))
            and selection.queue_id in (ANY, key.queue_id)
        }
    )


def _chosen(
    broker: Context, selection: PoppedSelection, names: Mapping[str, str], key: QueueKey
) -> list[Held]:
    """The messages of a queue that are meant; those of an ordered pop all or none. ``names``: of
    owners by their addresses."""
    now = broker.tables.pops.now()
    found = [
        replace(each, owner=names[each.owner]) if each.owner in names else each
        for each in broker.tables.pops.state.held(key, now)
    ]
    chosen = [each for each in found if _is_chosen(selection, each, now)]
    return [each for each in found if each.is_order] if chosen and chosen[0].is_order else chosen


def _names(broker: Context, group: str) -> dict[str, str]:
    """Client ids of members that are online, by address: of a pop that the kernel answered that is
    all that is known."""
    found = broker.tables.clients.group(group)
    members = {} if found is None else found.members
    return {connection.remote_address: each.client_id for connection, each in members.items()}


def _is_chosen(selection: PoppedSelection, held: Held, now: Instant) -> bool:
    return (
        selection.owner in ("", held.owner)
        and selection.offset in (ANY, held.offset)
        and max(now.wall_ms - held.pop_time, 0) >= selection.held_ms
        and (selection.popped_until == ANY or held.pop_time <= selection.popped_until)
    )


class _Found:
    """Gathers an answer."""

    def __init__(self, selection: PoppedSelection, now_ms: int) -> None:
        self._now_ms = now_ms
        self._left = selection.listed
        self._newest = now_ms
        """Pop times are ahead of the clock for a moment after a release."""
        self._messages = 0
        self._queues: list[PoppedQueue] = []
        self._listed: list[PoppedMessage] = []
        self._owners: dict[str, tuple[int, int]] = {}

    def take(self, key: QueueKey, held: list[Held]) -> None:
        """What is meant of a queue."""
        if not held:
            return
        self._messages += len(held)
        self._newest = max(self._newest, *(each.pop_time for each in held))
        oldest = min(held, key=lambda each: each.pop_time)
        self._queues.append(
            PoppedQueue(
                topic=key.topic,
                queue_id=key.queue_id,
                messages=len(held),
                oldest_ms=self._held_ms(oldest.pop_time),
                oldest_owner=oldest.owner,
                is_order=held[0].is_order,
                overdue_ms=max(0, *(-each.left_ms for each in held)),
                tries=max(each.tries for each in held),
            )
        )
        for each in held:
            count, since = self._owners.get(each.owner, (0, each.pop_time))
            self._owners[each.owner] = count + 1, min(since, each.pop_time)
        self._listed += self._shown(key, held[: self._left])
        self._left -= min(self._left, len(held))

    def _shown(self, key: QueueKey, held: list[Held]) -> Iterator[PoppedMessage]:
        for each in held:
            yield PoppedMessage(
                topic=key.topic,
                queue_id=key.queue_id,
                offset=each.offset,
                owner=each.owner,
                held_ms=self._held_ms(each.pop_time),
                left_ms=each.left_ms,
                is_order=each.is_order,
            )

    def _held_ms(self, pop_time: int) -> int:
        return max(self._now_ms - pop_time, 0)

    def answer(self) -> PoppedAnswer:
        """All of it."""
        owners = heapq.nlargest(OWNERS_MAX, self._owners.items(), key=lambda each: each[1][0])
        return PoppedAnswer(
            now=self._newest,
            messages=self._messages,
            queues=self._queues,
            owners=[
                PoppedOwner(owner=owner, messages=count, oldest_ms=self._held_ms(oldest))
                for owner, (count, oldest) in owners
            ],
            listed=self._listed,
        )
