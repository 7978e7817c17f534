"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), by the rules of ``PullMessageProcessor``.

The kernel answers most pulls. Here come those of groups and topics that it does not know or may not
serve. So do those with an outdated subscription, and those whose offset is outside the queue. A
pull that finds nothing and may wait is handed to the kernel, which answers it when a record
arrives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.broker.context import Context
from kerolox.broker.errors import (
    no_expression_filter,
    no_group,
    no_permission,
    no_topic,
    parse_failed,
    system_busy,
    system_error,
)
from kerolox.broker.hooks import PullContext, run_hooks
from kerolox.broker.services import filtered_pull
from kerolox.broker.services.filtered_pull import PullFilter, PullPlace
from kerolox.broker.services.writer import NewRecord
from kerolox.broker.tables.filters import compile_expression
from kerolox.errors import BrokerError
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.tags import TAGS_MAX, subscription_of
from kerolox.kernel.held_pulls import (
    HELD_OF_CONNECTION_MAX,
    HELD_PULLS_MAX,
    OFFSET_WAITS_MAX,
    PASSED_OVER_MS,
)
from kerolox.kernel.status import GetMessageStatus, pull_code
from kerolox.kernel.values import Read
from kerolox.message import MessageQueue, PropertyKey, encode_properties
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig, encode_body
from kerolox.protocol.codes import (
    MASTER_ID,
    PULL_COUNT_MAX,
    SEE_FAQ,
    Perm,
    PullSysFlag,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.headers import PullMessageHeader
from kerolox.protocol.names import CONSUME_ACTIVELY, OFFSET_MOVED_TOPIC, RETRY_PREFIX
from kerolox.protocol.records import store_time_of
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices

_log = logging.getLogger(__name__)

router: Router[Context] = Router()


@router.on(RequestCode.LITE_PULL_MESSAGE, PullMessageHeader.decode)
@router.on(RequestCode.PULL_MESSAGE, PullMessageHeader.decode)
async def pull_message(
    broker: Context, header: PullMessageHeader, request: Request
) -> Reply | None:
    """Read messages of a queue, or hold the request until there are some.

    The lite consumers of 5.x ask the same under a code of their own, so that a 5.x broker may
    answer them with other threads.
    """
    return await _Pull(broker, header, request).answer()


class _Wanted(NamedTuple):
    """What a group wants of a topic."""

    tag_codes: Sequence[int] | None = None
    """The codes to match; None: all."""
    filter: PullFilter | None = None
    """What else has to hold."""


@dataclass(frozen=True, slots=True)
class _Pull:
    """A pull, and who answers it."""

    broker: Context
    header: PullMessageHeader
    request: Request

    async def answer(self) -> Reply | None:
        """The reply; None: it waits, or comes by itself."""
        group = self._checked_group()
        self._checked_topic()
        if self.header.sys_flag & PullSysFlag.SUBSCRIPTION and self.header.subscription:
            await self.broker.tables.filters.prepare(
                self.header.subscription, self.header.expression_type or ""
            )
        elif not self.header.sys_flag & PullSysFlag.SUBSCRIPTION:
            await self._follow()
        wanted = self._wanted(group)
        count = min(max(self.header.max_msg_nums, 1), PULL_COUNT_MAX)
        place = PullPlace(self.header.topic, self.header.queue_id, self.header.queue_offset, count)
        was_stale = self.broker.tables.offsets.is_stale(*self._reader())
        start = self._start_anew(place.offset) if was_stale else None
        if start is not None:
            return await self._moved(place, start)
        if self._commits(place.offset, was_stale=was_stale):
            self.broker.tables.offsets.commit(
                self.header.consumer_group,
                self.header.topic,
                self.header.queue_id,
                self.header.commit_offset,
                self.request.connection.remote_address,
            )
        result = self._read(place, wanted)
        code = ResponseCode(pull_code(result.status, self.header.queue_offset))
        if code == ResponseCode.PULL_NOT_FOUND and self._held(place, wanted):
            return None
        if code == ResponseCode.PULL_OFFSET_MOVED:
            return await self._answer_moved(self._from_the_start(result))
        if self.broker.pull_hooks:
            self._run_hooks(code, result)
        return self._reply(code, result)

    def _commits(self, offset: int, *, was_stale: bool) -> bool:
        """Whether the pull brings an offset along that counts."""
        is_asked = self.header.sys_flag & PullSysFlag.COMMIT_OFFSET
        if not is_asked or self.broker.role.current.is_slave:
            return False
        offsets = self.broker.tables.offsets
        commit_offset = self.header.commit_offset
        if offsets.is_behind_the_end(self.header.topic, self.header.queue_id, commit_offset):
            return False
        # What it brings along is of before, too.
        return not was_stale or (commit_offset <= offset and not offsets.is_stale(*self._reader()))

    def _reader(self) -> tuple[str, str, int, int]:
        """Who reads which queue, as ``OffsetTable.is_stale`` asks for it."""
        connection_id = self.request.connection.connection_id
        return self.header.consumer_group, self.header.topic, self.header.queue_id, connection_id

    def _start_anew(self, offset: int) -> int | None:
        """Where a group that is stale has to go on; None: the pull is well where it is.

        A pull consumer that keeps its offsets itself means what it asks for, so one that is a
        member is told once, in case that it was there before. Whoever is no member, as a tool or
        Spark, reads where it wants; what is behind the end of a queue is of before.
        """
        group, topic, queue_id, connection_id = self._reader()
        is_member = self.broker.tables.clients.is_member(group, self.request.connection)
        online = self.broker.tables.clients.group(group)
        is_push = is_member and online is not None and online.consume_type != CONSUME_ACTIVELY
        is_lite = (
            self.header.sys_flag & PullSysFlag.LITE_PULL
            or self.request.command.code == RequestCode.LITE_PULL_MESSAGE
        )
        keeps_offsets = (
            self.header.sys_flag & PullSysFlag.SUBSCRIPTION and not is_lite and not is_push
        )
        if keeps_offsets and not is_member:
            if offset > self.broker.store.queue_bounds(topic, queue_id)[1]:
                return self.broker.tables.offsets.start_of(group, topic, queue_id)
            if not self.broker.tables.offsets.stale.is_known(topic, group, queue_id):
                self.broker.tables.offsets.stale.refresh(topic, group, queue_id)
            return None
        start = self.broker.tables.offsets.start_of(group, topic, queue_id)
        if (keeps_offsets or offset <= start) and not self.broker.role.current.is_slave:
            self.broker.tables.offsets.begins(group, topic, queue_id, connection_id)
        return start if offset > start else None

    def _from_the_start(self, result: Read) -> Read:
        """What is behind the end of a queue that was deleted lately is of before: the reader goes
        on at its start, not at its end."""
        group, topic, queue_id, _ = self._reader()
        offsets = self.broker.tables.offsets
        if not offsets.is_behind_the_end(topic, queue_id, self.header.queue_offset):
            return result
        return result._replace(next_offset=offsets.start_of(group, topic, queue_id))

    async def _moved(self, place: PullPlace, start: int) -> Reply:
        """The answer to a pull of an earlier life of its queue."""
        low, high = self.broker.store.queue_bounds(place.topic, place.queue_id)
        status = int(GetMessageStatus.OFFSET_OVERFLOW_BADLY)
        result = Read(status, start, low, high, suggest_slave=False, count=0, records=b"")
        return await self._answer_moved(result)

    async def _answer_moved(self, result: Read) -> Reply:
        """The answer to a pull that has to go on elsewhere, and the event of it."""
        code = ResponseCode.PULL_OFFSET_MOVED
        if self.broker.role.current.is_slave and not self.broker.config.offset_check_in_slave:
            # The master knows better: a slave may lack what is there.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            result = result._replace(next_offset=self.header.queue_offset)
        else:
            await self._write_offset_moved(result.next_offset)
        if self.broker.pull_hooks:
            self._run_hooks(code, result)
        return self._reply(code, result)

    def _run_hooks(self, code: ResponseCode, result: Read) -> None:
        context = PullContext(
            group=self.header.consumer_group,
            topic=self.header.topic,
            queue_id=self.header.queue_id,
            client=self.request.connection.remote_address,
            owner=self.request.command.ext_fields.get("Owner", ""),
            code=code,
            messages=result.count,
            size=len(result.records),
        )
        run_hooks(self.broker.pull_hooks, lambda hook: hook.before_answer(context))

    def _read(self, place: PullPlace, wanted: _Wanted) -> Read:
        """Read what is wanted, and count what was found."""
        if wanted.filter is None:
            return self.broker.store.read(*place, wanted.tag_codes, self.header.consumer_group)
        return self._read_filtered(place, wanted.filter)

    def _read_filtered(self, place: PullPlace, wanted: PullFilter) -> Read:
        """Read with a filter, and count what was found."""
        start = time.monotonic()
        result = filtered_pull.read(self.broker.config, self.broker.store, place, wanted)
        if result.count:
            self.broker.broker_stats.note_got(
                self.header.consumer_group,
                place.topic,
                place.queue_id,
                messages=result.count,
                size=len(result.records),
                milliseconds=round((time.monotonic() - start) * 1000),
            )
            if self.broker.config.measures:
                self.broker.store_stats.note_delivery(store_time_of(result.records))
        return result

    def _reply(self, code: ResponseCode, result: Read) -> Reply:
        group = self.broker.tables.groups.get(self.header.consumer_group)
        suggested = MASTER_ID
        if self.broker.config.slave_read_enable and group is not None:
            slow = result.suggest_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        fields = {
            "suggestWhichBrokerId": suggested,
            "nextBeginOffset": result.next_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
        }
        return Reply(code, GetMessageStatus(result.status).name, fields, result.records)

    def _checked_group(self) -> SubscriptionGroupConfig:
        config = self.broker.config
        if not config.broker_permission & Perm.READ:
            raise no_permission(f"the broker[{config.broker_ip1}] pulling message is forbidden")
        group = self.broker.tables.groups.find(self.header.consumer_group)
        if group is None:
            raise no_group(self.header.consumer_group)
        if not group.consume_enable:
            raise no_permission(f"subscription group no permission, {self.header.consumer_group}")
        return group

    def _checked_topic(self) -> TopicConfig:
        topic = self.broker.tables.topics.get(self.header.topic)
        if topic is None:
            raise no_topic(self.header.topic)
        if not topic.perm & Perm.READ:
            raise no_permission(f"the topic[{self.header.topic}] pulling message is forbidden")
        if not 0 <= self.header.queue_id < topic.read_queue_nums:
            raise system_error(
                f"queueId[{self.header.queue_id}] is illegal, topic:[{self.header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[/{self.request.connection.remote_address}]"
            )
        return topic

    def _wanted(self, group: SubscriptionGroupConfig) -> _Wanted:
        """What the pull itself or the group's heartbeat says."""
        if self.header.sys_flag & PullSysFlag.SUBSCRIPTION:
            if self.header.expression_type not in (None, "", "TAG"):
                return self._by_expression()
            try:
                subscription = subscription_of(self.header.topic, self.header.subscription)
            except ValueError:
                raise parse_failed() from None
            if len(subscription.codes) > TAGS_MAX:
                raise BrokerError(
                    f"the consumer's subscription has {len(subscription.codes)} tags; at most "
                    f"{TAGS_MAX} are allowed, use * or an expression",
                    code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                )
            return _Wanted(subscription.tag_codes, self._retry_filter())
        online = self.broker.tables.clients.group(self.header.consumer_group)
        if online is None:
            raise BrokerError(
                f"the consumer's group info not exist{SEE_FAQ}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if not group.consume_broadcast_enable and online.message_model == "BROADCASTING":
            raise no_permission(
                f"the consumer group[{self.header.consumer_group}] can not consume by broadcast way"
            )
        known = online.subscriptions.get(self.header.topic)
        if known is None:
            raise BrokerError(
                f"the consumer's subscription not exist{SEE_FAQ}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if online.wanted.newest[self.header.topic] < self.header.sub_version:
            raise BrokerError(
                "the consumer's subscription not latest", code=ResponseCode.SUBSCRIPTION_NOT_LATEST
            )
        if known.is_tag_type:
            return _Wanted(known.tag_codes, self._retry_filter())
        kept = self.broker.tables.filters.get(self.header.topic, self.header.consumer_group)
        if kept is None:
            raise BrokerError(
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
                code=ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        if not kept.is_of(known):
            raise BrokerError(
                "the consumer's consumer filter data not latest",
                code=ResponseCode.FILTER_DATA_NOT_LATEST,
            )
        if not self.broker.config.enable_property_filter:
            raise no_expression_filter(known.expression_type)
        if kept.expression is None:
            return _Wanted()
        return _Wanted(
            filter=PullFilter(kept.expression.matches, self.broker.tables.filters.bits_of(kept))
        )

    async def _follow(self) -> None:
        """Have the filter of the subscription that counts, where another one counted until the
        member left that wanted it: the others' heartbeats may be half a minute away."""
        online = self.broker.tables.clients.group(self.header.consumer_group)
        kept = self.broker.tables.filters.get(self.header.topic, self.header.consumer_group)
        if online is None or kept is None:
            return
        known = online.subscriptions.get(self.header.topic)
        if known is not None and not known.is_tag_type and not kept.is_of(known):
            await self.broker.tables.filters.register(
                self.header.consumer_group, online.subscriptions, TimeSlices()
            )

    def _by_expression(self) -> _Wanted:
        """An expression that came with the pull."""
        if not self.header.subscription:
            raise parse_failed()
        try:
            expression = compile_expression(
                self.header.subscription, self.header.expression_type or ""
            )
        except Sql92Error:
            raise parse_failed() from None
        if not self.broker.config.enable_property_filter:
            raise no_expression_filter(self.header.expression_type)
        return _Wanted(filter=PullFilter(expression.matches))

    def _retry_filter(self) -> PullFilter | None:
        """``ExpressionForRetryMessageFilter``: a retried message is filtered by what the group
        wants of the topic that it came from."""
        if not self.broker.config.filter_support_retry or not self.header.topic.startswith(
            RETRY_PREFIX
        ):
            return None

        def matches(properties: Mapping[str, str]) -> bool:
            first_topic = properties.get(PropertyKey.RETRY_TOPIC, "")
            kept = self.broker.tables.filters.get(
                first_topic, self.header.topic.removeprefix(RETRY_PREFIX)
            )
            return kept is None or kept.expression is None or kept.expression.matches(properties)

        return PullFilter(matches)

    def _held(self, place: PullPlace, wanted: _Wanted) -> bool:
        """Hold the pull if it may wait, in the kernel if that can. False: answer it now.
        BrokerError, code 2: as many pulls wait as can. An empty answer would bring it back at once.
        """
        if not self.header.sys_flag & PullSysFlag.SUSPEND or self.request.command.is_oneway:
            return False
        if self.request.connection.closed or not self.broker.arrivals.may_hold:
            # Nobody would take the pull out of the table again before its time, which may be far.
            return False
        config = self.broker.config
        wait_ms = self.header.suspend_timeout_millis
        if not config.long_polling_enable:
            wait_ms = config.short_polling_time_mills
        if wait_ms <= 0:
            return False
        if wanted.filter is not None or self.broker.pull_hooks or self.broker.guards.access.is_on:
            if self.broker.arrivals.is_full:
                raise _too_many_held(OFFSET_WAITS_MAX)
            self._log_held(place, wait_ms)
            self.broker.background.run(self._wait_for_match(place, wanted, wait_ms))
            return True
        is_held = self.broker.store.hold(
            self.request.connection.connection_id,
            int(self.request.command.serialize_type),
            self.request.command.opaque,
            self.header.consumer_group,
            *place,
            wanted.tag_codes,
            self.broker.now_ms() + wait_ms,
        )
        if not is_held:
            if self.broker.store.stats()["held_pulls"] < HELD_PULLS_MAX:
                raise _too_many_held(HELD_OF_CONNECTION_MAX, " of this connection")
            raise _too_many_held(HELD_PULLS_MAX)
        self._log_held(place, wait_ms)
        return True

    def _log_held(self, place: PullPlace, wait_ms: int) -> None:
        _log.debug(
            "a pull of group %s is held for %d ms at most: %s, queue %d from %d on",
            *(self.header.consumer_group, wait_ms, place.topic, place.queue_id, place.offset),
        )

    async def _wait_for_match(self, place: PullPlace, wanted: _Wanted, wait_ms: int) -> None:
        """Answer a pull when something came that matches, or its time is over."""
        deadline_ms = self.broker.now_ms() + wait_ms
        result = self._read(place, wanted)
        while not result.records and not self.request.connection.closed:
            if result.next_offset > place.offset:
                # What was examined is not examined again.
                place = place._replace(offset=result.next_offset)
                deadline_ms = min(deadline_ms, self.broker.now_ms() + PASSED_OVER_MS)
            if self.broker.now_ms() >= deadline_ms or result.next_offset < result.max_offset:
                # After what was examined there is more; whoever asks again goes on there.
                break
            if not self.broker.arrivals.may_hold:
                break
            connection_id = self.request.connection.connection_id
            group_name = self.header.consumer_group
            if not await self.broker.arrivals.wait(connection_id, group_name, place, deadline_ms):
                break
            if self.request.connection.closed:
                return
            try:
                self.broker.guards.access.admit(self.request.command, self.request.connection)
                group = self._checked_group()
                self._checked_topic()
                if self.broker.tables.offsets.is_stale(*self._reader()):
                    start = self._start_anew(place.offset)
                    if start is not None:
                        self.request.answer(await self._moved(place, start))
                        return
                if not self.header.sys_flag & PullSysFlag.SUBSCRIPTION:
                    # A heartbeat may have told of another expression, or of tags.
                    wanted = self._wanted(group)
            except BrokerError as error:
                self.request.answer(Reply(error.code, error.remark))
                return
            result = self._read(place, wanted)
        if not self.request.connection.closed:
            code = ResponseCode(pull_code(result.status, place.offset))
            if self.broker.pull_hooks:
                self._run_hooks(code, result)
            self.request.answer(self._reply(code, result))

    async def _write_offset_moved(self, next_offset: int) -> None:
        """Write ``OFFSET_MOVED_EVENT``, which monitoring tools consume."""
        _log.warning(
            "offset moved: group %s, topic %s, queue %d asked for %d, goes on at %d",
            self.header.consumer_group,
            self.header.topic,
            self.header.queue_id,
            self.header.queue_offset,
            next_offset,
        )
        event = {
            "consumerGroup": self.header.consumer_group,
            "messageQueue": MessageQueue(
                self.header.topic, self.broker.config.broker_name, self.header.queue_id
            ),
            "offsetNew": next_offset,
            "offsetRequest": self.header.queue_offset,
        }
        properties: dict[str, str] = {
            PropertyKey.KEYS: self.header.consumer_group,
            PropertyKey.DELAY: "0",
            PropertyKey.TAGS: self.header.consumer_group,
        }
        await self.broker.writing.writer.put(
            NewRecord(
                topic=OFFSET_MOVED_TOPIC,
                queue_id=0,
                body=encode_body(event),
                # Nobody waits for this record to be on disk.
                properties={**properties, PropertyKey.WAIT: "false"},
                property_text=encode_properties(properties),
                born_timestamp=self.broker.now_ms(),
                born_host=self.broker.identity.store_host,
                store_host=self.broker.identity.store_host,
            )
        )


def _too_many_held(limit: int, whose: str = "") -> BrokerError:
    return system_busy(
        f"[OVERLOAD]system busy, {limit} pulls{whose} wait for messages already; try again later"
    )
