"""Servers of the command line: they start, say what they are, serve, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.addresses import is_loopback, join_address, split_address
from kerolox.cli.process import running as process
from kerolox.cli.process.loop import STOP_SECONDS_MAX, run
from kerolox.cli.process.running import Started, running, say
from kerolox.release import __version__
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from kerolox.broker.config import BrokerConfig
    from kerolox.controller.config import ControllerConfig
    from kerolox.controller.server import Controller
    from kerolox.namesrv.config import NamesrvConfig
    from kerolox.namesrv.server import NameServer
    from kerolox.role_settings import RoleSettings

REGISTERED_SECONDS_MAX = 5.0
"""How long ``up`` waits for its broker to be registered before it says that it is ready."""

GRPC_PORT = 8081
"""Where ``up`` listens for gRPC, as RocketMQ's proxy, unless it is told otherwise."""

LOOPBACK = "127.0.0.1"
"""How this machine reaches a server that listens on all addresses."""

COLLECT_AFTER_SECONDS = 1.0
"""How long after a start its garbage is freed, which takes 20 ms."""

YOUNG_OBJECTS, YOUNG_RUNS = 700, 5
"""New objects before Python's collector examines those, and how often before it examines somewhat
older ones, too: a millisecond."""

OLD_SECONDS = 10.0
"""How often it may examine all objects. That takes tens of milliseconds where clients have said
much, and no request is answered meanwhile."""

OLD_RUNS_MIN = 10
"""Runs of the collector over younger objects without which it is not worth it."""

NEVER = 1 << 30

_log = logging.getLogger(__name__)


def serve(
    started: AbstractAsyncContextManager[Started],
    ready_file: Path | None,
    *,
    stop_seconds_max: float = STOP_SECONDS_MAX,
) -> None:
    """Run servers until a signal stops them. Errors: see ``process.running.serve``."""
    run(process.serve(started, ready_file, stop_seconds_max=stop_seconds_max))


@asynccontextmanager
async def up(
    namesrv_config: NamesrvConfig, broker_config: BrokerConfig, *, wants_grpc: bool = False
) -> AsyncIterator[Started]:
    """A name server and a broker that is registered with it. ``wants_grpc``: it has a port for
    gRPC, or says why that can't be."""
    from kerolox.broker.broker import Broker
    from kerolox.namesrv.server import NameServer

    name_server = NameServer(namesrv_config)
    async with running(name_server):
        address = near_address(name_server)
        # Only now is the port known when it was to be any free one. Nobody else can be there, so
        # that a certificate is enough that is for another name, or that the server has made.
        config = broker_config.overridden(namesrv_addr=address, tls_client_auth_server=False)
        if wants_grpc:
            config = config.overridden(grpc_server_port=GRPC_PORT)
        server = Broker(config, may_lack_grpc=wants_grpc)
        async with running(server):
            await wait_until_registered(server)
            say_all(namesrv_lines(name_server))
            say_all(broker_lines(server, config))
            warn_of_strangers(*name_server.listen_addresses, *server.listen_addresses)
            collect_from_now_on()
            addresses = {"namesrv": address, "broker": server.address}
            yield Started(addresses, (name_server, server))


@asynccontextmanager
async def namesrv(
    config: NamesrvConfig, beside: ControllerConfig | None = None
) -> AsyncIterator[Started]:
    """A name server. ``beside``: with a controller (``enableControllerInNamesrv``)."""
    from kerolox.namesrv.server import NameServer

    name_server = NameServer(config)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(name_server))
        say_all(namesrv_lines(name_server))
        warn_of_strangers(*name_server.listen_addresses)
        addresses = {"namesrv": near_address(name_server)}
        roles: tuple[NameServer | Controller, ...] = (name_server,)
        if beside is not None:
            roles = (name_server, await stack.enter_async_context(_running_controller(beside)))
            addresses["controller"] = beside.own_address
        collect_from_now_on()
        yield Started(addresses, roles)


@asynccontextmanager
async def broker(config: BrokerConfig) -> AsyncIterator[Started]:
    """A broker."""
    from kerolox.broker.broker import Broker

    server = Broker(config)
    async with running(server):
        say_all(broker_lines(server, config))
        warn_of_strangers(*server.listen_addresses)
        collect_from_now_on()
        yield Started({"broker": server.address}, (server,))


@asynccontextmanager
async def controller(config: ControllerConfig) -> AsyncIterator[Started]:
    """A controller."""
    async with _running_controller(config) as server:
        collect_from_now_on()
        yield Started({"controller": config.own_address}, (server,))


