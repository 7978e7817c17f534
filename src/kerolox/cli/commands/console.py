"""``kerolox console``: pages in a browser for who operates a cluster, and their users."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.connecting import security
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, print_line
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from kerolox.cli.contexts import Context
    from kerolox.cli.process.running import Started
    from kerolox.console.console import Console
    from kerolox.console.security.oidc_settings import OidcSettings
    from kerolox.console.security.users import User
    from kerolox.console.settings import ConsoleSettings

_PATH = click.Path(path_type=Path)
_USERS = click.option(
    "--users",
    type=_PATH,
    envvar="KEROLOX_CONSOLE_USERS",
    metavar="FILE",
    help="File of users; also $KEROLOX_CONSOLE_USERS. Default: console-users.json in the folder "
    "of kerolox context.",
)
_ROLES = ("viewer", "operator", "admin")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8089,
    show_default=True,
    help="Port to listen on; 0: any that is free.",
)
@click.option("--actions", is_flag=True, help="Allow changes, to those whose role allows them.")
@_USERS
@click.option(
    "--oidc",
    type=_PATH,
    envvar="KEROLOX_CONSOLE_OIDC",
    metavar="FILE",
    help="Sign-in by OpenID Connect: provider and roles (JSON); also $KEROLOX_CONSOLE_OIDC.",
)
@click.option(
    "--schemas",
    type=_PATH,
    envvar="KEROLOX_CONSOLE_SCHEMAS",
    metavar="FILE",
    help="Show bodies by Avro and Protobuf schemas (JSON); also $KEROLOX_CONSOLE_SCHEMAS.",
)
@click.option(
    "--history",
    type=_PATH,
    metavar="FILE",
    help="Where rates and lag of a week are kept (SQLite). Default: in ~/.local/state/kerolox.",
)
@click.option(
    "--contexts",
    default="",
    metavar="NAMES",
    help="Clusters of kerolox context to choose from in the header, joined by commas; or all.",
)
@click.option(
    "--title",
    default="",
    metavar="NAME",
    help="What pages call the cluster; else its name servers.",
)
@click.option(
    "--tls-certificate", type=_PATH, metavar="FILE", help="Serve HTTPS with this certificate (PEM)."
)
@click.option("--tls-key", type=_PATH, metavar="FILE", help="Its private key, PEM.")
@click.option(
    "--trust-proxy",
    multiple=True,
    metavar="ADDR",
    help="A proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; may be repeated.",
)
@click.option(
    "--root-path",
    default="",
    metavar="/PATH",
    help="The path under which a proxy serves the console.",
)
@click.option("--insecure", is_flag=True, help="Serve plain HTTP to other machines.")
@click.option("--sample-seconds", type=float, default=15.0, show_default=True, hidden=True)
@click.option("--ready-file", type=_PATH, metavar="FILE", help="Written when it answers.")
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
@click.pass_context
def console(context: click.Context, /, **given: object) -> None:
    """Serve pages about a cluster, Kerolox's or Java's, to people in browsers.

    They log in; 'kerolox console user add NAME' says who may, or a provider does (--oidc). Nothing
    can be changed unless --actions is given. Needs the extra: pip install 'kerolox[console]'.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        from kerolox.console.settings import ConsoleSettings, history_file, users_file
    except ImportError as error:
        raise _missing(error) from None
    from kerolox.cli.process.loop import run
    from kerolox.cli.process.running import prepare_server, serve

    prepare_server(str(given["log_level"]), _path(given["log_file"]))
    settings = ConsoleSettings(
        name_server=str(given["name_server"]),
        users=_path(given["users"]) or users_file(os.environ),
        history=_path(given["history"]) or history_file(os.environ),
        title=str(given["title"]),
        host=str(given["host"]),
        port=int(str(given["port"])),
        actions=bool(given["actions"]),
        certificate=_path(given["tls_certificate"]),
        private_key=_path(given["tls_key"]),
        insecure=bool(given["insecure"]),
        trusted_proxies=tuple(map(str, _list(given["trust_proxy"]))),
        root_path=str(given["root_path"]),
        schemas=_path(given["schemas"]),
        oidc=_oidc(_path(given["oidc"])),
        sample_seconds=float(str(given["sample_seconds"])),
    )
    named = str(given["contexts"])
    if named and ParameterSource.COMMANDLINE in (
        context.get_parameter_source("name_server"),
        context.get_parameter_source("title"),
    ):
        raise click.UsageError("--contexts does not go together with -n and --title.")
    chosen = _chosen_contexts(named)
    run(serve(_started(settings, chosen), _path(given["ready_file"])))


