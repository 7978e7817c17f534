"""The tables that a slave takes from its master (``SlaveSynchronize``)."""

from __future__ import annotations

import logging

import msgspec

from kerolox.broker.config import BrokerConfig
from kerolox.broker.dialling import AccountHook
from kerolox.broker.identity import Identity
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.errors import BrokerError, KeroloxError
from kerolox.protocol.bodies import (
    BodyError,
    SubscriptionGroupTable,
    TopicConfigTable,
    decode_body,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.security.contexts import TlsContexts

REQUEST_SECONDS_MAX = 3.0

_log = logging.getLogger(__name__)


class _OffsetBody(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}


class _DelayBody(msgspec.Struct):
    offsetTable: dict[int, int] = {}


class SlaveTables:
    """Topics, groups, offsets and delay positions of the master."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        schedule: DelaySchedule,
    ) -> None:
        """Knows no master before :meth:`set_master`."""
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        # As RocketMQ's: one client for name servers and masters.
        self._client = RemotingClient(
            rpc_hook=AccountHook(config), tls=TlsContexts(config.tls_to_name_servers)
        )
        self._master = ""
        self._failing = False

    def set_master(self, address: str) -> None:
        """What a name server says of the master's address; empty: it knows none now."""
        self._master = address or self._master

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def sync(self) -> None:
        """Take all four once. What fails is one line in the log until it works again."""
        if self._master and self._master != self._identity.address:
            await self.sync_from(self._master)

    async def sync_from(self, master: str) -> None:
        """The same from the broker at an address."""
        try:
            await self._sync_topics(master)
            await self._sync_offsets(master)
            await self._sync_delays(master)
            await self._sync_groups(master)
        except (KeroloxError, BodyError) as error:
            if not self._failing:
                _log.warning("the tables of master %s do not come: %s", master, error)
            self._failing = True
            return
        self._failing = False

    async def _sync_topics(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = decode_body(body, TopicConfigTable)
        if table.data_version != self._topics.version:
            self._topics.replace(table)
            await self._topics.persist()

    async def _sync_groups(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = decode_body(body, SubscriptionGroupTable)
        if table.data_version != self._groups.version:
            self._groups.replace(table)
            await self._groups.persist()

    async def _sync_offsets(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        self._offsets.put_all(decode_body(body, _OffsetBody).offsetTable)

    async def _sync_delays(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        self._schedule.set_offsets(decode_body(body, _DelayBody).offsetTable)

    async def _ask(self, master: str, code: RequestCode) -> bytes:
        request = RemotingCommand.request(code)
        response = await self._client.invoke(master, request, timeout_seconds=REQUEST_SECONDS_MAX)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError.from_response(response.code, response.remark, master)
        return response.body
