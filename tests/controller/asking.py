"""What brokers ask of controllers, for tests: headers alone, no broker behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    RegisterBrokerHeader,
)
from kerolox.remoting.client import RemotingClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.protocol.headers import Header

IDS = {"cluster_name": "c", "broker_name": "b"}


class Asking(ABC):
    """Who asks a group of controllers."""

    def __init__(self) -> None:
        self.client = RemotingClient()

    @abstractmethod
    async def leader_address(self) -> str:
        """Where the leader is, once there is one."""

    @abstractmethod
    def addresses(self) -> Iterable[str]:
        """Where those are that run."""

    async def ask(
        self, code: RequestCode, header: Header | None = None, body: bytes = b"", *, at: str = ""
    ) -> RemotingCommand:
        """The answer of the leader, or of the controller at an address."""
        address = at or await self.leader_address()
        fields = {} if header is None else header.encode()
        command = RemotingCommand.request(code, fields, body=body)
        return await self.client.invoke(address, command, timeout_seconds=10)

    async def heartbeat(
        self, broker_id: int, address: str, *, epoch: int = 1, timeout_ms: int = 400
    ) -> None:
        """A broker tells all of them that it is alive."""
        header = BrokerHeartbeatHeader(
            **IDS,
            broker_addr=address,
            broker_id=broker_id,
            epoch=epoch,
            max_offset=100,
            heartbeat_timeout_mills=timeout_ms,
        )
        for each in list(self.addresses()):
            answer = await self.ask(RequestCode.BROKER_HEARTBEAT, header, at=each)
            assert answer.code == ResponseCode.SUCCESS

    async def enter(self, broker_id: int, address: str) -> None:
        """What a broker does at its first start."""
        await self.apply(broker_id, address)
        await self.register(broker_id, address)

    async def apply(self, broker_id: int, address: str) -> None:
        """It gets an id."""
        header = ApplyBrokerIdHeader(
            **IDS, applied_broker_id=broker_id, register_check_code=f"{address};1"
        )
        answer = await self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def register(self, broker_id: int, address: str) -> None:
        """It says where it is."""
        header = RegisterBrokerHeader(**IDS, broker_id=broker_id, broker_address=address)
        answer = await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
