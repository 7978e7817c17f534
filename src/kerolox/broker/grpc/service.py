"""The service: which call is served by what, and how its answer travels.

What RocketMQ says of a request is a status in its answer. gRPC's own statuses are for what is no
request of this service, and for a broker that fails.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from kerolox.broker.context import Context
from kerolox.broker.grpc import receiving, sending, telemetry
from kerolox.broker.grpc.answers import AnswerError
from kerolox.broker.grpc.asking import AUTHORIZATION, DATE_TIME, Caller, parsed
from kerolox.broker.grpc.clients import GrpcClient, GrpcClients
from kerolox.broker.grpc.elsewhere import OtherBrokers
from kerolox.broker.grpc.renewals import Renewals, messages_of
from kerolox.broker.grpc.routes import RouteCalls
from kerolox.broker.grpc.stats import CANCELLED, SUCCESS, GrpcStats
from kerolox.broker.requests.pop_fast import FastPops
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.grpc.parsing import TooManyFieldsError
from kerolox.remoting.grpc.connection import Call
from kerolox.remoting.grpc.wire import CallRefusedError, GrpcStatus
from kerolox.remoting.server import Handler

if TYPE_CHECKING:
    from kerolox.broker.access.gate import AccountSigner
    from kerolox.broker.grpc.stats import CallKey
    from kerolox.kernel.feed import GivenMembers
    from kerolox.kernel.metrics import LatencyCounts

PATH = "/apache.rocketmq.v2.MessagingService/"
RECEIVE, TELEMETRY = PATH + "ReceiveMessage", PATH + "Telemetry"

_CODES = {number: name.lower() for name, number in pb.Code.items()}

REQUEST_BYTES_MAX = 1024 * 1024
"""Of a request that brings no bodies; an AckMessage of 4,096 entries has some 600 KB."""

SEND_BYTES_MAX = (16 << 20) + 256 * 1024
"""Of a request that does. The setting ``maxMessageSize`` may change while the broker runs; each
body is held to it, too."""

_log = logging.getLogger(__name__)


@cache
def _name(path: str) -> str:
    """What metrics call a call that is served: ``send_message``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", path.removeprefix(PATH)).lower()


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...


class _Unary:
    """How a call of one request and one answer is served."""

    def __init__(
        self,
        request: type[_Message],
        response: type[_Message],
        serve: Callable[..., Awaitable[_Message]],
    ) -> None:
        self.request, self.response, self.serve = request, response, serve


