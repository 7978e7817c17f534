"""What a call asks another broker: only where a client can't know which one it means.

Official clients send each call to the broker that has its messages: receives, receipts and most
ends of transactions go where the message came from or went to. A recall goes to the access point,
whichever broker that is, and so does the end of a transaction of the client in Rust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.grpc.answers import AnswerError, error_of
from kerolox.broker.outbound import outbound_client
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import MASTER_ID, ResponseCode
from kerolox.protocol.grpc import messages as pb

if TYPE_CHECKING:
    from kerolox.broker.context import Context
    from kerolox.broker.grpc.asking import Caller
    from kerolox.protocol.command import RemotingCommand

ASKED_SECONDS_MAX = 2.0
"""As RocketMQ's proxy waits for a recall."""


class OtherBrokers:
    """Asks the masters of other names, by remoting."""

    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._client = outbound_client(broker.settings, signs=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def master(self, topic: str, name: str) -> str | None:
        """The address of a broker of a topic; None: it is this one, or no name server knows it."""
        if name == self._broker.config.broker_name and not self._broker.role.current.is_slave:
            return None
        route = await self._broker.routes.of(topic)
        found = None if route is None else route.broker(name)
        address = None if found is None else found.addresses.get(MASTER_ID)
        return address

    async def done(self, caller: Caller, address: str, command: RemotingCommand) -> RemotingCommand:
        """The answer of another broker to a request that succeeded there, with the caller's
        account; AnswerError: it did not.
        """
        try:
            answer = await self._client.invoke(
                address, caller.signed(command), timeout_seconds=ASKED_SECONDS_MAX
            )
        except KeroloxError as error:
            raise AnswerError(
                pb.INTERNAL_SERVER_ERROR, f"broker {address} does not answer: {error}"
            ) from None
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer)
        return answer
