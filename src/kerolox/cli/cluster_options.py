"""What the client commands share: name servers, account and TLS, and running work on a cluster.

The options of account and TLS are no arguments of the commands: :func:`security` has them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from kerolox.cli.process.logs import configure_logging
from kerolox.cli.process.running import run

if TYPE_CHECKING:
    from kerolox.admin import Access
    from kerolox.security.credentials import Credentials
    from kerolox.security.tls import Tls

_Result = TypeVar("_Result")

_GIVEN = "kerolox.security"


class Security(NamedTuple):
    """How a command makes itself known, and how its connections are encrypted."""

    credentials: Credentials | None
    tls: Tls


def security() -> Security:
    """Of the command that runs, from its options, the environment and files.

    Raises:
        ConfigError: they don't fit together, or a file can't be read.
    """
    from kerolox.security.credentials import tool_credentials
    from kerolox.security.tls import TlsSettings

    context = click.get_current_context(silent=True)
    given = context.meta.get(_GIVEN, {}) if context is not None else {}
    credentials = tool_credentials(
        given.get("access_key"), given.get("secret_key"), given.get("security_token"), os.environ
    )
    config = given.get("tls_config")
    tls: Tls = bool(given.get("tls")) if config is None else TlsSettings.from_file(config)
    return Security(credentials, tls)


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    context.meta.setdefault(_GIVEN, {})[option.name] = value


_SECURITY_OPTIONS = (
    click.option(
        "--access-key",
        metavar="KEY",
        callback=_keep,
        expose_value=False,
        help="Account to sign requests with; also $KEROLOX_ACCESS_KEY,"
        " $ROCKETMQ_HOME/conf/tools.yml or ~/key.",
    ),
    click.option(
        "--secret-key",
        metavar="KEY",
        callback=_keep,
        expose_value=False,
        help="Its secret, which others see in the list of processes; rather $KEROLOX_SECRET_KEY.",
    ),
    click.option(
        "--security-token",
        metavar="TOKEN",
        callback=_keep,
        expose_value=False,
        help="Of a temporary account; also $KEROLOX_SECURITY_TOKEN.",
    ),
    click.option(
        "--tls",
        is_flag=True,
        envvar="KEROLOX_TLS",
        callback=_keep,
        expose_value=False,
        help="Encrypt connections; the system's authorities are trusted. Also $KEROLOX_TLS=1.",
    ),
    click.option(
        "--tls-config",
        type=click.Path(path_type=Path),
        envvar="KEROLOX_TLS_CONFIG",
        metavar="FILE",
        callback=_keep,
        expose_value=False,
        help="Encrypt them as tls.client.* in this file says; also $KEROLOX_TLS_CONFIG.",
    ),
)


def name_server_option(command: Callable[..., None]) -> Callable[..., None]:
    """``-n ADDR``, and the options of account and TLS."""
    for option in reversed(_SECURITY_OPTIONS):
        command = option(command)
    return click.option(
        "-n",
        "name_server",
        envvar="NAMESRV_ADDR",
        default="127.0.0.1:9876",
        show_default=True,
        metavar="ADDR",
        help="Name servers, host:port joined by ';'; also $NAMESRV_ADDR.",
    )(command)


def on_cluster(name_server: str, work: Callable[[Access], Awaitable[_Result]]) -> _Result:
    """Run ``work`` with access to a cluster."""
    from kerolox.admin import Access
    from kerolox.client.aio.network.identity import name_servers_of
    from kerolox.remoting.client import RemotingClient

    configure_logging("warning")
    name_servers = name_servers_of(name_server)
    credentials, tls = security()

    async def with_client() -> _Result:
        async with RemotingClient(credentials=credentials, tls=tls) as client:
            return await work(Access(client, name_servers))

    return run(with_client())
