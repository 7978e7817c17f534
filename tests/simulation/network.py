"""A network of TCP connections: a connection's bytes stay in order, and all else may happen.

Each direction of a connection is a :class:`_Pipe`. What is written arrives after the latency of
its link, never before what was written earlier, in pieces that the seed cuts. A link may be
partitioned: nothing passes, and what was sent is held until it heals, as TCP sends again, or until
the sender gives up. Connections may be reset. A process that dies lets its connections be closed
by its system; a host that dies says nothing, until somebody sends to its next life.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import kerolox.broker.replication.server
import kerolox.remoting.connection
import kerolox.remoting.grpc.connection
import kerolox.remoting.server
from kerolox.errors import ConfigError
from tests.simulation.patches import Patches
from tests.simulation.process import Process, current

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

LATENCY_SECONDS = 0.000_2
RETRANSMIT_SECONDS_MAX = 15.0
"""A connection whose bytes did not arrive for so long is broken for its sender."""
CONNECT_SECONDS_MAX = 60.0
"""After so long an answer to a connect is not waited for any more."""
READ_BYTES = 256 * 1024

_SYSTEM = contextvars.Context()
"""The context of what no process does: the network itself."""


@dataclass
class Link:
    """What lies between two hosts, in both directions."""

    latency_seconds: float
    jitter_seconds: float
    is_partitioned: bool = False
    held: list[_Pipe] = field(default_factory=list)
    """Pipes with bytes that wait for the end of a partition."""


class Listening:
    """What stands for a listening socket."""

    family = socket.AF_INET

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._name

    def listen(self, backlog: int) -> None:
        """It does from the start, and turns nobody away."""

    def close(self) -> None:
        """Listen no more."""
        self._network.unlisten(self._name, self)


class _Socket:
    """What stands for a connected socket."""

    family = socket.AF_INET

    def __init__(self, number: int, transport: Transport) -> None:
        self._number = number
        self._transport = transport

    def fileno(self) -> int:
        return self._number

    def setsockopt(self, *_: object) -> None:
        pass

    # A system's word of what the peer's has takes no way back here.
    def acknowledged_bytes(self) -> int:
        """See :func:`kerolox.remoting.connection.acknowledged_bytes`."""
        return self._transport.sends.arrived_bytes

    def has_arrived(self) -> bool:
        """See :func:`kerolox.remoting.connection.has_arrived`."""
        return not (self._transport.sends.unsent or self._transport.sends.flying)

    def have_reset(self) -> None:
        """See :func:`kerolox.remoting.connection.have_reset`. The peer reads what has arrived."""
        self._transport.drop_at_end()


class Server(asyncio.AbstractServer):
    """What ``create_server`` gives."""

    def __init__(
        self,
        network: Network,
        factory: Callable[[], asyncio.BaseProtocol],
        listening: Listening,
    ) -> None:
        self.factory = factory
        self.process = current()
        self.context = contextvars.copy_context()
        self.sockets = [listening]
        self._network = network
        self._serving = False

    def close(self) -> None:
        """Listen no more; connections stay."""
        self._serving = False
        self.sockets[0].close()

    async def start_serving(self) -> None:
        """Accept."""
        self._network.accept_with(self)
        self._serving = True

    def is_serving(self) -> bool:
        """Whether it accepts."""
        return self._serving

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the simulation."""
        return self._network.loop

    async def serve_forever(self) -> None:
        """Nobody needs it."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class _Pipe:
    """One direction of a connection."""

    __slots__ = (
        "arrived",
        "arrived_bytes",
        "end",
        "flying",
        "last_at",
        "link",
        "receiver",
        "reset_timer",
        "sender",
        "unread",
        "unsent",
        "window",
    )

    def __init__(self, link: Link, window: int) -> None:
        self.link = link
        self.window = window
        self.sender: Transport
        self.receiver: Transport
        self.unsent = bytearray()
        """Written and beyond the window: in the sender's process."""
        self.flying: deque[bytes] = deque()
        self.arrived = bytearray()
        """In the receiver's system, not yet read."""
        self.arrived_bytes = 0
        """What the receiver's system ever had."""
        self.unread = 0
        """Bytes that fly or have arrived."""
        self.last_at = 0.0
        self.end = ""
        """``fin`` or ``reset``: what follows the bytes."""
        self.reset_timer: asyncio.TimerHandle | None = None


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        process: Process | None,
        context: contextvars.Context,
        own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.context = context
        self.protocol: asyncio.BaseProtocol = None  # type: ignore[assignment]
        self.sends: _Pipe
        self.receives: _Pipe
        self.number = network.next_number()
        self._extra = {
            "peername": peer,
            "sockname": own,
            "socket": _Socket(20 + len(network.transports_of(process)), self),
        }
        self.is_gone = False
        """Its system has closed it: ``connection_lost`` is called or about to be."""
        self._is_closing = False
        self._drops_at_end = False
        """What flies at its end does not arrive."""
        self._is_reading = True
        self._reads_soon = False
        self._saw_eof = False
        self._eof_written = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = False

    # -- asyncio's side -------------------------------------------------------------------------
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See ``BaseTransport``."""
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        """See ``BaseTransport``."""
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See ``BaseTransport``."""
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See ``BaseTransport``."""
        return self.protocol

    def is_reading(self) -> bool:
        """See ``ReadTransport``."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """See ``ReadTransport``."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """See ``ReadTransport``."""
        self._is_reading = True
        self.read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See ``WriteTransport``."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See ``WriteTransport``."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """See ``WriteTransport``."""
        return len(self.sends.unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See ``WriteTransport``."""
        if self.is_gone or self._eof_written or self._is_closing or not data:
            return
        self.sends.unsent += data
        self.network.push(self.sends)
        if len(self.sends.unsent) > self._high and not self._is_full:
            self._is_full = True
            cast("asyncio.Protocol", self.protocol).pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """See ``WriteTransport``."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See ``WriteTransport``."""
        return True

    def write_eof(self) -> None:
        """See ``WriteTransport``: half a close."""
        if not self.is_gone and not self._eof_written:
            self._eof_written = True
            self.network.finish(self.sends, "fin")

    def close(self) -> None:
        """See ``BaseTransport``: what was written is sent first."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self.sends.unsent:
            self._close_now(None)

    def abort(self) -> None:
        """See ``WriteTransport``: what the system has still leaves, the rest is dropped."""
        self._is_closing = True
        self.sends.unsent.clear()
        self._close_now(None)

    def drop_at_end(self) -> None:
        """``SO_LINGER`` for no time: what flies when the socket is closed, or was closed by this
        step, is dropped."""
        self._drops_at_end = True
        if self.is_gone:
            self.sends.flying.clear()

    # -- the network's side ---------------------------------------------------------------------
    def lost(self, error: OSError) -> None:
        """The system reports the end of the connection."""
        if not self.is_gone:
            self._is_closing = True
            self.sends.unsent.clear()
            self.receives.arrived.clear()
            self._leave(error)

    def died(self) -> None:
        """The process is dead; its system closes the socket."""
        if not self.is_gone:
            self.is_gone = self._is_closing = True
            self.sends.unsent.clear()
            self.network.finish(self.sends, "reset" if self.receives.arrived else "fin")

    def vanish(self) -> None:
        """The host has no power, or the run is over: nobody hears of it."""
        self.is_gone = self._is_closing = True
        self.sends.flying.clear()
        self.sends.unsent.clear()

    def _close_now(self, error: OSError | None) -> None:
        if self.is_gone:
            return
        if self._drops_at_end:
            self.sends.flying.clear()
        self.network.finish(self.sends, "reset" if self.receives.arrived else "fin")
        self._leave(error)

    def _leave(self, error: OSError | None) -> None:
        self.is_gone = True
        self.network.gone(self)
        self.network.loop.call_soon(self._tell_lost, error, context=self.context)

    def _tell_lost(self, error: OSError | None) -> None:
        self.protocol.connection_lost(error)

    def drained(self) -> None:
        """The system took some of what was written."""
        if self.is_gone:
            return
        unsent = len(self.sends.unsent)
        if self._is_full and unsent <= self._low:
            self._is_full = False
            self.network.loop.call_soon(self._tell_writable, context=self.context)
        if not unsent and self._is_closing:
            self._close_now(None)

    def _tell_writable(self) -> None:
        if not self.is_gone:
            cast("asyncio.Protocol", self.protocol).resume_writing()

    def read_soon(self) -> None:
        """Something may be there to read."""
        if not self._reads_soon and not self.is_gone:
            self._reads_soon = True
            self.network.loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._reads_soon = False
        pipe = self.receives
        if not self._is_reading or self._is_closing or self.is_gone:
            return
        if pipe.arrived:
            self._take(pipe)
            if pipe.arrived or (pipe.end and not pipe.flying):
                self.read_soon()
        elif pipe.end == "fin" and not pipe.flying and not self._saw_eof:
            self._saw_eof = True
            if not cast("asyncio.Protocol", self.protocol).eof_received():
                self.close()

    def _take(self, pipe: _Pipe) -> None:
        count = self.network.cut(len(pipe.arrived))
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            count = min(count, len(buffer))
            buffer[:count] = pipe.arrived[:count]
            del pipe.arrived[:count]
            self.network.was_read(pipe, count)
            protocol.buffer_updated(count)
        else:
            data = bytes(pipe.arrived[:count])
            del pipe.arrived[:count]
            self.network.was_read(pipe, count)
            cast("asyncio.Protocol", protocol).data_received(data)


class Network:
    """All hosts, links and connections."""

    def __init__(self, loop: SimulatedLoop, source: random.Random) -> None:
        self.loop = loop
        self._random = source
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[tuple[str, int], Listening] = {}
        self._servers: dict[tuple[str, int], Server] = {}
        self._open: dict[Process | None, dict[int, Transport]] = {}
        self._numbers = 0
        self._ports = 30_000
        self.down: set[str] = set()
        """Hosts without power."""
        self.latency_seconds = LATENCY_SECONDS
        self.jitter_seconds = LATENCY_SECONDS
        """Of links that are made from now on."""
        self.window_bytes = 64 * 1024
        """What a system holds of one direction of a connection."""
        self.cut_probability = 0.1
        """How often a read gets less than is there."""

    def link(self, one: str, other: str) -> Link:
        """What lies between two hosts."""
        key = (one, other) if one <= other else (other, one)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self.latency_seconds, self.jitter_seconds)
        return found

    # -- faults ---------------------------------------------------------------------------------
    def partition(self, one: str, other: str) -> None:
        """Nothing passes between two hosts."""
        self.link(one, other).is_partitioned = True

    def heal(self, one: str, other: str) -> None:
        """What was held passes."""
        link = self.link(one, other)
        if not link.is_partitioned:
            return
        link.is_partitioned = False
        held, link.held = link.held, []
        for pipe in held:
            if pipe.reset_timer is not None:
                pipe.reset_timer.cancel()
                pipe.reset_timer = None
            # TCP sends again after a while, which grows with each try.
            self._fly_again(pipe, self._random.random() * 0.5)

    def reset(self, one: str, other: str) -> int:
        """Break the connections between two hosts, for both ends; how many."""
        count = 0
        for transport in self._all():
            own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            if {own[0], peer[0]} == {one, other} and not transport.is_gone:
                transport.lost(ConnectionResetError(errno.ECONNRESET, "connection reset"))
                count += 1
        return count

    def power_off(self, host: str) -> None:
        """The host says nothing any more; its connections are forgotten."""
        self.down.add(host)

    def power_on(self, host: str) -> None:
        """The host is back, and knows no connection."""
        self.down.discard(host)

    def process_died(self, process: Process) -> None:
        """Close what it had open, or forget it where its host has no power."""
        for name, server in list(self._servers.items()):
            if server.process is process:
                server.close()
                self._listening.pop(name, None)
        for name in [name for name in self._listening if name[0] == process.host]:
            if name not in self._servers:
                del self._listening[name]
        for transport in self._open.pop(process, {}).values():
            if process.host in self.down:
                transport.vanish()
            else:
                transport.died()

    # -- listening ------------------------------------------------------------------------------
    def install(self, patches: Patches) -> None:
        """Let servers listen here."""
        for module in (kerolox.remoting.server, kerolox.broker.replication.server):
            patches.set(module, "listening_sockets", self.listening_sockets)
        # A real descriptor of the same number says nothing of a simulated socket.
        of_remoting, of_grpc = kerolox.remoting.connection, kerolox.remoting.grpc.connection
        patches.set(of_remoting, "CAN_RESET", True)
        patches.set(of_remoting, "has_arrived", _Socket.has_arrived)
        patches.set(of_grpc, "acknowledged_bytes", _Socket.acknowledged_bytes)
        for module in (of_remoting, of_grpc):
            patches.set(module, "have_reset", _Socket.have_reset)

    async def listening_sockets(self, _host: str, port: int, _backlog: int) -> list[Any]:
        """In place of :func:`kerolox.remoting.listening.listening_sockets`."""
        process = current()
        assert process is not None
        return [self.listen(process, port)]

    def listen(self, process: Process, port: int) -> Listening:
        """A listening socket of a process."""
        name = (process.host, port or self.next_port())
        if name in self._listening:
            raise ConfigError(f"port {port} of {process.host} is in use")
        made = self._listening[name] = Listening(self, *name)
        return made

    def unlisten(self, name: tuple[str, int], listening: Listening) -> None:
        """The socket is closed."""
        if self._listening.get(name) is listening:
            del self._listening[name]
            self._servers.pop(name, None)

    def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        listening: Listening,
        *,
        start_serving: bool,
    ) -> Server:
        """What ``create_server`` gives."""
        server = Server(self, factory, listening)
        if start_serving:
            self.accept_with(server)
            server._serving = True
        return server

    def accept_with(self, server: Server) -> None:
        """New connections are the server's."""
        self._servers[server.sockets[0].getsockname()] = server

    # -- connections ----------------------------------------------------------------------------
    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection for the current process."""
        process = current()
        own = (process.host if process is not None else "10.9.9.9", self.next_port())
        place = (host, port)
        loop = self.loop
        link = self.link(own[0], host)
        asked = loop.create_future()
        began = loop.time()

        def arrive() -> None:
            if asked.done():
                return
            if link.is_partitioned or host in self.down:
                if loop.time() - began > CONNECT_SECONDS_MAX:
                    asked.set_exception(TimeoutError(errno.ETIMEDOUT, "connection timed out"))
                else:
                    # The system tries again: SYN after 1 s.
                    loop.call_later(1.0, arrive, context=_SYSTEM)
                return
            server = self._servers.get(place)
            if server is None:
                error = ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
                asked.set_exception(error)
                return
            asked.set_result(server)

        loop.call_later(self._delay(link), arrive, context=_SYSTEM)
        server: Server = await asked
        if self._servers.get(place) is not server or host in self.down:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")
        context = contextvars.copy_context()
        ours = Transport(self, process, context, own, place)
        theirs = Transport(self, server.process, server.context.copy(), place, own)
        for sender, receiver in ((ours, theirs), (theirs, ours)):
            pipe = _Pipe(link, self.window_bytes)
            pipe.sender, pipe.receiver = sender, receiver
            sender.sends = receiver.receives = pipe
        for transport in (ours, theirs):
            self._open.setdefault(transport.process, {})[transport.number] = transport
        theirs.protocol = server.factory()
        loop.call_soon(self._made, theirs, context=theirs.context)
        ours.protocol = factory()
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    def _made(self, transport: Transport) -> None:
        # Of one that was lost meanwhile, too: its loss is reported next.
        transport.protocol.connection_made(transport)
        transport.read_soon()

    def transports_of(self, process: Process | None) -> dict[int, Transport]:
        """The open connections of a process."""
        return self._open.get(process, {})

    def _all(self) -> list[Transport]:
        return [each for some in list(self._open.values()) for each in list(some.values())]

    def next_number(self) -> int:
        """One for each end of a connection."""
        self._numbers += 1
        return self._numbers

    def next_port(self) -> int:
        """A port that nobody has."""
        self._ports += 1
        return self._ports

    def gone(self, transport: Transport) -> None:
        """An end is closed."""
        self._open.get(transport.process, {}).pop(transport.number, None)

    def forget(self) -> None:
        """Drop everything: the end of a run."""
        for transport in self._all():
            transport.vanish()
        self._open.clear()
        self._servers.clear()
        self._listening.clear()
        self._links.clear()

    # -- bytes ----------------------------------------------------------------------------------
    def cut(self, count: int) -> int:
        """How many of so many bytes a read gets."""
        if count > 1 and self._random.random() < self.cut_probability:
            return self._random.randrange(1, count)
        return min(count, READ_BYTES)

    def _delay(self, link: Link) -> float:
        return link.latency_seconds + self._random.random() * link.jitter_seconds

    def push(self, pipe: _Pipe) -> None:
        """Let what fits into the window fly."""
        room = pipe.window - pipe.unread
        if room <= 0 or not pipe.unsent:
            return
        data = bytes(pipe.unsent[:room])
        del pipe.unsent[:room]
        pipe.unread += len(data)
        pipe.flying.append(data)
        self._fly(pipe)

    def finish(self, pipe: _Pipe, end: str) -> None:
        """Nothing follows what was written."""
        if pipe.end:
            return
        if pipe.unsent:
            pipe.flying.append(bytes(pipe.unsent))
            pipe.unread += len(pipe.unsent)
            pipe.unsent.clear()
            self._fly(pipe)
        pipe.end = end
        self._fly(pipe)

    def _fly(self, pipe: _Pipe) -> None:
        link = pipe.link
        if link.is_partitioned:
            self._hold(pipe)
            return
        if pipe in link.held:
            return
        pipe.last_at = max(pipe.last_at, self.loop.time() + self._delay(link))
        self.loop.call_at(pipe.last_at, self._arrive, pipe, context=_SYSTEM)

    def _hold(self, pipe: _Pipe) -> None:
        if pipe not in pipe.link.held:
            pipe.link.held.append(pipe)
            pipe.reset_timer = self.loop.call_later(
                RETRANSMIT_SECONDS_MAX * (0.3 + 0.7 * self._random.random()),
                self._give_up,
                pipe,
                context=_SYSTEM,
            )

    def _give_up(self, pipe: _Pipe) -> None:
        pipe.flying.clear()
        pipe.sender.lost(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    def _fly_again(self, pipe: _Pipe, pause: float) -> None:
        pipe.last_at = max(pipe.last_at, self.loop.time() + pause + self._delay(pipe.link))
        self.loop.call_at(pipe.last_at, self._arrive_all, pipe, context=_SYSTEM)

    def _arrive_all(self, pipe: _Pipe) -> None:
        left = len(pipe.flying) + 1
        while pipe.flying and len(pipe.flying) < left:
            # Where another partition or a host without power is in the way, nothing passes.
            left = len(pipe.flying)
            self._arrive(pipe)
        if pipe.end and not pipe.flying:
            self._arrive(pipe)

    def _arrive(self, pipe: _Pipe) -> None:
        if pipe.link.is_partitioned:
            self._hold(pipe)
            return
        receiver = pipe.receiver
        host = receiver.get_extra_info("sockname")[0]
        if host in self.down:
            # Nobody answers: the sender's system tries for a while.
            if not pipe.sender.is_gone and pipe.reset_timer is None and pipe.flying:
                pipe.reset_timer = self.loop.call_later(
                    RETRANSMIT_SECONDS_MAX, self._give_up, pipe, context=_SYSTEM
                )
            return
        data = pipe.flying.popleft() if pipe.flying else b""
        if receiver.is_gone:
            # A reset comes back.
            if (data or not receiver.sends.end) and not pipe.sender.is_gone:
                self.loop.call_later(
                    self._delay(pipe.link), self._reset_sender, pipe, context=_SYSTEM
                )
            return
        if data:
            pipe.arrived += data
            pipe.arrived_bytes += len(data)
            receiver.read_soon()
        elif pipe.end == "reset" and not pipe.flying:
            receiver.lost(ConnectionResetError(errno.ECONNRESET, "connection reset"))
        elif pipe.end and not pipe.flying:
            receiver.read_soon()

    def _reset_sender(self, pipe: _Pipe) -> None:
        pipe.sender.lost(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def was_read(self, pipe: _Pipe, count: int) -> None:
        """The receiver took so many bytes: there is room for more."""
        pipe.unread -= count
        if pipe.unsent and not pipe.sender.is_gone:
            self.push(pipe)
            pipe.sender.drained()
