"""What the client commands share: the name server option, and running work on a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from kerolox.cli.process.logs import configure_logging
from kerolox.cli.process.running import run

if TYPE_CHECKING:
    from kerolox.admin import Access

_Result = TypeVar("_Result")


def name_server_option(command: Callable[..., None]) -> Callable[..., None]:
    """``-n ADDR``."""
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

    async def with_client() -> _Result:
        async with RemotingClient() as client:
            return await work(Access(client, name_servers))

    return run(with_client())
