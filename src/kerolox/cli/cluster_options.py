"""What the client commands share: name servers, account and TLS, and running work on a cluster.

The options of account and TLS are no arguments of the commands: :func:`security` has them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from kerolox.cli.process.logs import configure_logging
from kerolox.cli.process.running import run

if TYPE_CHECKING:
    from kerolox.admin import Admin
    from kerolox.cli.contexts import Context
    from kerolox.security.credentials import Credentials
    from kerolox.security.tls import Tls

_Result = TypeVar("_Result")

CONTEXT_VARIABLE = "KEROLOX_CONTEXT"
NAME_SERVER = "127.0.0.1:9876"
"""The default of ``-n``."""

_GIVEN = "kerolox.security"
_HAS_NAME_SERVER = "has_name_server"
_IS_OF_CONTEXT = "is_of_context"


class Security(NamedTuple):
    """How a command makes itself known, and how its connections are encrypted."""

    credentials: Credentials | None
    tls: Tls


def security() -> Security:
    """Of the command that runs, from its options, the environment and files.

    Raises:
        ConfigError: they don't fit together, or a file can't be read.
    """
    from kerolox.security.credentials import TOOL_VARIABLES, Credentials, tool_credentials
    from kerolox.security.tls import TlsSettings

    context = click.get_current_context(silent=True)
    given = context.meta.get(_GIVEN, {}) if context is not None else {}
    used = _context_in_use()
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


def _context_in_use() -> Context | None:
    """That of the command that runs; None: it has none, or one that name servers given override."""
    from kerolox.cli.contexts import context_in_use

    context = click.get_current_context(silent=True)
    if context is None:
        return None
    given = context.meta.get(_GIVEN, {})
    name = given.get("context") or os.environ.get(CONTEXT_VARIABLE)
    if not name and given.get(_HAS_NAME_SERVER):
        # Another cluster's keys are not for it.
        return None
    return context_in_use(name, os.environ)


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    context.meta.setdefault(_GIVEN, {})[option.name] = value


_SECURITY_OPTIONS = (
    click.option(
        "--context",
        metavar="NAME",
        callback=_keep,
        expose_value=False,
        is_eager=True,
        help="A cluster that kerolox context knows; also $KEROLOX_CONTEXT.",
    ),
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


def name_server_option(command: Callable[..., object]) -> Callable[..., object]:
    """``-n ADDR``, ``--context NAME``, and the options of account and TLS."""
    for option in reversed(_SECURITY_OPTIONS):
        command = option(command)
    return click.option(
        "-n",
        "name_server",
        callback=_name_server,
        metavar="ADDR",
        help="Name servers, host:port joined by ';'; else $NAMESRV_ADDR, the selected context's"
        f" (kerolox context), or {NAME_SERVER}.",
    )(command)


def _name_server(context: click.Context, option: click.Parameter, value: str | None) -> str:
    """What ``-n`` says, or what is next in line. A context that is named is stronger than
    ``$NAMESRV_ADDR``; one that is only selected is not."""
    given = context.meta.setdefault(_GIVEN, {})
    is_named = bool(given.get("context") or os.environ.get(CONTEXT_VARIABLE))
    value = value or (None if is_named else os.environ.get("NAMESRV_ADDR"))
    given[_HAS_NAME_SERVER] = bool(value)
    if value:
        return value
    used = _context_in_use()
    if used is None:
        return NAME_SERVER
    given[_IS_OF_CONTEXT] = True
    return used.name_server


def cluster_text(name_server: str) -> str:
    """The cluster of the command that runs, for people: its name servers, and the context that
    named them."""
    text = f"name server {name_server}"
    context = click.get_current_context(silent=True)
    given = context.meta.get(_GIVEN, {}) if context is not None else {}
    if not given.get(_IS_OF_CONTEXT):
        return text
    from kerolox.cli.contexts import contexts_file, read_contexts

    named = given.get("context") or os.environ.get(CONTEXT_VARIABLE)
    return f"{text}, context {named or read_contexts(contexts_file(os.environ)).selected}"


class Place(NamedTuple):
    """Where a command changes something; the arguments of that name of the admin functions."""

    cluster: str
    """Its masters; empty: of the only cluster there is."""
    broker: str
    """``host:port`` of one broker, it alone then; or empty."""


BROKER_HELP = "broker-a its master, broker-a@1 its slave with id 1, or HOST:PORT"


def broker_argument(command: Callable[..., object]) -> Callable[..., object]:
    """``BROKER``, a name or an address; the argument ``address``, which is ``host:port``."""

    @functools.wraps(command)
    def with_address(*, address: str, name_server: str, **given: object) -> object:
        known = resolved(name_server, address)
        return command(address=known, name_server=name_server, **given)

    return click.argument("address", metavar="BROKER")(with_address)


def resolved(name_server: str, broker: str) -> str:
    """The ``host:port`` of a broker that is named by that or by its name; empty stays empty.

    Raises:
        ClientError: no such broker is registered.
    """
    if not broker:
        return ""
    from kerolox.admin.asking import broker_address

    return on_cluster(name_server, lambda admin: broker_address(admin, broker))


def place_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--cluster`` and ``--broker``, together the argument ``place``, a :class:`Place`."""

    @functools.wraps(command)
    def with_place(*, cluster: str, broker: str, name_server: str, **given: object) -> object:
        if cluster and broker:
            raise click.UsageError("--cluster and --broker don't go together.")
        place = Place(cluster, resolved(name_server, broker))
        return command(place=place, name_server=name_server, **given)

    for option in (
        click.option(
            "--broker", default="", metavar="BROKER", help=f"This broker only: {BROKER_HELP}."
        ),
        click.option("--cluster", default="", metavar="NAME", help="The masters of this one only."),
    ):
        with_place = option(with_place)
    return with_place


def seconds_option(
    flag: str,
    text: str,
    *,
    least: float = 0,
    most: float | None = None,
    default: float | None = None,
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """A time in seconds; ``--stuck-after`` is the argument ``stuck_after_seconds``."""
    return click.option(
        flag,
        flag[2:].replace("-", "_") + "_seconds",
        type=click.FloatRange(least, most),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=text,
    )


def on_cluster(
    name_server: str,
    work: Callable[[Admin], Awaitable[_Result]],
    *,
    log_level: str = "warning",
) -> _Result:
    """Run ``work`` with an ``Admin`` of a cluster; ``log_level``: what is logged."""
    from kerolox.admin import Access, Admin
    from kerolox.client.aio.network.identity import name_servers_of
    from kerolox.remoting.client import RemotingClient

    configure_logging(log_level)
    name_servers = name_servers_of(name_server)
    credentials, tls = security()

    async def with_client() -> _Result:
        async with RemotingClient(credentials=credentials, tls=tls) as client:
            return await work(Admin.on(Access(client, name_servers)))

    return run(with_client())
