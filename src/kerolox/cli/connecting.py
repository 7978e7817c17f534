"""Which cluster a command asks and as whom, by its options, the environment and contexts.

The options are in :mod:`kerolox.cli.cluster_options`. What they say is kept in the ``meta`` of the
command's context.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kerolox.cli.output import (
    STATUS_AFTER_SECONDS,
    STATUS_SECONDS,
    clear_status,
    has_status,
    show_status,
)

if TYPE_CHECKING:
    from kerolox.admin import Admin
    from kerolox.cli.contexts import Context
    from kerolox.security.credentials import Credentials
    from kerolox.security.tls import Tls

_Result = TypeVar("_Result")

CONTEXT_VARIABLE = "KEROLOX_CONTEXT"

GIVEN = "kerolox.security"
"""Member of a command's ``meta``: option → value, of those that say how it is connected."""
HAS_NAME_SERVER = "has_name_server"
"""Member of it: name servers were given, by an option or a variable."""
IS_OF_CONTEXT = "is_of_context"
"""Member of it: a context named them."""


class Security(NamedTuple):
    """How a command makes itself known, and how its connections are encrypted."""

    credentials: Credentials | None
    tls: Tls


def given_options() -> dict[str, Any]:
    """Option → value, of the command that runs: how it is connected. Empty without one."""
    context = click.get_current_context(silent=True)
    return context.meta.get(GIVEN, {}) if context is not None else {}


def named_context() -> str | None:
    """What ``--context`` of the command that runs says, or ``$KEROLOX_CONTEXT``."""
    return given_options().get("context") or os.environ.get(CONTEXT_VARIABLE)


def security() -> Security:
    """Of the command that runs, from its options, the environment and files.

    Raises:
        ConfigError: they don't fit together, or a file can't be read.
    """
    from kerolox.security.credentials import TOOL_VARIABLES, Credentials, tool_credentials
    from kerolox.security.tls import TlsSettings

    given = given_options()
    used = used_context()
    keys = given.get("access_key"), given.get("secret_key"), given.get("security_token")
    is_given = any(keys) or any(os.environ.get(name) for name in TOOL_VARIABLES)
    credentials = (
        Credentials.from_file(Path(used.credentials_file).expanduser())
        if used is not None and used.credentials_file and not is_given
        else tool_credentials(*keys, os.environ)
    )
    config = given.get("tls_config")
    if config is None and used is not None and used.tls_config and not given.get("tls"):
        config = Path(used.tls_config).expanduser()
    is_wanted = bool(given.get("tls")) or (used is not None and used.tls)
    tls: Tls = is_wanted if config is None else TlsSettings.from_file(config)
    return Security(credentials, tls)


def security_of(context: Context) -> Security:
    """Of a context alone, whatever options and variables say: they are for another cluster.

    Raises:
        ConfigError: a file can't be read.
    """
    from kerolox.security.credentials import Credentials
    from kerolox.security.tls import TlsSettings

    file, config = context.credentials_file, context.tls_config
    credentials = Credentials.from_file(Path(file).expanduser()) if file else None
    tls = TlsSettings.from_file(Path(config).expanduser()) if config else context.tls
    return Security(credentials, tls)


def used_context() -> Context | None:
    """That of the command that runs; None: it has none, or one that name servers given override."""
    if click.get_current_context(silent=True) is None:
        return None
    name = named_context()
    if not name and given_options().get(HAS_NAME_SERVER):
        # Another cluster's keys are not for it.
        return None
    from kerolox.cli.contexts import context_in_use

    return context_in_use(name, os.environ)


def cluster_text(name_server: str) -> str:
    """The cluster of the command that runs, for people: its name servers, and the context that
    named them."""
    text = f"name server {name_server}"
    if not given_options().get(IS_OF_CONTEXT):
        return text
    from kerolox.cli.contexts import contexts_file, read_contexts

    return f"{text}, context {named_context() or read_contexts(contexts_file(os.environ)).selected}"


def on_cluster(
    name_server: str,
    work: Callable[[Admin], Awaitable[_Result]],
    *,
    log_level: str = "warning",
    many: bool = False,
    doing: str | Callable[[], str] = "",
) -> _Result:
    """Run ``work`` with an ``Admin`` of a cluster.

    Args:
        name_server: its name servers.
        work: gets the ``Admin``.
        log_level: what is logged.
        many: messages go through without end, or as fast as they can.
        doing: what a terminal is told while it lasts; empty: who is waited for, unless ``many``.
    """
    from kerolox.admin.by_need import admin_by_need
    from kerolox.client.aio.network.access import Access
    from kerolox.client.aio.network.identity import name_servers_of
    from kerolox.remoting.client import RemotingClient

    name_servers = name_servers_of(name_server)
    credentials, tls = security()

    async def with_client() -> _Result:
        async with RemotingClient(credentials=credentials, tls=tls) as client:
            return await work(admin_by_need(Access(client, name_servers)))

    return with_clients(name_server, with_client, log_level=log_level, many=many, doing=doing)


def with_clients(
    name_server: str,
    work: Callable[[], Coroutine[object, None, _Result]],
    *,
    log_level: str = "warning",
    many: bool = False,
    doing: str | Callable[[], str] = "",
) -> _Result:
    """Run ``work``, which has clients of its own, and needs no ``Admin``: what that imports takes
    longer than one request. Arguments: see :func:`on_cluster`."""
    from kerolox.cli.process.logs import configure_logging
    from kerolox.cli.process.loop import run

    configure_logging(log_level)

    async def with_status() -> _Result:
        if (many and not doing) or not has_status():
            return await work()
        return await _with_status(work(), doing or f"waiting for {cluster_text(name_server)}")

    return run(with_status(), many=many)


async def _with_status(work: Awaitable[_Result], doing: str | Callable[[], str]) -> _Result:
    """Wait for ``work``, and show what it does when that takes long."""
    import asyncio

    async def show() -> None:
        begin = time.monotonic()
        await asyncio.sleep(STATUS_AFTER_SECONDS)
        while True:
            text = doing if isinstance(doing, str) else doing()
            show_status(f"{text}, {time.monotonic() - begin:.0f} s")
            await asyncio.sleep(STATUS_SECONDS)

    showing = asyncio.ensure_future(show())
    try:
        return await work
    finally:
        showing.cancel()
        clear_status()
