"""The tables that a slave takes from its master (``SlaveSynchronize``).

What the master says of delayed messages and of transactions may be ahead of the log that it has
sent: a message would count as delivered, or a half as stored again, and its copy be missing. So
these positions count when the log has come as far as the master's was behind them, which RocketMQ's
slave does not examine. Offsets of groups count at once: a group got what it committed. Where a pop
committed a message for a copy that is not in the log here, the master says less (``LastCopies``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kerolox.broker.base import Base
from kerolox.broker.outbound import outbound_client
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.timer import TimerService
from kerolox.broker.tables.offsets import SEPARATOR
from kerolox.broker.tables.tables import Tables
from kerolox.errors import BrokerError, KeroloxError
from kerolox.protocol.attributes import ATTRIBUTES_FIELD
from kerolox.protocol.bodies import (
    BodyError,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.roles import RoleStatus
from kerolox.protocol.headers import OffsetsHeader, TopicsHeader
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from kerolox.protocol.request_modes import MessageRequestModes
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.store.timer.checkpoint import TimerCheckpoint

REQUEST_SECONDS_MAX = 3.0

_log = logging.getLogger(__name__)


_OF_TRANSACTIONS = tuple(
    topic + SEPARATOR + TRANSACTION_GROUP for topic in (HALF_TOPIC, OP_HALF_TOPIC)
)


_WITH_ATTRIBUTES = TopicsHeader(attributes=True).encode()


class _Positions(NamedTuple):
    """How far a master's services are in its log."""

    log_end: int
    """Where that log ended after they were asked for; what they stand for is before it."""
    delays: Mapping[int, int]
    transactions: Mapping[str, Mapping[int, int]]
    timer: TimerCheckpoint | None
    """None: the master has no timer, or it waits for nothing yet."""


class _OffsetBody(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}
    staleGroups: dict[str, str] = {}
    popState: str = ""
    popOrders: str = ""


class _DelayBody(msgspec.Struct):
    offsetTable: dict[int, int] = {}


class _RuntimeBody(msgspec.Struct):
    table: dict[str, str] = {}