@console.group()
def user() -> None:
    """Show and change who may log in to the console, and as what."""


@user.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    default="viewer",
    show_default=True,
    help="What the user may do.",
)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@_USERS
def add_command(name: str, role: str, password_stdin: bool, users: Path | None) -> None:
    """Add a user, or give one another role and password.

    The password is asked for on a terminal; it is no option, since others see those.
    """
    from kerolox.console.security.users import User, check_name, hash_password

    check_name(name)
    path, known = _users(users)
    is_new = name not in known
    known[name] = User(role, hash_password(_password(password_stdin)))
    _write(path, known)
    print_line(f"user {name} is {'added' if is_new else 'changed'}, role {role}, in {path}")


@user.command("remove")
@click.argument("name")
@_USERS
def remove_command(name: str, users: Path | None) -> None:
    """Remove a user; open sessions end at once."""
    path, known = _users(users)
    if name not in known:
        raise ConfigError(f"{path} has no user {name!r}; it has {', '.join(known) or 'none'}")
    del known[name]
    _write(path, known)
    print_line(f"user {name} is removed from {path}")


@user.command("list")
@_USERS
def list_command(users: Path | None) -> None:
    """Print names and roles."""
    path, known = _users(users)
    for name, each in sorted(known.items()):
        print_line(f"{name} {each.role}")
    if not known:
        complain(f"kerolox: {path} has no users; kerolox console user add NAME makes one")


def _chosen_contexts(names: str) -> dict[str, Context]:
    """Those of the option ``--contexts``, by name; empty: it is not given."""
    from kerolox.cli.contexts import contexts_file, read_contexts

    if not names:
        return {}
    path = contexts_file(os.environ)
    kept = read_contexts(path)
    wanted = sorted(kept.contexts) if names == "all" else names.split(",")
    if not wanted:
        raise ConfigError(f"{path} has no context; kerolox context add makes one")
    return {name.strip(): kept.find(name.strip()) for name in wanted}


def _consoles(settings: ConsoleSettings, chosen: dict[str, Context]) -> Console:
    """The first console; its ``shared`` has those of the other contexts."""
    from kerolox.cli.connecting import security_of
    from kerolox.client import ClientSettings
    from kerolox.console.console import Console, Shared

    if not chosen:
        credentials, tls = security()
        return Console(settings, ClientSettings(credentials=credentials, tls=tls))
    shared, consoles = Shared(settings), []
    for name, each in chosen.items():
        file = settings.history
        own = replace(
            settings,
            name_server=each.name_server,
            # A history is of one cluster.
            history=file.with_name(f"{file.stem}-{name}{file.suffix}") if file else None,
        )
        credentials, tls = security_of(each)
        client_settings = ClientSettings(credentials=credentials, tls=tls)
        consoles.append(Console(own, client_settings, context=name, shared=shared))
    return consoles[0]


@asynccontextmanager
async def _started(settings: ConsoleSettings, chosen: dict[str, Context]) -> AsyncIterator[Started]:
    try:
        from kerolox.console.server import ConsoleServer
    except ImportError as error:
        raise _missing(error) from None
    from kerolox.cli.process.running import Started, running, say

    console = _consoles(settings, chosen)
    server = ConsoleServer(console)
    async with running(server):
        scheme = "https" if settings.certificate else "http"
        changes = "on" if settings.actions else "off (--actions)"
        say(
            f"console at {scheme}://{server.address}{settings.root_path}/ of "
            f"{', '.join(chosen) or settings.name_server}, changes {changes}"
        )
        yield Started({"console": server.address}, (server,))


def _oidc(path: Path | None) -> OidcSettings | None:
    from kerolox.console.security.oidc_settings import read_oidc_settings

    return None if path is None else read_oidc_settings(path)


def _users(given: Path | None) -> tuple[Path, dict[str, User]]:
    from kerolox.console.security.users import read_users
    from kerolox.console.settings import users_file

    path = given or users_file(os.environ)
    return path, read_users(path) if path.exists() else {}


def _write(path: Path, users: dict[str, User]) -> None:
    from kerolox.console.security.users import write_users

    write_users(path, users)


def _password(from_stdin: bool) -> str:
    from kerolox.security.credentials import without_line_end

    if from_stdin:
        return without_line_end(sys.stdin.readline(4096)) or ""
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on; give --password-stdin.")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"{error}; the console needs an extra: pip install 'kerolox[console]'")


def _path(value: object) -> Path | None:
    return value if isinstance(value, Path) else None


def _list(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()
