"""Pops (200050) and what belongs to them: peeks (200052), notifications (200054), how many wait
(200055) and the way back to records (200056); by the rules of ``PopMessageProcessor``.

Those that find nothing wait in :class:`~kerolox.broker.services.held_pops.HeldPops`, and then ask
again, with all checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kerolox.broker.context import Context
from kerolox.broker.errors import no_permission, parse_failed
from kerolox.broker.pop.checks import (
    check_group,
    check_invisible,
    check_poll,
    check_queue,
    check_topic,
)
from kerolox.broker.services.filtered_pull import PullFilter
from kerolox.broker.services.held_pops import HeldPop
from kerolox.broker.services.pop_reader import Popped, PopWish
from kerolox.broker.tables.filters import compile_expression
from kerolox.errors import BrokerError
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.tags import TAGS_MAX, subscription_of
from kerolox.kernel.status import GetMessageStatus
from kerolox.protocol.codes import Perm, RequestCode, ResponseCode
from kerolox.protocol.headers import (
    EmptyHeader,
    NotificationAnswer,
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoAnswer,
    PollingInfoHeader,
    PopMessageAnswer,
    PopMessageHeader,
)
from kerolox.protocol.names import LMQ_PREFIX
from kerolox.protocol.pop import msg_offset_info, order_count_info, start_offset_info
from kerolox.protocol.pop_names import ORDER_REVIVE_QUEUE, POP_MESSAGES_MAX
from kerolox.protocol.records import store_time_of
from kerolox.remoting.router import Reply, Request, Router

TAG = "TAG"

router: Router[Context] = Router()


def refuse(refusal: BrokerError | None) -> None:
    """Raise a refusal, if there is one."""
    if refusal is not None:
        raise refusal


@router.on(RequestCode.POP_MESSAGE, PopMessageHeader.decode)
async def pop_message(broker: Context, header: PopMessageHeader, request: Request) -> Reply | None:
    """Take messages, or wait until there are some."""
    check_place(broker, header, request, "pop message")
    config = broker.config
    now_ms = broker.now_ms()
    refuse(
        check_poll(
            config.broker_ip1, header.max_msg_nums, header.born_time, header.poll_time, now_ms
        )
    )
    refuse(check_invisible(header.invisible_time, is_change=False))
    if (header.exp_type or TAG) != TAG and header.exp:
        await broker.tables.filters.prepare(header.exp, header.exp_type or "")
    wish = PopWish(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=max(header.queue_id, -1),
        count=header.max_msg_nums,
        invisible_ms=header.invisible_time,
        init_mode=header.init_mode,
        is_order=header.order,
        attempt_id=header.attempt_id,
        owner=broker.tables.clients.named(header.consumer_group, request.connection),
    )
    return _Pop(broker, header, request, _filtered(wish, header)).answer()


def check_place(
    broker: Context,
    header: PopMessageHeader | PeekMessageHeader | NotificationHeader | PollingInfoHeader,
    request: Request,
    doing: str,
) -> None:
    """Refuse what a group may not read of a queue of a topic here. BrokerError: code 16: broker,
    topic or group may not be read, or another broker leads; 17, 26: there is no such topic, or
    group; 29: no such queue, or one that can't be popped.
    """
    config, tables = broker.config, broker.tables
    if not config.broker_permission & Perm.READ:
        raise no_permission(f"the broker[{config.broker_ip1}] {doing} is forbidden")
    if broker.role.current.is_slave:
        raise no_permission(
            f"the broker[{config.broker_ip1}] is a slave, where {doing} is forbidden; ask the "
            "master, which the route of the topic names"
        )
    if header.topic.startswith(LMQ_PREFIX):
        raise BrokerError(
            f"the light message queue[{header.topic}] can't be popped; pull it",
            code=ResponseCode.INVALID_PARAMETER,
        )
    topic = tables.topics.get(header.topic)
    refuse(check_topic(topic, header.topic))
    address = f"/{request.connection.remote_address}"
    refuse(check_queue(topic, header.topic, max(header.queue_id, -1), address, is_pop=True))
    group = tables.groups.find(header.consumer_group)
    refuse(check_group(group, header.consumer_group, header.topic))


def _filtered(wish: PopWish, header: PopMessageHeader) -> PopWish:
    """With the filter that a pop names; BrokerError, code 23: it can't be understood, or has too
    many tags.
    """
    if not header.exp:
        return wish
    if (header.exp_type or TAG) != TAG:
        try:
            expression = compile_expression(header.exp, header.exp_type or "")
        except Sql92Error:
            raise parse_failed() from None
        return replace(wish, filter=PullFilter(expression.matches))
    try:
        subscription = subscription_of(header.topic, header.exp)
    except ValueError:
        raise parse_failed() from None
    if len(subscription.codes) > TAGS_MAX:
        raise BrokerError(
            f"the pop names {len(subscription.codes)} tags; at most {TAGS_MAX} are allowed, use * "
            "or an expression",
            code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        )
    return replace(wish, tag_codes=subscription.tag_codes)


@dataclass(frozen=True, slots=True)
class _Pop:
    """A pop, and who answers it."""

    broker: Context
    header: PopMessageHeader
    request: Request
    wish: PopWish

    def answer(self) -> Reply | None:
        """The reply; None: it waits."""
        short_way = self.request.connection.short_way
        is_empty = short_way is not None and short_way.found_nothing
        found = Popped(0) if is_empty else self._popped()
        if found.batches:
            return self._reply(found)
        if self.header.poll_time <= 0 or self.request.command.is_oneway:
            return self._empty(ResponseCode.POLLING_TIMEOUT)
        if self.request.connection.closed:
            return None
        held = held_pop(self.broker, self.wish, self.request, self._try_again, self._give_up)
        is_held = self.broker.popping.held.hold(
            held, self.header.poll_time, is_starved=found.is_starved, free_at=found.free_at
        )
        if not is_held:
            is_stopping = not self.broker.arrivals.may_hold
            code = ResponseCode.POLLING_TIMEOUT if is_stopping else ResponseCode.POLLING_FULL
            return self._empty(code)
        if found.is_unfinished:
            self.broker.popping.held.wake(self.wish.topic, self.wish.group)
        return None

    def _popped(self) -> Popped:
        start = time.monotonic()
        found = self.broker.popping.reader.pop(self.wish)
        if found.batches and self.wish.filter is not None:
            # The kernel counts what it filters.
            self._note(found, round((time.monotonic() - start) * 1000))
        return found

    def _note(self, found: Popped, milliseconds: int) -> None:
        at = 0
        for batch in found.batches:
            records = found.records[at : at + len(batch.offsets)]
            at += len(records)
            self.broker.broker_stats.note_got(
                self.wish.group,
                batch.kind.topic(self.wish.topic, self.wish.group),
                batch.queue_id,
                messages=len(records),
                size=sum(map(len, records)),
                milliseconds=milliseconds,
            )
            if self.broker.config.measures:
                self.broker.store_stats.note_delivery(store_time_of(records[0]))

    def _try_again(self) -> bool:
        short_way = self.request.connection.short_way
        # A short way knows no accounts, but all else that is to be checked.
        is_checked_first = short_way is None or self.broker.guards.access.is_on
        try:
            if is_checked_first:
                check_again(self.broker, self.header, self.request, "pop message")
            if short_way is not None:
                is_answered = short_way.try_again()
                if is_answered is not None:
                    return is_answered
            if not is_checked_first:
                check_again(self.broker, self.header, self.request, "pop message")
            found = self._popped()
        except BrokerError as error:
            self.request.answer(Reply(error.code, error.remark))
            return True
        if found.batches:
            self.request.answer(self._reply(found))
            return True
        held = self.broker.popping.held
        place = self.wish.topic, self.wish.group
        held.note(place, is_starved=found.is_starved, free_at=found.free_at)
        if found.is_unfinished:
            held.wake(*place)
        return False

    def _give_up(self) -> None:
        self.request.answer(self._empty(ResponseCode.POLLING_TIMEOUT))

    def _reply(self, found: Popped) -> Reply:
        counts = order_count_info(found.batches) if self.wish.is_order else None
        answer = PopMessageAnswer(
            pop_time=found.pop_time,
            invisible_time=self.wish.invisible_ms,
            revive_qid=ORDER_REVIVE_QUEUE if self.wish.is_order else 0,
            rest_num=found.rest,
            start_offset_info=start_offset_info(found.batches),
            msg_offset_info=msg_offset_info(found.batches),
            order_count_info=counts or None,
        )
        return Reply(
            ResponseCode.SUCCESS,
            GetMessageStatus.FOUND.name,
            answer.encode(),
            b"".join(found.records),
        )

    def _empty(self, code: ResponseCode) -> Reply:
        answer = PopMessageAnswer(
            pop_time=self.broker.now_ms(),
            invisible_time=self.wish.invisible_ms,
            revive_qid=ORDER_REVIVE_QUEUE if self.wish.is_order else 0,
            rest_num=0,
        )
        return Reply(code, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name, answer.encode())


def held_pop(
    broker: Context,
    wish: PopWish,
    request: Request,
    try_again: Callable[[], bool],
    give_up: Callable[[], None],
) -> HeldPop:
    """A request as it waits."""
    return HeldPop(
        topic=wish.topic,
        group=wish.group,
        queue_id=wish.queue_id,
        connection_id=request.connection.connection_id,
        try_again=try_again,
        give_up=give_up,
    )


def check_again(
    broker: Context,
    header: PopMessageHeader | NotificationHeader,
    request: Request,
    doing: str,
) -> None:
    """The same as :func:`check_place` of a request that has waited: everything may have changed.
    BrokerError, code 1: it is not allowed any more.
    """
    broker.guards.access.admit(request.command, request.connection)
    check_place(broker, header, request, doing)


# -- notifications ------------------------------------------------------------------------------
@router.on(RequestCode.NOTIFICATION, NotificationHeader.decode)
async def notification(
    broker: Context, header: NotificationHeader, request: Request
) -> Reply | None:
    """Wait until a pop would find something, a filter aside."""
    check_place(broker, header, request, "peeking message")
    wish = PopWish(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=max(header.queue_id, -1),
        count=1,
        is_order=header.order,
        attempt_id=header.attempt_id,
    )
    reader, held = broker.popping.reader, broker.popping.held
    found = reader.has_message(wish)
    if found is None:
        return _notified(has_message=True)
    late_ms = broker.now_ms() - header.born_time if header.born_time > 0 else 0
    if header.poll_time - max(late_ms, 0) <= 0 or request.command.is_oneway:
        return _notified(has_message=False)

    def try_again() -> bool:
        try:
            check_again(broker, header, request, "peeking message")
        except BrokerError as error:
            request.answer(Reply(error.code, error.remark))
            return True
        left = reader.has_message(wish)
        if left is None:
            request.answer(_notified(has_message=True))
            return True
        place = wish.topic, wish.group
        held.note(place, is_starved=left.is_starved, free_at=left.free_at)
        return False

    def give_up() -> None:
        request.answer(_notified(has_message=False))

    if request.connection.closed:
        return None
    waiting = held_pop(broker, wish, request, try_again, give_up)
    if held.hold(waiting, header.poll_time, is_starved=found.is_starved, free_at=found.free_at):
        return None
    return _notified(has_message=False, is_full=broker.arrivals.may_hold)


def _notified(*, has_message: bool, is_full: bool = False) -> Reply:
    answer = NotificationAnswer(has_msg=has_message, polling_full=is_full)
    return Reply(fields=answer.encode())


@router.on(RequestCode.POLLING_INFO, PollingInfoHeader.decode)
async def polling_info(broker: Context, header: PollingInfoHeader, request: Request) -> Reply:
    """How many pops and notifications of a group wait for a queue, or with -1 for all."""
    check_place(broker, header, request, "peeking message")
    count = broker.popping.held.count(header.topic, header.consumer_group, header.queue_id)
    return Reply(fields=PollingInfoAnswer(polling_num=count).encode())


# -- looks --------------------------------------------------------------------------------------
@router.on(RequestCode.PEEK_MESSAGE, PeekMessageHeader.decode)
async def peek_message(broker: Context, header: PeekMessageHeader, request: Request) -> Reply:
    """What a pop would get, without taking it."""
    check_place(broker, header, request, "peeking message")
    wish = PopWish(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=max(header.queue_id, -1),
        count=min(max(header.max_msg_nums, 1), POP_MESSAGES_MAX),
    )
    found = broker.popping.reader.peek(wish)
    answer = PopMessageAnswer(
        pop_time=found.pop_time, invisible_time=0, revive_qid=0, rest_num=found.rest
    )
    if not found.records:
        name = GetMessageStatus.NO_MESSAGE_IN_QUEUE.name
        return Reply(ResponseCode.PULL_NOT_FOUND, name, answer.encode())
    body = b"".join(found.records)
    return Reply(ResponseCode.SUCCESS, GetMessageStatus.FOUND.name, answer.encode(), body)


@router.on(RequestCode.POP_ROLLBACK, EmptyHeader.decode, changes=True)
async def pop_rollback(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Bring what is out back to the form of records, for which there is nothing to do: it is kept
    in no other store."""
    broker.audit.changed(request, "pops", "rollback", None, "nothing to do")
    return Reply()
