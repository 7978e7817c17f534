"""A master under a controller that can't store has another broker of its set elected.

Its heartbeats go on, so no controller would elect anybody: sends would be refused until an
operator makes space. RocketMQ's master stays the master. The successor is in sync, alive, and its
disk has space (``diskSpaceWarningLevelRatio`` of this broker). Where none is, the master stays: a
change would help nobody. Nor does a broker give its place away twice for one trouble.

The order keeps what was acknowledged without ``allAckInSyncStateSet``, too: this broker takes
nothing more, waits until the successor has the whole log, and then asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.replication.sockets import steady_ms
from kerolox.broker.roles.replicas_manager import Ask, ReplicasManager
from kerolox.broker.services.writer import WriteGate
from kerolox.errors import KeroloxError
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError, decode_body, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import BrokerReplicasInfo, ReplicaIdentity
from kerolox.remoting.client import RemotingClient
from kerolox.text import printable

AGAIN_MS = 1_000
"""From one try to the next."""
ASK_SECONDS_MAX = 1.0
CAUGHT_UP_POLLS, POLL_SECONDS = 50, 0.02
"""How long the successor may take until it has the whole log; meanwhile nobody takes messages."""
REPORT_BYTES_MAX = 1 << 20
"""Of a broker's answer about itself."""

_log = logging.getLogger(__name__)


class DiskReport(NamedTuple):
    """What a broker says of its log."""

    used: float
    """Part of the disk, 0 to 1; -1: it can't say."""
    end: int


class HandOver:
    """Of one broker.

    Attributes:
        is_under_way: it takes no messages, since a successor is being elected.
    """

    def __init__(
        self,
        base: Base,
        gate: WriteGate,
        manager: ReplicasManager,
        client: RemotingClient,
        ask: Callable[[Ask], Awaitable[None]],
        fence: Callable[[], None],
    ) -> None:
        """Nothing is handed over before :meth:`poll`.

        Args:
            ask: sends what the manager asks of the controller, and has its answer done.
            fence: has the gate see ``is_under_way``.
        """
        self._base, self._gate, self._manager = base, gate, manager
        self._client, self._ask, self._fence = client, ask, fence
        self._next_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._has_asked = False
        """For another master, because of the trouble that there is."""
        self._logged = ""
        self.is_under_way = False

    @property
    def _reason(self) -> str:
        """Why this broker can't store; empty: it can."""
        full = "" if self._gate.has_space else "the disk is too full for writes"
        return self._base.store.trouble or full

    def poll(self, now_ms: int) -> asyncio.Task[None] | None:
        """Begin where it is needed; the work, which never fails."""
        reason = self._reason
        if not reason:
            self._logged, self._has_asked = "", False
            return None
        is_running = self._task is not None and not self._task.done()
        if is_running or self._has_asked or now_ms < self._next_ms:
            return None
        if not self._manager.is_master or not self._manager.leader:
            return None
        self._next_ms = now_ms + AGAIN_MS
        self._task = asyncio.get_running_loop().create_task(self._run(reason))
        return self._task

    async def _run(self, reason: str) -> None:
        try:
            await self._hand_over(reason)
        except (KeroloxError, BodyError, fastjson.FastjsonError, ValueError) as error:
            self._log_once(f"nobody takes this master's place: {printable(str(error))}")
        finally:
            self.is_under_way = False
            self._fence()

    async def _hand_over(self, reason: str) -> None:
        successor = await self._successor()
        if successor is None:
            self._log_once(
                f"this master can't store ({reason}), and no broker that is in sync has a disk "
                "with space: sends are refused until there is space"
            )
            return
        self.is_under_way = True
        self._fence()
        if not await self._has_all(successor.broker_address):
            self._log_once(f"{printable(successor.broker_address)} does not get the whole log")
            return
        _log.error(
            "this master can't store (%s): broker %d at %s is to take its place",
            *(reason, successor.broker_id, printable(successor.broker_address)),
        )
        for ask in self._manager.hand_over(successor.broker_id, steady_ms()):
            await self._ask(ask)
        self._has_asked = not self._manager.is_master

    async def _successor(self) -> ReplicaIdentity | None:
        name = self._base.config.broker_name
        body = await self._body(
            self._manager.leader,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            encode_body([name]),
        )
        found = decode_body(body, BrokerReplicasInfo).replicas_info_table.get(name)
        most = self._base.config.disk_space_warning_level_ratio
        for each in [] if found is None else found.in_sync_replicas:
            if each.broker_id == self._manager.broker_id or each.alive is False:
                continue
            report = await self._report(each.broker_address)
            if 0 <= report.used <= most:
                return each
        return None

    async def _has_all(self, address: str) -> bool:
        end = self._base.store.max_physical_offset
        for _ in range(CAUGHT_UP_POLLS):
            if (await self._report(address)).end >= end:
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _report(self, address: str) -> DiskReport:
        body = await self._body(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        values = fastjson.members_of(
            fastjson.members_of(fastjson.loads(body, lenient_bytes_max=REPORT_BYTES_MAX)).get(
                "table"
            )
        )
        return DiskReport(
            float(str(values.get("commitLogDiskRatio", -1))),
            int(str(values.get("commitLogMaxOffset", -1))),
        )

    async def _body(self, address: str, code: RequestCode, body: bytes = b"") -> bytes:
        request = RemotingCommand.request(code, body=body)
        answer = await self._client.invoke(address, request, timeout_seconds=ASK_SECONDS_MAX)
        answer.raise_for_code(address)
        return answer.body

    def _log_once(self, text: str) -> None:
        if text != self._logged:
            self._logged = text
            _log.error("%s", text)
