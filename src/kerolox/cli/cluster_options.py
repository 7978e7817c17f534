"""Options that commands share: of the connection, the place of a change, a broker, a topic, a time.

The options of account and TLS are no arguments of the commands: ``connecting.security`` has them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from kerolox.cli.completing import brokers, clusters, contexts, topics
from kerolox.cli.connecting import (
    GIVEN,
    HAS_NAME_SERVER,
    IS_OF_CONTEXT,
    named_context,
    on_cluster,
    used_context,
)
from kerolox.cli.grouping import ConnectionOption

_Result = TypeVar("_Result")

NAME_SERVER = "127.0.0.1:9876"
"""The default of ``-n``."""


CONTROLLER = "127.0.0.1:9878"
"""The default of ``-a``."""


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    context.meta.setdefault(GIVEN, {})[option.name] = value


_SECURITY_OPTIONS = (
    click.option(
        "--context",
        cls=ConnectionOption,
        subject="which cluster",
        metavar="NAME",
        shell_complete=contexts,
        callback=_keep,
        expose_value=False,
        is_eager=True,
        help="A cluster that kerolox context knows; also $KEROLOX_CONTEXT.",
    ),
    click.option(
        "--access-key",
        cls=ConnectionOption,
        subject="as whom",
        metavar="KEY",
        callback=_keep,
        expose_value=False,
        help="Account to sign requests with; also $KEROLOX_ACCESS_KEY,"
        " $ROCKETMQ_HOME/conf/tools.yml or ~/key.",
    ),
    click.option(
        "--secret-key",
        cls=ConnectionOption,
        subject="as whom",
        metavar="KEY",
        callback=_keep,
        expose_value=False,
        help="Its secret; others see it in the list of processes, so prefer $KEROLOX_SECRET_KEY.",
    ),
    click.option(
        "--security-token",
        cls=ConnectionOption,
        subject="as whom",
        metavar="TOKEN",
        callback=_keep,
        expose_value=False,
        help="Token of a temporary account; also $KEROLOX_SECURITY_TOKEN.",
    ),
    click.option(
        "--tls",
        cls=ConnectionOption,
        subject="encrypted how",
        is_flag=True,
        envvar="KEROLOX_TLS",
        callback=_keep,
        expose_value=False,
        help="Encrypt connections; the system's authorities are trusted. Also $KEROLOX_TLS=1.",
    ),
    click.option(
        "--tls-config",
        cls=ConnectionOption,
        subject="encrypted how",
        type=click.Path(path_type=Path),
        envvar="KEROLOX_TLS_CONFIG",
        metavar="FILE",
        callback=_keep,
        expose_value=False,
        help="Encrypt connections as tls.client.* in this file says; also $KEROLOX_TLS_CONFIG.",
    ),
)


def name_server_option(command: Callable[..., object]) -> Callable[..., object]:
    """``-n ADDR``, ``--context NAME``, and the options of account and TLS."""
    for option in reversed(_SECURITY_OPTIONS):
        command = option(command)
    return click.option(
        "-n",
        "name_server",
        cls=ConnectionOption,
        subject="which cluster",
        callback=_name_server,
        metavar="ADDR",
        help="Name servers, host:port joined by ';'; else $NAMESRV_ADDR, the selected context's"
        f" (kerolox context), or {NAME_SERVER}.",
    )(command)


def _name_server(context: click.Context, option: click.Parameter, value: str | None) -> str:
    """What ``-n`` says, or what is next in line. A context that is named is stronger than
    ``$NAMESRV_ADDR``; one that is only selected is not."""
    given = context.meta.setdefault(GIVEN, {})
    value = value or (None if named_context() else os.environ.get("NAMESRV_ADDR"))
    given[HAS_NAME_SERVER] = bool(value)
    if value:
        return value
    used = used_context()
    if used is None:
        return NAME_SERVER
    given[IS_OF_CONTEXT] = True
    return used.name_server


def controller_option(command: Callable[..., object]) -> Callable[..., object]:
    """``-a ADDR``, the argument ``controllers``, and the options of account and TLS."""
    for option in reversed(_SECURITY_OPTIONS):
        command = option(command)
    return click.option(
        "-a",
        "--controllers",
        envvar="KEROLOX_CONTROLLERS",
        default=CONTROLLER,
        metavar="ADDR",
        help="Controllers, host:port joined by ';', one of a group is enough; else"
        f" $KEROLOX_CONTROLLERS, or {CONTROLLER}.",
    )(command)


@name_server_option
def _nothing() -> None:
    """Has the options."""


CONNECTION_OPTIONS: tuple[ConnectionOption, ...] = tuple(
    reversed(vars(_nothing)["__click_params__"])
)
"""Those of every command that asks a cluster."""


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

    return click.argument("address", metavar="BROKER", shell_complete=brokers)(with_address)


def resolved(name_server: str, broker: str) -> str:
    """The ``host:port`` of a broker that is named by that or by its name; empty stays empty.
    ClientError: no such broker is registered.
    """
    if not broker:
        return ""
    from kerolox.admin.asking import broker_address

    return on_cluster(name_server, lambda admin: broker_address(admin, broker))


def cluster_option(text: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """``--cluster``, the argument ``cluster``; empty: none is given."""
    return click.option("--cluster", default="", metavar="NAME", shell_complete=clusters, help=text)


def topic_option(
    text: str, *, default: str = ""
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """``--topic``, the argument ``topic``; empty: none is given."""
    return click.option(
        "--topic",
        default=default,
        show_default=bool(default),
        metavar="TOPIC",
        shell_complete=topics,
        help=text,
    )


def place_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--cluster`` and ``--broker``, together the argument ``place``, a :class:`Place`."""

    @functools.wraps(command)
    def with_place(*, cluster: str, broker: str, name_server: str, **given: object) -> object:
        if cluster and broker:
            raise click.UsageError("--cluster and --broker don't go together.")
        place = Place(cluster, resolved(name_server, broker))
        return command(place=place, name_server=name_server, **given)

    with_broker = click.option(
        "--broker",
        default="",
        metavar="BROKER",
        shell_complete=brokers,
        help=f"This broker only: {BROKER_HELP}.",
    )(with_place)
    return cluster_option("The masters of this cluster only.")(with_broker)


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