class Service:
    """The calls of all clients of one broker."""

    def __init__(
        self,
        broker: Context,
        dispatch: Handler,
        on_client_left: Callable[[GrpcClient], None],
        stats: GrpcStats,
    ) -> None:
        """``dispatch`` checks and handles requests of remoting; ``on_client_left``: called with
        each client that leaves. ``stats`` count the calls."""
        self._broker = broker
        self._dispatch = dispatch
        self._stats = stats
        self.clients = GrpcClients(on_client_left, broker.config.broker_name)
        self.renewals = Renewals(broker, stats, self.clients.get)
        broker.tables.pops.on_renewed = self.renewals.add_lent
        self._fast = FastPops(broker)
        self.others = OtherBrokers(broker)
        self._unary = self._table()

    def _table(self) -> dict[str, _Unary]:
        broker, routes = self._broker, RouteCalls(self._broker)
        inflating = asyncio.Semaphore(sending.INFLATING_MAX)

        def plain(
            serve: Callable[..., Awaitable[_Message]], *more: object
        ) -> Callable[..., Awaitable[_Message]]:
            return lambda caller, request, client: serve(broker, caller, request, *more)

        def of_client(
            serve: Callable[..., Awaitable[_Message]],
        ) -> Callable[..., Awaitable[_Message]]:
            return partial(serve, broker)

        def of_route(
            serve: Callable[..., Awaitable[_Message]],
        ) -> Callable[..., Awaitable[_Message]]:
            return lambda caller, request, client: serve(caller, request)

        handlers = {
            "QueryRoute": of_route(routes.query_route),
            "QueryAssignment": of_route(routes.query_assignment),
            "SendMessage": plain(sending.send_message, inflating),
            "EndTransaction": plain(sending.end_transaction, self.others),
            "RecallMessage": plain(sending.recall_message, self.others),
            "Heartbeat": of_client(telemetry.heartbeat),
            "NotifyClientTermination": of_client(telemetry.notify_client_termination),
            "AckMessage": plain(receiving.ack_message, self.renewals, self._fast),
            "ChangeInvisibleDuration": plain(receiving.change_invisible_duration, self.renewals),
            "ForwardMessageToDeadLetterQueue": plain(
                receiving.forward_to_dead_letters, self.renewals
            ),
        }
        return {
            PATH + name: _Unary(
                getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"), serve
            )
            for name, serve in handlers.items()
        }

    def message_bytes_max(self, path: str) -> int:
        """See :class:`~kerolox.remoting.grpc.connection.Serve`."""
        return SEND_BYTES_MAX if path == PATH + "SendMessage" else REQUEST_BYTES_MAX

    def calls_of_kernel(self) -> Iterator[tuple[CallKey, LatencyCounts]]:
        """What the kernel has counted of the calls that it answered by itself."""
        for path, code, counts, total_us in self._broker.store.call_times():
            yield (_name(path), _CODES.get(code, "unknown"), SUCCESS), (counts, total_us)

    def unread(self, given: list[GivenMembers]) -> None:
        """See :class:`~kerolox.remoting.grpc.connection.Serve`."""
        self.renewals.give_back(messages_of(given, self._broker.config.broker_name))

    async def __call__(self, call: Call) -> None:
        """Serve one call."""
        path, begun = call.head.path, monotonic()
        try:
            unary = self._unary.get(path)
            if unary is not None:
                code = await self._serve_unary(call, unary)
                self._note(call, code, begun)
            elif path == RECEIVE:
                self._note(call, await self._serve_receive(call), begun)
            elif path == TELEMETRY:
                await self._serve_telemetry(call, begun)
            else:
                raise CallRefusedError(GrpcStatus.UNIMPLEMENTED, f"{path[:200]} is not served here")
        except DecodeError:
            call.finish(GrpcStatus.INTERNAL, "the request is no message of its type")
        except TooManyFieldsError as error:
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, str(error))
        except CallRefusedError as error:
            call.finish(error.status, str(error))
        else:
            call.finish()

    def _note(self, call: Call, code: int, begun: float) -> None:
        """Count an answer; calls that were refused are counted by their connections."""
        result = CANCELLED if call.is_over and not call.is_answered else SUCCESS
        name, seconds = _name(call.head.path), monotonic() - begun
        self._stats.note(name, _CODES.get(code, "unknown"), result, seconds)

    async def _serve_unary(self, call: Call, unary: _Unary) -> int:
        try:
            data = await self._only_message(call)
            caller = self._caller(call)
            request = await parsed(unary.request, data)
            client = self.clients.get(caller.client_id)
            answer = await unary.serve(caller, request, client)
        except AnswerError as error:
            answer = unary.response(status=error.status)  # type: ignore[call-arg]
        call.send(answer.SerializeToString())
        code: int = answer.status.code  # type: ignore[attr-defined]
        return code

    async def _serve_receive(self, call: Call) -> int:
        data = await self._only_message(call)
        caller = Caller(call, self._dispatch, None)
        try:
            caller = self._caller(call)
            request = await parsed(pb.ReceiveMessageRequest, data)
            client = self.clients.get(caller.client_id)
            caller.on_cancelled = partial(self._receive_over, caller)
            self._stats.waiting_receives += 1
            try:
                await receiving.receive_message(
                    self._broker, caller, request, client, self.renewals, self._fast, data
                )
            finally:
                self._stats.waiting_receives -= 1
        except AnswerError as error:
            receiving.stream_error(caller, error)
            return error.code
        return int(pb.OK)

    async def _serve_telemetry(self, call: Call, begun: float) -> None:
        try:
            caller = self._caller(call)
        except AnswerError as error:
            call.send(pb.TelemetryCommand(status=error.status).SerializeToString())
            self._note(call, error.code, begun)
            return
        note = partial(self._note, call)
        await telemetry.serve_telemetry(self._broker, caller, self.clients, note)

    def _receive_over(self, caller: Caller) -> None:
        self._broker.popping.held.connection_closed(caller.connection_id)

    async def _only_message(self, call: Call) -> bytes:
        data = await call.message()
        if data is None:
            raise CallRefusedError(GrpcStatus.INTERNAL, "the call has no request")
        return data

    def _caller(self, call: Call) -> Caller:
        """Who makes a call; AnswerError: he does not say, or is not who he says."""
        caller = Caller(call, self._dispatch, self._proven(call))
        caller.check(self._broker)
        return caller

    def _proven(self, call: Call) -> AccountSigner | None:
        metadata = call.head.metadata
        return self._broker.guards.access.signer_of(
            metadata.get(AUTHORIZATION, ""),
            metadata.get(DATE_TIME, ""),
            call.connection.peer[0],
        )
