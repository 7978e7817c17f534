"""``kerolox mcp``: tools for agents, over standard input and output."""

from __future__ import annotations

from pathlib import Path

import click

from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.connecting import named_context, security
from kerolox.cli.grouping import Command
from kerolox.errors import ConfigError

_PATH = click.Path(path_type=Path)


@click.command(cls=Command)
@click.option("--actions", is_flag=True, help="Offer tools that change something.")
@click.option(
    "--role",
    type=click.Choice(("viewer", "operator", "admin")),
    default="operator",
    show_default=True,
    help="Whose tools there are; the roles are those of the console.",
)
@click.option(
    "--schemas",
    type=_PATH,
    envvar="KEROLOX_CONSOLE_SCHEMAS",
    metavar="FILE",
    help="Show bodies by Avro and Protobuf schemas (JSON); also $KEROLOX_CONSOLE_SCHEMAS.",
)
@click.option(
    "--log-file", type=_PATH, metavar="FILE", help="Where the log goes, instead of stderr."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged.",
)
@name_server_option
def mcp(
    actions: bool,
    role: str,
    schemas: Path | None,
    log_file: Path | None,
    log_level: str,
    name_server: str,
) -> None:
    """Serve tools about a cluster to an agent, by the Model Context Protocol over stdio.

    An agent's program starts this command. It reads only, unless --actions is given: then it has
    the actions of the console that the role allows, and each leaves an audit line in the log. Needs
    the extra: pip install 'kerolox[mcp]'.

    \b
    kerolox mcp -n 127.0.0.1:9876
    kerolox --context production mcp --actions --role operator
    """
    try:
        from kerolox.mcp.server import ToolServer, ToolSettings
    except ImportError as error:
        raise ConfigError(
            f"{error}; tools for agents need an extra: pip install 'kerolox[mcp]'"
        ) from None
    from kerolox.cli.process.logs import configure_logging
    from kerolox.cli.process.loop import run
    from kerolox.cli.process.running import make_files_private
    from kerolox.client import ClientSettings
    from kerolox.console.schemas import read_schemas
    from kerolox.console.security.roles import Role

    make_files_private()
    configure_logging(log_level, log_file)
    credentials, tls = security()
    server = ToolServer(
        ToolSettings(name_server, actions, Role[role.upper()], named_context() or ""),
        ClientSettings(credentials=credentials, tls=tls),
        schemas=read_schemas(schemas) if schemas else None,
    )

    async def serve() -> None:
        await server.start()
        try:
            await server.serve()
        finally:
            await server.stop()

    run(serve())
