"""Running servers from the command line: signals, the ready file, a bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from kerolox.cli.output import print_line
from kerolox.cli.process.logs import TEXT, configure_logging, log_stream, reopen_log
from kerolox.cli.process.loop import STOP_SECONDS_MAX
from kerolox.cli.process.notify import notify_ready, notify_reloading, notify_stopping
from kerolox.cli.process.signals import ServerSignals, ignore_early_signals
from kerolox.errors import ConfigError, KeroloxError
from kerolox.tasks import end_tasks

_log = logging.getLogger(__name__)


class Role(Protocol):
    """A server that the command line starts and stops."""

    async def start(self) -> None:
        """Serve from here on."""
        ...

    async def stop(self) -> None:
        """Release everything, in bounded time."""
        ...

    async def reload_settings(self) -> None:
        """Read the settings file again."""
        ...


def say(text: str) -> None:
    """Print a line for whoever started a server; it goes on when nobody reads any more."""
    try:
        print_line(text)
        sys.stdout.flush()
    except OSError:
        # A pipe without a reader, or a terminal that is gone.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)


def make_files_private() -> None:
    """Files that the process makes from here on are for its user to write and its group to read.
    They are 0640 and folders 0750, or less where the umask was stricter. What is there stays as it
    is. Both kernels, tables, logs and the ready file follow the one umask."""
    os.umask(os.umask(0o077) | 0o027)


def raise_descriptor_limit() -> None:
    """Let the process open as many files and sockets as the system lets it (``ulimit -Hn``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("at most %d files and sockets can be open: %s", soft, error)


def prepare_server(
    log_level: str, log_file: Path | None, log_format: str = TEXT, *, who: str = ""
) -> None:
    """What a process does before it becomes a server. ``who``: in its log lines, where several
    write to one place.

    Raises:
        ConfigError: the log file can't be opened.
    """
    ignore_early_signals()
    make_files_private()
    configure_logging(log_level, log_file, form=log_format, who=who)
    raise_descriptor_limit()


class Started(NamedTuple):
    """Servers that answer."""

    addresses: dict[str, str]
    """Name → address of each (``{"namesrv": "127.0.0.1:9876"}``): the lines of the ready file."""
    roles: tuple[Role, ...]


async def serve(
    started: AbstractAsyncContextManager[Started],
    ready_file: Path | None,
    *,
    stop_seconds_max: float = STOP_SECONDS_MAX,
) -> None:
    """Start servers, say so, reload at each SIGHUP, wait for SIGTERM or SIGINT, stop them.

    Args:
        started: starts the servers on entry and stops them on exit.
        ready_file: written whole when the servers answer, removed when they stop.
        stop_seconds_max: how long their stop may take.

    Raises:
        ConfigError: the ready file can't be written, or the servers did not stop in time.
        KeroloxError: what a start raises.
    """
    # A page of a mapped file that can't be read, for example, is a signal that ends the process.
    with contextlib.suppress(RuntimeError, OSError, ValueError):
        faulthandler.enable(log_stream())
    _remove(ready_file)
    with ServerSignals() as signals:
        servers = await _started(started, signals.stopping, stop_seconds_max)
        if servers is None:
            say("stopped before the start was done")
            return
        reloading = asyncio.ensure_future(_reload_always(signals, servers))
        try:
            if not signals.stopping.is_set():
                _write_ready(ready_file, servers.addresses)
                notify_ready(_status(servers))
                await signals.stopping.wait()
            notify_stopping()
            say("stopping")
        finally:
            await end_tasks(reloading)
            _remove(ready_file)
            await _stop(started, stop_seconds_max)


async def _reload_always(signals: ServerSignals, servers: Started) -> None:
    """At each SIGHUP open the log file anew and read the settings again."""
    while True:
        await signals.reloading.wait()
        signals.reloading.clear()
        notify_reloading()
        reopen_log()
        _log.info("SIGHUP: the log file was opened anew, settings are read again")
        for role in servers.roles:
            try:
                await role.reload_settings()
            except Exception:
                _log.exception("settings could not be read again; those in force stay")
        notify_ready(_status(servers))


def _status(servers: Started) -> str:
    return ", ".join(f"{name} {address}" for name, address in servers.addresses.items())


async def _started(
    started: AbstractAsyncContextManager[Started],
    stopping: asyncio.Event,
    stop_seconds_max: float,
) -> Started | None:
    """What the start gives; None when a signal came first. A start that fails or is cancelled
    releases all that it took."""
    starting = asyncio.ensure_future(started.__aenter__())
    signalled = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if starting.done():
        return starting.result()
    await end_tasks(starting, seconds_max=stop_seconds_max)
    return None


async def _stop(started: AbstractAsyncContextManager[Started], seconds_max: float) -> None:
    try:
        async with asyncio.timeout(seconds_max):
            await started.__aexit__(None, None, None)
    except TimeoutError:
        raise KeroloxError(f"the servers did not stop within {seconds_max:g} s") from None


@asynccontextmanager
async def running(*roles: Role) -> AsyncIterator[None]:
    """Start the roles in order, stop them in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        for role in roles:
            await role.start()
            stack.push_async_callback(role.stop)
        yield


def _remove(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


def _write_ready(path: Path | None, addresses: dict[str, str]) -> None:
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text("".join(f"{name}={a}\n" for name, a in addresses.items()))
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"the ready file {path} can't be written: {error.strerror}") from error