@asynccontextmanager
async def _running_controller(config: ControllerConfig) -> AsyncIterator[Controller]:
    from kerolox.controller.server import Controller

    server = Controller(config)
    async with running(server):
        say(f"controller   listens on {_shown(server.listen_addresses)}")
        say(f"             stores in {config.controller_store_path}")
        say_all(_settings_lines(config))
        warn_of_strangers(*server.listen_addresses)
        yield server


def collect_from_now_on() -> None:
    """Have the collector of Python go from here on, and leave alone what a start has made. What of
    it is garbage is freed before, when clients have had their first answers."""
    gc.enable()
    asyncio.get_running_loop().call_later(COLLECT_AFTER_SECONDS, _freeze)


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_RUNS, NEVER)
    asyncio.get_running_loop().call_later(OLD_SECONDS, _collect_old)


def _collect_old() -> None:
    """Examine all objects, seldom: the collector by itself does so ten times a second while clients
    say much."""
    if gc.get_count()[2] >= OLD_RUNS_MIN:
        gc.collect()
    asyncio.get_running_loop().call_later(OLD_SECONDS, _collect_old)


async def wait_until_registered(server: Broker) -> None:
    """Wait until clients can find the broker; what is said then tells whether they can."""
    if server.parts.peers.registration.reasons:
        await server.parts.peers.registration.now(timeout_seconds=REGISTERED_SECONDS_MAX)


def near_address(name_server: NameServer) -> str:
    """How this machine reaches it."""
    host, port = split_address(name_server.listen_addresses[0])
    near = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return join_address(near, port)


def warn_of_strangers(*addresses: str) -> None:
    """Say so where others than this machine may do as they like at the addresses of servers."""
    far = [address for address in addresses if not is_loopback(split_address(address)[0])]
    if far:
        _log.warning(
            "whoever reaches %s may read, write and delete everything, and change settings: there "
            "is no access control; listen on fewer addresses (--host, listenHost), or let a "
            "firewall choose who comes through",
            ", ".join(far),
        )


def _warn_of_nobody(server: Broker) -> None:
    """Say so where name servers send clients to an address that nobody listens on."""
    config = server.config
    is_near = all(is_loopback(split_address(each)[0]) for each in server.listen_addresses)
    if is_near and not config.advertised_address and not is_loopback(config.broker_ip1):
        _log.warning(
            "clients are sent to %s (brokerIP1), and the broker listens on %s only; give --host "
            "(listenHost) an address that they reach",
            server.address,
            ", ".join(server.listen_addresses),
        )


def say_all(lines: Iterable[str]) -> None:
    """Print lines for whoever started a server."""
    for line in lines:
        say(line)


def namesrv_lines(name_server: NameServer) -> list[str]:
    """What is said of a name server that answers."""
    return [
        f"name server  listens on {_shown(name_server.listen_addresses)}",
        f"             stores in {name_server.config.kv_config_path.parent}",
        *_settings_lines(name_server.config),
    ]


def broker_lines(server: Broker, config: BrokerConfig) -> list[str]:
    """What is said of a broker that answers. What is to be minded is in the log, too."""
    lines = [f"broker       listens on {_shown(server.listen_addresses)}"]
    if server.grpc_addresses:
        lines.append(f"             listens for gRPC on {_shown(server.grpc_addresses)}")
    lines += _registered_lines(server)
    lines.append(f"             stores in {config.store_path_root_dir}")
    lines.append(f"             Kerolox {__version__}, kernel {server.parts.kernel.text}")
    lines += _settings_lines(config)
    if server.why_no_grpc:
        lines.append(f"             no gRPC, for clients of RocketMQ 5: {server.why_no_grpc}")
    _warn_of_nobody(server)
    return lines


def _registered_lines(server: Broker) -> Iterator[str]:
    """Which name servers know the broker. What changes later is in the log."""
    registration = server.parts.peers.registration
    if registration.registered:
        known = ", ".join(registration.registered)
        yield f"             registered as {server.address} with {known}"
    for name_server, reason in registration.reasons.items():
        yield f"             NOT registered with {name_server}, tried again: {reason}"
    if not server.config.name_servers:
        yield "             registered nowhere: no name server is given (-n, namesrvAddr)"


def _shown(addresses: tuple[str, ...]) -> str:
    text = ", ".join(addresses)
    if all(is_loopback(split_address(each)[0]) for each in addresses):
        text += " (this machine only)"
    return text


def _settings_lines(config: RoleSettings) -> Iterator[str]:
    """Which file the settings are of: without -c, the one that requests have written."""
    source = config.source
    if source is None or not source.keys:
        return
    if source.path is not None:
        yield f"             settings of {source.path}"
    else:
        keys = printable(", ".join(source.keys))
        yield f"             settings that requests changed, of {config.kept_file}: {keys}"
