"""A call, and how it asks the broker: by requests of remoting, so that each rule has one home.

Access control, limits of requests and the rules of each request are those of remoting. A call has
proved its account by the signature of its time, so its requests are signed with that account's
secret here, and checked as all others are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from kerolox.broker.grpc.answers import AnswerError, error_of, error_of_refusal
from kerolox.broker.grpc.clients import language_of
from kerolox.errors import BrokerError
from kerolox.protocol.codes import GRPC, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.grpc.parsing import count_fields
from kerolox.remoting.grpc.connection import Call
from kerolox.remoting.server import Handler, ServerConnection, ShortWay, next_connection_id
from kerolox.remoting.time_slices import TimeSlices

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from kerolox.broker.access.gate import AccountSigner
    from kerolox.broker.context import Context

CLIENT_ID, LANGUAGE, VERSION = "x-mq-client-id", "x-mq-language", "x-mq-client-version"
AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
CLIENT_ID_BYTES_MAX = 255
VERSION_CHARACTERS_MAX = 64
"""Of a client's version; what is longer is cut."""


_Message = TypeVar("_Message", bound="Message")


async def parsed(kind: type[_Message], data: bytes) -> _Message:
    """A client's message, without the fields that nobody knows, which answers would repeat.

    TooManyFieldsError, DecodeError: it is none that is taken.
    """
    slices = TimeSlices()
    for _ in count_fields(data, kind.DESCRIPTOR):
        await slices.checkpoint()
    message: _Message = kind.FromString(data)
    message.DiscardUnknownFields()
    return message


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What the broker refuses becomes an answer."""
    try:
        yield
    except BrokerError as error:
        raise error_of_refusal(error) from None


class Caller:
    """Who makes a call. Stands in a connection's place for its requests."""

    certificate_subject = None
    protocol_type = GRPC

    def __init__(self, call: Call, dispatch: Handler, signer: AccountSigner | None) -> None:
        """``dispatch``: checks a request and brings it to its handler; its None: the answer comes
        later, or never. ``signer``: of the account that the call proved; None: none, or nobody
        looked.
        """
        self.call = call
        self.connection_id = next_connection_id()
        self.peer = call.connection.peer
        self.remote_address = call.connection.remote_address
        metadata = call.head.metadata
        self.client_id = metadata.get(CLIENT_ID, "")
        self.language = language_of(metadata.get(LANGUAGE, ""))
        self.version = metadata.get(VERSION, "")[:VERSION_CHARACTERS_MAX]
        self._dispatch = dispatch
        self._signer = signer
        self.short_way: ShortWay | None = None
        self._later: asyncio.Future[RemotingCommand] | None = None
        self.on_cancelled: Callable[[], None] | None = None
        """Called when nobody waits any more for an answer that comes later."""

    @property
    def audited(self) -> Mapping[str, str]:
        """What audit lines tell of it."""
        name = self.call.head.path.rpartition("/")[2]
        return {"call": name, "client": self.client_id}

    @property
    def closed(self) -> bool:
        """Nobody wants an answer any more."""
        return self.call.is_over

    def check(self, broker: Context) -> None:
        """AnswerError: the call does not say who makes it, or access control does not know him."""
        if not self.client_id.strip():
            raise AnswerError(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(self.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise AnswerError(
                pb.BAD_REQUEST, f"the client id is longer than {CLIENT_ID_BYTES_MAX} bytes"
            )
        if broker.guards.access.is_on:
            # What needs an account and no more; requests that a call makes need more.
            command = self._unsent(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            with _refusals():
                broker.guards.access.admit(command, cast("ServerConnection", self))

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to a request, whatever its code. AnswerError: it was refused."""
        response = await self.request(command, self)
        if response is None:
            self._later = asyncio.get_running_loop().create_future()
            self.call.on_over = self._give_up
            if self.closed:
                self._give_up()
            response = await self._later
        return response

    async def request(self, command: RemotingCommand, connection: object) -> RemotingCommand | None:
        """Have a request of some connection handled; None: there is no answer now."""
        command.language = self.language
        self.signed(command)
        try:
            return await self._dispatch(command, cast("ServerConnection", connection))
        except BrokerError as error:
            raise error_of_refusal(error) from None
        except ValueError as error:
            raise AnswerError(pb.BAD_REQUEST, str(error)) from None

    async def check_publishes(self, broker: Context, topics: list[str]) -> None:
        """AnswerError: the account may not publish to one of these, whose transactions it would be
        asked about."""
        command, access = self._unsent(RequestCode.HEART_BEAT), broker.guards.access
        slices = TimeSlices()
        with _refusals():
            for topic in topics:
                await slices.checkpoint()
                access.check_write(topic, command, cast("ServerConnection", self))

    def check_shown(self, broker: Context, topic: str) -> None:
        """AnswerError: the account may neither publish to a topic nor read it."""
        command, access = self._unsent(RequestCode.GET_ROUTEINFO_BY_TOPIC), broker.guards.access
        with _refusals():
            access.check_shown(topic, command, cast("ServerConnection", self))

    def admit(self, broker: Context, command: RemotingCommand) -> None:
        """AnswerError: the account may not do what a request asks that nobody is sent."""
        if broker.guards.access.is_on:
            with _refusals():
                broker.guards.access.admit(self.signed(command), cast("ServerConnection", self))

    def check_read(self, broker: Context, topic: str, group: str) -> None:
        """AnswerError: the account may not read a topic in a group."""
        command, access = self._unsent(RequestCode.QUERY_ASSIGNMENT), broker.guards.access
        with _refusals():
            access.check_read(topic, group, command, cast("ServerConnection", self))

    async def done(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to a request that succeeded; AnswerError: it did not."""
        response = await self.ask(command)
        if response.code != ResponseCode.SUCCESS:
            raise error_of(response)
        return response

    def send_command(self, response: RemotingCommand) -> None:
        """An answer that came later."""
        if self._later is not None and not self._later.done():
            self._later.set_result(response)

    def go_on(self) -> None:
        """What waits for an answer has it in another way."""
        self.send_command(RemotingCommand.request(RequestCode.POP_MESSAGE))

    def _unsent(self, code: int) -> RemotingCommand:
        """What stands for the call where access is checked without a request."""
        return self.signed(RemotingCommand.request(code))

    def signed(self, command: RemotingCommand) -> RemotingCommand:
        """The request, with the account that the call proved."""
        if self._signer is not None:
            self._signer.sign(command)
        return command

    def _give_up(self) -> None:
        if self.on_cancelled is not None:
            self.on_cancelled()
        if self._later is not None and not self._later.done():
            self._later.set_exception(AnswerError(pb.MESSAGE_NOT_FOUND, "the call was cancelled"))
