"""What operators ask of a client, by requests of remoting that a broker passes on: answered for one
that speaks gRPC from what the broker knows of it, and by commands of its telemetry stream."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Protocol

from kerolox.broker.grpc.records import message_of
from kerolox.errors import RemotingError, RequestTimeoutError
from kerolox.protocol.bodies import SubscriptionData, encode_body
from kerolox.protocol.codes import PROTOCOL_TYPE, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.records import decode_record
from kerolox.remoting.server import next_connection_id

ANSWER_BYTES_MAX = 1024 * 1024
"""Of a client's answer; the stacks of a hundred threads are shorter."""

STACKS_SECONDS_MAX = 3.0
"""Some clients never tell their stacks; the rest is told without them."""

_RESULTS = {pb.OK: "CR_SUCCESS", pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER"}
"""``CMResult``; others: the handler could not be called."""


class AskedClient(Protocol):
    """A client, as questions need it."""

    protocol_type: ClassVar[str]
    client_id: str
    client_version: str
    subscriptions: list[SubscriptionData]
    first_seen_ms: int

    @property
    def consume_type(self) -> str:
        """CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY."""

    def command(self, command: pb.TelemetryCommand) -> None:
        """Send a command. RemotingError: it has no telemetry stream."""


class Questions:
    """Those to one client that wait for its answer."""

    def __init__(self) -> None:
        """Nothing is asked."""
        self._asked: dict[str, asyncio.Future[pb.TelemetryCommand]] = {}

    @property
    def bytes_max(self) -> int:
        """Of an answer that is waited for; 0: none is."""
        return ANSWER_BYTES_MAX if self._asked else 0

    def answered(self, command: pb.TelemetryCommand) -> None:
        """The client sent something that is no settings."""
        kind = command.WhichOneof("command")
        nonce = getattr(getattr(command, kind), "nonce", "") if kind else ""
        future = self._asked.get(nonce)
        if future is not None and not future.done():
            future.set_result(command)

    async def answer(
        self, client: AskedClient, command: RemotingCommand, timeout_seconds: float
    ) -> RemotingCommand:
        """The answer that a client of remoting would give.

        Raises:
            RequestTimeoutError: the client gives none in time.
            RemotingError: it has no telemetry stream, or can't be asked this.
        """
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.response(body=await self._running_info(client, command))
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return command.response(body=await self._consumed(client, command, timeout_seconds))
        raise RemotingError(
            f"{client.client_id} speaks gRPC, and can't be asked that (code {command.code})"
        )

    async def _running_info(self, client: AskedClient, command: RemotingCommand) -> bytes:
        stacks = ""
        if command.ext_fields.get("jstackEnable") == "true":
            stacks = await self._stacks(client)
        info = {
            "jstack": stacks or None,
            "mqTable": {},
            "properties": {
                PROTOCOL_TYPE: client.protocol_type,
                "PROP_CLIENT_VERSION": client.client_version,
                "PROP_CONSUME_TYPE": client.consume_type,
                "PROP_CONSUMER_START_TIMESTAMP": str(client.first_seen_ms),
            },
            "statusTable": {},
            "subscriptionSet": client.subscriptions,
        }
        return encode_body(info)

    async def _stacks(self, client: AskedClient) -> str:
        nonce = _nonce()
        asked = pb.TelemetryCommand(
            print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce=nonce)
        )
        try:
            answer = await self._ask(client, nonce, asked, STACKS_SECONDS_MAX)
        except RemotingError:
            return ""
        stacks: str = answer.thread_stack_trace.thread_stack_trace
        return stacks

    async def _consumed(
        self, client: AskedClient, command: RemotingCommand, timeout_seconds: float
    ) -> bytes:
        message, _ = decode_record(command.body)
        asked = pb.TelemetryCommand()
        nonce = asked.verify_message_command.nonce = _nonce()
        asked.verify_message_command.message.CopyFrom(message_of(message, message.topic))
        start = time.monotonic()
        answer = await self._ask(client, nonce, asked, timeout_seconds)
        return encode_body(
            {
                "autoCommit": True,
                "consumeResult": _RESULTS.get(answer.status.code, "CR_THROW_EXCEPTION"),
                "order": False,
                "remark": answer.status.message,
                "spentTimeMills": int((time.monotonic() - start) * 1000),
            }
        )

    async def _ask(
        self, client: AskedClient, nonce: str, asked: pb.TelemetryCommand, seconds: float
    ) -> pb.TelemetryCommand:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[pb.TelemetryCommand] = loop.create_future()

        def is_late() -> None:
            if not future.done():
                text = f"{client.client_id} did not answer within {seconds:g} s"
                future.set_exception(RequestTimeoutError(text))

        self._asked[nonce] = future
        # No task runs a handler up to its first wait, so asyncio.timeout can't be used.
        timer = loop.call_later(seconds, is_late)
        try:
            client.command(asked)
            return await future
        finally:
            timer.cancel()
            del self._asked[nonce]


def _nonce() -> str:
    return str(next_connection_id())