class SlaveTables:
    """Topics, groups, offsets and delay positions of the master.

    Attributes:
        master: its address; empty: not known.
        status: what a master of Kerolox said of itself last.
        offsets_below: offsets of groups are of messages below this offset of the master's log, or
            were set here since; 0: no table has come.
        complete_below: topics of messages below this offset of the log are in the table, unless
            they were deleted; 0: no table has come.
    """

    def __init__(
        self,
        base: Base,
        tables: Tables,
        schedule: DelaySchedule,
        timer: TimerService,
        on_status: Callable[[RoleStatus], None],
    ) -> None:
        """Knows no master before :meth:`set_master`; ``base`` has the address of this broker, which
        is not its own master.
        """
        self._identity = base.identity
        self._store = base.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._pops = tables.pops
        self._request_modes = tables.request_modes
        self._schedule = schedule
        self._timer = timer
        # As RocketMQ's: one client for name servers and masters.
        self._client = outbound_client(base.settings)
        self._on_status = on_status
        self.master = ""
        self.status: RoleStatus | None = None
        self.complete_below = 0
        self.offsets_below = 0
        self._later: _Positions | None = None
        """What waits for the log here to reach as far."""
        self._failing = False

    def set_master(self, address: str) -> None:
        """What a name server says of the master's address; empty: it knows none now."""
        self.master = address or self.master

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def sync(self) -> None:
        """Take all four once. What fails is one line in the log until it works again."""
        if self.master and self.master != self._identity.address:
            await self.sync_from(self.master)

    async def sync_from(self, master: str) -> None:
        """The same from the broker at an address."""
        try:
            await self.take_from(master)
        except (KeroloxError, BodyError) as error:
            if not self._failing:
                _log.warning("the tables of master %s do not come: %s", master, error)
            self._failing = True
            return
        self._failing = False

    async def take_from(self, master: str) -> None:
        """The same, and an error when one of them does not come: a KeroloxError, the master does
        not answer, or refuses; a BodyError, it answers with something else.
        """
        end = self._store.max_physical_offset
        await self._sync_topics(master)
        self.complete_below = end
        await self._sync_offsets(master)
        await self._sync_groups(master)
        await self._sync_request_modes(master)
        await self._poll(master)

    async def _poll(self, master: str) -> None:
        try:
            body = await self._ask(master, RequestCode.GET_BROKER_ROLE)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self.status = None
            return
        self.status = decode_body(body, RoleStatus)
        self._on_status(self.status)

    async def _sync_topics(self, master: str) -> None:
        answer = await self._invoke(master, RequestCode.GET_ALL_TOPIC_CONFIG, _WITH_ATTRIBUTES)
        table = decode_body(answer.body, TopicConfigTable)
        if table.data_version != self._topics.version:
            is_known = _knows_attributes(answer, table.topic_config_table.values())
            self._topics.replace(table, keeps_attributes=not is_known)
            await self._topics.persist()

    async def _sync_groups(self, master: str) -> None:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._invoke(master, code, _WITH_ATTRIBUTES)
        table = decode_body(answer.body, SubscriptionGroupTable)
        if table.data_version != self._groups.version:
            is_known = _knows_attributes(answer, table.subscription_group_table.values())
            self._groups.replace(table, keeps_attributes=not is_known)
            await self._groups.persist()

    async def _sync_request_modes(self, master: str) -> None:
        try:
            body = await self._ask(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            # A master of before RocketMQ 5.
            return
        table = decode_body(body, MessageRequestModes)
        if table != self._request_modes.table():
            self._request_modes.replace(table)
            await self._request_modes.persist()

    async def _sync_offsets(self, master: str) -> None:
        self._take_later()
        fields = OffsetsHeader(pops=True, log_end=self._store.max_physical_offset).encode()
        asked = await self._invoke(master, RequestCode.GET_ALL_CONSUMER_OFFSET, fields)
        answer = decode_body(asked.body, _OffsetBody)
        offsets = answer.offsetTable
        transactions = {key: offsets.pop(key) for key in _OF_TRANSACTIONS if key in offsets}
        self._offsets.take(offsets, answer.staleGroups)
        self._pops.take(answer.popState, answer.popOrders)
        await self._pops.keep()
        body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        delays = decode_body(body, _DelayBody).offsetTable
        timer = await self._timer_of(master)
        info = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)
        end = decode_body(info, _RuntimeBody).table.get("commitLogMaxOffset", "")
        if not end.isdecimal():
            raise BodyError(f"the master's commitLogMaxOffset is {printable(end[:64])!r}")
        self.offsets_below = int(end)
        self._wait_for_log(_Positions(int(end), delays, transactions, timer))
        self._take_later()

    async def _timer_of(self, master: str) -> TimerCheckpoint | None:
        """How far its timer is; None: it has none. So is a master of RocketMQ 4.9."""
        if not self._timer.is_enabled:
            return None
        from kerolox.store.timer.checkpoint import decode_checkpoint

        try:
            body = await self._ask(master, RequestCode.GET_TIMER_CHECK_POINT)
            found = decode_checkpoint(body)
        except (BrokerError, ValueError):
            return None
        return found if found.last_read_ms else None

    def _wait_for_log(self, positions: _Positions) -> None:
        """Keep positions until the log has come far enough. Older ones that still wait for it stay,
        or a slave that is always behind would never have any; unless that log will not come, since
        the master's is shorter now."""
        if self._later is None or positions.log_end < self._later.log_end:
            self._later = positions

    def _take_later(self) -> None:
        """Take over the positions for which the log has come far enough."""
        if self._later is not None and self._store.max_physical_offset >= self._later.log_end:
            self._schedule.set_offsets(self._later.delays)
            self._offsets.put_all(self._later.transactions)
            if self._later.timer is not None:
                self._timer.follow(self._later.timer)
            self._later = None

    async def _ask(self, master: str, code: RequestCode) -> bytes:
        return (await self._invoke(master, code)).body

    async def _invoke(
        self, master: str, code: RequestCode, fields: Mapping[str, object] | None = None
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, fields)
        response = await self._client.invoke(master, request, timeout_seconds=REQUEST_SECONDS_MAX)
        response.raise_for_code(master)
        return response


def _knows_attributes(
    answer: RemotingCommand, told: Iterable[TopicConfig | SubscriptionGroupConfig]
) -> bool:
    """Whether a master took away the attributes that its table lacks. One of ours says that it
    knows them, one of RocketMQ 5 writes an empty map, and one of 4.9 has lost them."""
    return answer.ext_fields.get(ATTRIBUTES_FIELD) == "true" or any(
        each.attributes is not None for each in told
    )
