"""``kerolox controller``: runs one, or has commands about controllers that run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import controller_option
from kerolox.cli.commands.serve import controller as serve_controller
from kerolox.cli.commands.serving import serving_group
from kerolox.cli.confirming import (
    Consent,
    confirm,
    consent_options,
    dry_run_option,
    print_dry_run,
)
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import Column, is_text, number_column, show_rows
from kerolox.cli.values import settings_given

if TYPE_CHECKING:
    from kerolox.admin import Admin, ControllerState, SyncStateSetInfo

_Result = TypeVar("_Result")


controller = serving_group(
    serve_controller, "controller", "Run a controller, or examine and change those of a group."
)


def _ask(controllers: str, work: Callable[[Admin], Awaitable[_Result]]) -> _Result:
    """No name server is asked: the addresses of controllers are given."""
    return on_cluster(controllers, work, doing=f"waiting for controllers {controllers}")


@controller.command("list")
@output_option
@controller_option
def list_command(output: str, controllers: str) -> None:
    """Print the controllers of a group: who leads, terms, how far their logs are."""
    states = _ask(controllers, lambda admin: admin.controller_states(controllers))
    rows = [_controller_row(address, state) for address, state in states.items()]
    columns = (
        Column("id", "ID"),
        Column("address", "ADDRESS"),
        Column("role", "ROLE"),
        number_column("term", "TERM"),
        number_column("commitIndex", "COMMITTED"),
        number_column("appliedIndex", "APPLIED"),
        Column("version", "VERSION"),
        Column("remark", "REMARK"),
    )
    show_rows(rows, columns, output)
    if is_text(output) and not any(row["role"] == "leader" for row in rows):
        complain("kerolox: no controller leads now; a majority has to run and to reach each other")


def _controller_row(address: str, state: ControllerState | str) -> dict[str, object]:
    if isinstance(state, str):
        names = ("id", "role", "term", "commitIndex", "appliedIndex", "version")
        return {**dict.fromkeys(names), "address": address, "remark": state}
    remarks = [state.fault] if state.fault else []
    if state.learns:
        remarks.append("began with an empty folder, and has not caught up yet")
    if state.put_back:
        remarks.append(
            f"the folder of {', '.join(state.put_back)} is an older copy: stop it, empty that"
        )
    return {
        "id": state.node_id,
        "address": address,
        "role": state.role,
        "leader": state.leader_address,
        "group": state.group,
        "term": state.term,
        "commitIndex": state.commit_index,
        "appliedIndex": state.applied_index,
        "version": state.version,
        "remark": "; ".join(remarks),
    }


@controller.command("describe")
@click.argument(
    "names", nargs=-1, metavar="[BROKER_NAME]...", shell_complete=completing.controlled_brokers
)
@output_option
@controller_option
def describe_command(names: tuple[str, ...], output: str, controllers: str) -> None:
    """Print the brokers of each name, or of all: master, epoch, who is in sync and alive."""
    sets = _ask(controllers, lambda admin: admin.sync_state_sets(controllers, names))
    missing = [name for name in names if name not in sets]
    if missing:
        from kerolox.errors import NotFoundError

        raise NotFoundError(f"the controllers know no broker {', '.join(missing)}")
    columns = (
        Column("brokerName", "BROKER"),
        number_column("brokerId", "ID"),
        Column("role", "ROLE"),
        Column("address", "ADDRESS"),
        Column("inSync", "IN SYNC"),
        Column("alive", "ALIVE"),
        number_column("masterEpoch", "EPOCH"),
        number_column("syncStateSetEpoch", "SET EPOCH"),
    )
    show_rows([row for each in sets.values() for row in _replica_rows(each)], columns, output)
    if is_text(output):
        for each in sets.values():
            if each.master_id is None:
                complain(f"kerolox: {each.broker_name} has no master now")


def _replica_rows(info: SyncStateSetInfo) -> list[dict[str, object]]:
    return [
        {
            "brokerName": info.broker_name,
            "brokerId": each.broker_id,
            "role": "master" if each.broker_id == info.master_id else "slave",
            "address": each.address,
            "inSync": each.is_in_sync,
            "alive": each.is_alive,
            "masterEpoch": info.master_epoch,
            "syncStateSetEpoch": info.sync_state_set_epoch,
        }
        for each in info.replicas
    ]


@controller.command("elect")
@click.argument("broker_name", metavar="BROKER_NAME", shell_complete=completing.controlled_brokers)
@click.argument("broker_id", metavar="ID", type=click.IntRange(min=1))
@click.option("--cluster", default="", metavar="NAME", help="Its cluster; RocketMQ wants it.")
@dry_run_option
@output_option
@controller_option
def elect_command(
    broker_name: str, broker_id: int, cluster: str, dry_run: bool, output: str, controllers: str
) -> None:
    """Have the broker with this ID become the master of BROKER_NAME.

    It has to be alive and in sync. What the old master acknowledged is kept.
    """

    async def work(admin: Admin) -> tuple[SyncStateSetInfo | None, tuple[int, str, int] | None]:
        before = (await admin.sync_state_sets(controllers, [broker_name])).get(broker_name)
        if dry_run:
            return before, None
        elected = await admin.elect_master(controllers, broker_name, broker_id, cluster=cluster)
        return before, (elected.master_id, elected.master_address, elected.master_epoch)

    before, elected = _ask(controllers, work)
    old = None if before is None else before.master_id
    row: dict[str, object] = {
        "brokerName": broker_name,
        "oldMaster": old,
        "master": elected[0] if elected else broker_id,
        "address": elected[1] if elected else None,
        "masterEpoch": elected[2] if elected else None,
        "done": elected is not None,
    }
    _show_change(row, f"master of {broker_name}: {old or 'none'} → {row['master']}", output)
    if dry_run:
        print_dry_run(output)


@controller.command("clean")
@click.argument("broker_name", metavar="BROKER_NAME", shell_complete=completing.controlled_brokers)
@click.option(
    "--id", "ids", type=int, multiple=True, metavar="ID", help="A broker; may be repeated."
)
@click.option("--cluster", default="", metavar="NAME", help="Its cluster; RocketMQ wants it.")
@click.option("--even-if-alive", is_flag=True, help="Those too that send heartbeats.")
@consent_options
@output_option
@controller_option
def clean_command(
    broker_name: str,
    ids: tuple[int, ...],
    cluster: str,
    even_if_alive: bool,
    consent: Consent,
    output: str,
    controllers: str,
) -> None:
    """Have controllers forget brokers of BROKER_NAME that are gone for ever; without --id all."""
    which = ", ".join(map(str, ids)) or "all"
    question = f"Forget brokers {which} of {broker_name}?"
    is_done = confirm(question, consent, output, controllers)
    if is_done:
        _ask(
            controllers,
            lambda admin: admin.clean_broker_metadata(
                controllers, broker_name, ids, cluster=cluster, even_if_alive=even_if_alive
            ),
        )
    row: dict[str, object] = {"brokerName": broker_name, "brokerIds": list(ids), "done": is_done}
    if is_done or not is_text(output):
        _show_change(row, f"brokers {which} of {broker_name} are forgotten", output)


@controller.group("config", cls=CommandGroup)
def config() -> None:
    """Show and change settings of controllers that run."""


@config.command("show")
@click.argument(
    "names", nargs=-1, metavar="[KEY]...", shell_complete=completing.controller_settings
)
@output_option
@controller_option
def show_command(names: tuple[str, ...], output: str, controllers: str) -> None:
    """Print the settings in force of the controllers of -a, and what waits for a restart."""
    told = _ask(controllers, lambda admin: admin.controller_settings(controllers))
    rows = [
        {"controller": address, "key": key, "value": value}
        for address, settings in told.items()
        for key, value in sorted(settings.items())
        if not names or key in names
    ]
    columns = (Column("controller", "CONTROLLER"), Column("key", "KEY"), Column("value", "VALUE"))
    show_rows(rows, columns, output)


@config.command("set")
@click.argument(
    "pairs",
    nargs=-1,
    required=True,
    metavar="KEY=VALUE...",
    shell_complete=completing.controller_assignments,
)
@dry_run_option
@output_option
@controller_option
def set_command(pairs: tuple[str, ...], dry_run: bool, output: str, controllers: str) -> None:
    """Change settings of the controllers of -a, and write them to their files."""
    wanted = settings_given(pairs)

    async def work(admin: Admin) -> dict[str, dict[str, str]]:
        before = await admin.controller_settings(controllers)
        if not dry_run:
            await admin.update_controller_settings(controllers, wanted)
        return before

    before = _ask(controllers, work)
    rows = [
        {"controller": address, "key": key, "old": settings.get(key), "new": wanted[key]}
        for address, settings in before.items()
        for key in wanted
    ]
    columns = (
        Column("controller", "CONTROLLER"),
        Column("key", "KEY"),
        Column("old", "OLD"),
        Column("new", "NEW"),
    )
    show_rows(rows, columns, output)
    if dry_run:
        print_dry_run(output)


@controller.group("members", cls=CommandGroup)
def members() -> None:
    """Take controllers into a group, or out of it, one by one."""


@members.command("add")
@click.argument("node_id", metavar="ID")
@click.argument("address", metavar="HOST:PORT")
@dry_run_option
@output_option
@controller_option
def add_command(node_id: str, address: str, dry_run: bool, output: str, controllers: str) -> None:
    """Take the controller with this ID in, or know another address of it.

    Start it before, with an empty folder and settings that name all controllers.
    """
    _change_members(
        controllers,
        node_id,
        address,
        output,
        lambda admin: admin.add_controller(controllers, node_id, address),
        dry_run=dry_run,
    )


@members.command("remove")
@click.argument("node_id", metavar="ID", shell_complete=completing.controllers)
@dry_run_option
@output_option
@controller_option
def remove_command(node_id: str, dry_run: bool, output: str, controllers: str) -> None:
    """Do without the controller with this ID from now on. Stop it then."""
    _change_members(
        controllers,
        node_id,
        None,
        output,
        lambda admin: admin.remove_controller(controllers, node_id),
        dry_run=dry_run,
    )


def _change_members(
    controllers: str,
    node_id: str,
    address: str | None,
    output: str,
    change: Callable[[Admin], Awaitable[None]],
    *,
    dry_run: bool,
) -> None:
    async def work(admin: Admin) -> dict[str, ControllerState | str]:
        before = await admin.controller_states(controllers)
        if not dry_run:
            await change(admin)
        return before

    states = _ask(controllers, work).values()
    known = {n: a for each in states if not isinstance(each, str) for n, a in each.members.items()}
    old = known.get(node_id)
    row: dict[str, object] = {"id": node_id, "old": old, "new": address, "done": not dry_run}
    _show_change(row, f"controller {node_id}: {old or 'none'} → {address or 'none'}", output)
    if dry_run:
        print_dry_run(output)


def _show_change(row: dict[str, object], text: str, output: str) -> None:
    if is_text(output):
        print_line(text)
        return
    from kerolox.cli.rows import columns_of, show_row

    show_row(row, columns_of(row), output)
