"""``kerolox name-server``: the key-values that name servers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.confirming import dry_run_option, print_dry_run
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import output_option, print_line
from kerolox.cli.rows import Column, columns_of, is_text, show_row, show_rows

if TYPE_CHECKING:
    from kerolox.admin import Admin

_namespace_argument = click.argument("namespace", shell_complete=completing.namespaces)


@click.group("name-server", cls=CommandGroup)
def name_server() -> None:
    """Read, set and delete the key-values of name servers.

    Clients read some of them: ORDER_TOPIC_CONFIG has the queues of topics that are sent to in
    order. All name servers of the cluster are changed.

    \b
    kerolox name-server get ORDER_TOPIC_CONFIG
    kerolox name-server set ORDER_TOPIC_CONFIG Orders 'broker-a:4;broker-b:4' --dry-run
    """


@name_server.command("get")
@_namespace_argument
@click.argument("key", required=False)
@output_option
@name_server_option
def get_command(namespace: str, key: str | None, output: str, name_server: str) -> None:
    """Print the key-values of NAMESPACE, or the value of KEY alone."""
    values = on_cluster(name_server, lambda admin: admin.key_values(namespace))
    if key is None:
        rows = [{"namespace": namespace, "key": each, "value": values[each]} for each in values]
        show_rows(rows, (Column("key", "KEY"), Column("value", "VALUE")), output)
        if not rows and is_text(output):
            print_line(f"namespace {namespace} has no key-values")
        return
    if key not in values:
        _refuse_missing(namespace, key, values)
    if is_text(output):
        print_line(values[key])
        return
    row = {"namespace": namespace, "key": key, "value": values[key]}
    show_row(row, columns_of(row), output)


@name_server.command("set")
@_namespace_argument
@click.argument("key")
@click.argument("value")
@dry_run_option
@output_option
@name_server_option
def set_command(
    namespace: str, key: str, value: str, dry_run: bool, output: str, name_server: str
) -> None:
    """Set KEY of NAMESPACE to VALUE at all name servers, and print what it was."""

    async def work(admin: Admin) -> tuple[str | None, list[str]]:
        old = await admin.get_key_value(namespace, key)
        if dry_run:
            return old, list(admin.access.name_servers)
        return old, await admin.put_key_value(namespace, key, value)

    old, addresses = on_cluster(name_server, work)
    _show_change(namespace, key, old, value, addresses, output, is_done=not dry_run)


@name_server.command("delete")
@_namespace_argument
@click.argument("key")
@dry_run_option
@output_option
@name_server_option
def delete_command(namespace: str, key: str, dry_run: bool, output: str, name_server: str) -> None:
    """Delete KEY of NAMESPACE at all name servers, and print what it was, to set it again."""

    async def work(admin: Admin) -> tuple[str, list[str]]:
        values = await admin.key_values(namespace)
        if key not in values:
            _refuse_missing(namespace, key, values)
        if dry_run:
            return values[key], list(admin.access.name_servers)
        return values[key], await admin.delete_key_value(namespace, key)

    old, addresses = on_cluster(name_server, work)
    _show_change(namespace, key, old, None, addresses, output, is_done=not dry_run)


def _refuse_missing(namespace: str, key: str, values: dict[str, str]) -> None:
    from kerolox.config import nearest
    from kerolox.errors import ClientError

    best = nearest(key, values)
    hint = f"; did you mean {best!r}?" if best else f"; it has {', '.join(values) or 'none'}"
    raise ClientError(f"namespace {namespace!r} has no key {key!r}{hint}")


def _show_change(
    namespace: str,
    key: str,
    old: str | None,
    new: str | None,
    addresses: list[str],
    output: str,
    *,
    is_done: bool,
) -> None:
    if not is_text(output):
        row: dict[str, object] = {
            "namespace": namespace,
            "key": key,
            "old": old,
            "new": new,
            "nameServers": addresses,
            "done": is_done,
        }
        show_row(row, columns_of(row), output)
        return
    before = "nothing" if old is None else old
    after = "nothing" if new is None else new
    print_line(f"{namespace} {key} on {', '.join(addresses)}: {before} → {after}")
    if not is_done:
        print_dry_run(output)
