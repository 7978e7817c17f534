"""Which handler answers which request code, of a broker and of a name server.

A handler is a coroutine function of its role's parts, a header and the request. The header arrives
decoded and typed; a header that does not decode is answered with code 1 before the handler is
called. What a handler returns is the answer; a :class:`~kerolox.errors.BrokerError` that it raises
is the answer of that code. A code without a handler is answered with code 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from kerolox.errors import BrokerError
from kerolox.message import pack_host
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import HeaderFieldError
from kerolox.remoting.audit import Audit
from kerolox.remoting.server import ServerConnection
from kerolox.remoting.unserved import UnservedCodes

SLOW_SECONDS = 0.1
"""A handler that takes longer has a line in the log, at the level debug."""

_log = logging.getLogger(__name__)

_Header = TypeVar("_Header")


@dataclass(frozen=True, slots=True)
class Request:
    """A request and who sent it."""

    command: RemotingCommand
    connection: ServerConnection
    account: str = ""
    """Access key of the account that signed it; empty: nobody did, or nobody looked."""

    @property
    def body(self) -> bytes:
        """The body; empty when there is none."""
        return self.command.body

    @property
    def born_host(self) -> bytes:
        """The sender's address, packed as records hold it."""
        return pack_host(*self.connection.peer)

    def answer(self, reply: Reply) -> None:
        """Answer what a handler did not answer when it returned. Nothing is sent to a connection
        that is closed."""
        if not self.connection.closed:
            self.connection.send_command(reply.to(self.command))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``fields`` become extFields, texts as Java writes them."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    fields: Mapping[str, object] | None = None
    body: bytes = b""

    def to(self, command: RemotingCommand) -> RemotingCommand:
        """As it is sent to who asked."""
        return command.response(self.code, self.remark, self.fields, body=self.body)


class Role(Protocol):
    """What a handler works with: the parts of a broker, or of a name server."""

    @property
    def audit(self) -> Audit:
        """Writes down what operators change."""

    @property
    def unserved(self) -> UnservedCodes:
        """Answers the codes without a handler."""


_Role = TypeVar("_Role", bound=Role)
_Handler = Callable[[_Role, _Header, Request], Awaitable[Reply | None]]


class Route(NamedTuple, Generic[_Role]):
    """How one code is answered."""

    decode: Callable[[Mapping[str, str]], object]
    """Makes the header from the extFields."""
    answer: Callable[[_Role, Request], Awaitable[Reply | None]]
    """Decodes the header and calls the handler."""
    changes: bool = False
    """It is a request of operators, and what it changes has an audit line."""


class Router(Generic[_Role]):
    """A table of handlers. Several may be joined: see :meth:`include`."""

    def __init__(self, rest: Callable[[], Iterable[Router[_Role]]] | None = None) -> None:
        """``rest``: gives routers to include when a code is asked for that has no handler so far.
        It imports what most processes never need; called once."""
        self._routes: dict[int, Route[_Role]] = {}
        self._rest = rest

    def on(
        self,
        code: RequestCode,
        decode: Callable[[Mapping[str, str]], _Header],
        *,
        changes: bool = False,
    ) -> Callable[[_Handler[_Role, _Header]], _Handler[_Role, _Header]]:
        """Decorate the handler of a code, whose header ``decode`` makes from the extFields.

        ``changes``: operators change something by it: the handler says what with
        :meth:`~kerolox.remoting.audit.Audit.changed`; an error that it answers is told too.
        ValueError: the code has a handler already.
        """

        def add(handler: _Handler[_Role, _Header]) -> _Handler[_Role, _Header]:
            def answer(role: _Role, request: Request) -> Awaitable[Reply | None]:
                return handler(role, decode(request.command.ext_fields), request)

            self._add(code, Route(decode, answer, changes))
            return handler

        return add

    def include(self, other: Router[_Role]) -> None:
        """Take over all handlers of another router; ValueError: a code has a handler in both."""
        for code, route in other.routes.items():
            self._add(code, route)

    @property
    def routes(self) -> Mapping[int, Route[_Role]]:
        """Code → how it is answered."""
        self._include_rest()
        return self._routes

    @property
    def codes(self) -> frozenset[int]:
        """The codes that have a handler."""
        return frozenset(self.routes)

    async def dispatch(
        self,
        role: _Role,
        command: RemotingCommand,
        connection: ServerConnection,
        account: str = "",
    ) -> RemotingCommand | None:
        """Answer one request; None: nothing is answered now. ``account``: of whoever signed it."""
        route = self._routes.get(command.code) or self.routes.get(command.code)
        if route is None:
            return role.unserved.answer(command, connection)
        request = Request(command, connection, account)
        begin = time.perf_counter() if _log.isEnabledFor(logging.DEBUG) else None
        try:
            reply = await route.answer(role, request)
        except (HeaderFieldError, BodyError) as error:
            reply = Reply(ResponseCode.SYSTEM_ERROR, str(error))
        except BrokerError as error:
            reply = Reply(error.code, error.remark)
        except Exception as error:
            if route.changes:
                role.audit.refused(request, ResponseCode.SYSTEM_ERROR, str(error))
            raise
        if begin is not None:
            _log_slow(request, reply, time.perf_counter() - begin)
        if reply is None:
            return None
        if route.changes and reply.code != ResponseCode.SUCCESS:
            role.audit.refused(request, reply.code, reply.remark or "")
        return reply.to(command)

    def _include_rest(self) -> None:
        if self._rest is not None:
            load, self._rest = self._rest, None
            for router in load():
                self.include(router)

    def _add(self, code: int, route: Route[_Role]) -> None:
        if code in self._routes:
            raise ValueError(f"request code {code} has a handler already")
        self._routes[code] = route


def _log_slow(request: Request, reply: Reply | None, seconds: float) -> None:
    if seconds < SLOW_SECONDS:
        return
    command, code = request.command, None if reply is None else int(reply.code)
    name = RequestCode(command.code).name
    _log.debug(
        "%s (%d) of %s took %d ms; answered with %s",
        *(name, command.code, request.connection.remote_address, seconds * 1000),
        "nothing yet" if code is None else f"code {code}",
    )
