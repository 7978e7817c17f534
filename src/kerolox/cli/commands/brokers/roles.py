"""``kerolox broker role``, ``promote``, ``demote``: who is the master."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import (
    BROKER_HELP,
    broker_argument,
    name_server_option,
    resolved,
    seconds_option,
)
from kerolox.cli.confirming import dry_run_option, print_dry_run
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import output_option, print_line
from kerolox.cli.rows import (
    Column,
    columns_of,
    is_text,
    number_column,
    show_record,
    show_row,
)

if TYPE_CHECKING:
    from kerolox.admin import BrokerRole, PromotionPlan, RoleChanged

_timeout_option = seconds_option(
    "--timeout",
    "How long the slave may take to come near the end of its master's log.",
    least=1,
    default=60.0,
)


@click.command("role", cls=Command)
@broker_argument
@output_option
@name_server_option
def role_command(address: str, output: str, name_server: str) -> None:
    """Print the role of a broker, master or slave, and the end of its log."""

    role = on_cluster(name_server, lambda admin: admin.broker_role(address))
    show_record(
        {
            "address": role.address,
            "broker": role.broker_name,
            "brokerId": role.broker_id,
            "role": role.role,
            "state": _state(role),
            "master": role.master,
            "slaves": role.slaves,
            "epoch": role.epoch,
            "logBegin": role.log_begin,
            "logEnd": role.log_end,
        },
        (
            Column("address", "ADDRESS"),
            Column("broker", "BROKER"),
            number_column("brokerId", "ID"),
            Column("role", "ROLE"),
            Column("state", "STATE"),
            Column("master", "MASTER"),
            number_column("slaves", "SLAVES"),
            number_column("epoch", "EPOCH"),
            number_column("logBegin", "LOG FROM"),
            number_column("logEnd", "LOG TO"),
        ),
        output,
    )


@click.command("promote", cls=Command)
@broker_argument
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on where messages that were acknowledged may be lost: the master is gone.",
)
@click.option(
    "--role",
    type=click.Choice(["ASYNC_MASTER", "SYNC_MASTER"]),
    help="What it becomes; default: what its master is or was.",
)
@_timeout_option
@dry_run_option
@output_option
@name_server_option
def promote_command(
    address: str,
    accept_loss: bool,
    role: str | None,
    timeout_seconds: float,
    dry_run: bool,
    output: str,
    name_server: str,
) -> None:
    """Make a slave the master.

    While its master is there, both change places and nothing is lost. When that is gone, messages
    may be lost that were on no slave; the command says so, and does nothing without --accept-loss.
    """

    if dry_run:
        _show_plan(on_cluster(name_server, lambda admin: admin.plan_promotion(address)), output)
        return
    changed = on_cluster(
        name_server,
        lambda admin: admin.promote_broker(
            address,
            accept_loss=accept_loss,
            role=role or "",
            timeout_seconds=timeout_seconds,
            on_step=_print_step if is_text(output) else None,
        ),
    )
    _show_changed(changed, output)


@click.command("demote", cls=Command)
@broker_argument
@click.option(
    "--to",
    default="",
    metavar="BROKER",
    shell_complete=completing.brokers,
    help=f"The slave that takes its place: {BROKER_HELP}.",
)
@click.option("--without-master", is_flag=True, help="Nobody takes its place.")
@_timeout_option
@dry_run_option
@output_option
@name_server_option
def demote_command(
    address: str,
    to: str,
    without_master: bool,
    timeout_seconds: float,
    dry_run: bool,
    output: str,
    name_server: str,
) -> None:
    """Make a master a slave: of the one that takes its place, or of a newer master."""
    from kerolox.admin.roles.changing import plan_demotion

    if to and without_master:
        raise click.UsageError("--to and --without-master don't go together.")
    to = resolved(name_server, to)
    if dry_run:
        plan = on_cluster(
            name_server,
            lambda admin: plan_demotion(admin, address, to=to, without_master=without_master),
        )
        if plan is not None:
            _show_plan(plan, output)
        elif is_text(output):
            print_line(f"{address} would be a slave; nobody takes its place")
            print_dry_run(output)
        else:
            row = {"address": address, "done": False}
            show_row(row, columns_of(row), output)
        return
    changed = on_cluster(
        name_server,
        lambda admin: admin.demote_broker(
            address,
            to=to,
            without_master=without_master,
            timeout_seconds=timeout_seconds,
            on_step=_print_step if is_text(output) else None,
        ),
    )
    if changed is not None:
        _show_changed(changed, output)
    elif is_text(output):
        print_line(f"{address} is a slave")
    else:
        row = {"address": address, "role": "SLAVE"}
        show_row(row, columns_of(row), output)


def _show_plan(plan: PromotionPlan, output: str) -> None:
    if not is_text(output):
        row = {
            "broker": plan.broker_name,
            "address": plan.broker,
            "master": plan.master,
            "lost": plan.lost,
            "done": False,
        }
        show_row(row, columns_of(row), output)
        return
    if plan.master:
        print_line(f"{plan.broker} would be the master of {plan.broker_name}, with all messages")
        print_line(f"{plan.master} would be its slave")
    else:
        print_line(f"{plan.broker} would be the master of {plan.broker_name}: that is gone")
        print_line(
            f"messages may be lost, which needs --accept-loss: {plan.lost}"
            if plan.lost
            else "nothing that was acknowledged is lost"
        )
    print_dry_run(output)


def _print_step(step: str) -> None:
    print_line(f"  {step}")


def _show_changed(changed: RoleChanged, output: str) -> None:
    if not is_text(output):
        row = {
            "broker": changed.broker_name,
            "master": changed.master,
            "role": changed.role,
            "epoch": changed.epoch,
            "logEnd": changed.log_end,
            "formerMaster": changed.former_master,
            "notTold": changed.not_told,
            "notListedAt": changed.not_listed_at,
        }
        show_row(row, columns_of(row), output)
        return
    print_line(
        f"{changed.master} is the master of {changed.broker_name} ({changed.role}, epoch "
        f"{changed.epoch}), with a log up to {changed.log_end}"
    )
    if changed.former_master:
        print_line(f"{changed.former_master} is its slave")
    for slave, reason in changed.not_told.items():
        print_line(f"{slave} was not notified, name servers tell it: {reason}")
    for name_server, reason in changed.not_listed_at.items():
        print_line(
            f"name server {name_server} does not list {changed.master} as the master yet: "
            f"{reason}; after a failure of its machine that takes up to 90 s (kerolox broker list)"
        )


def _state(role: BrokerRole) -> str:
    """Of a master whether it takes messages, of a slave whether it follows."""
    if role.role == "SLAVE":
        return "follows" if role.is_following else "waits for its master"
    if role.newer_epoch:
        return f"takes no messages: the master of epoch {role.newer_epoch} is newer"
    return "paused" if role.is_paused else "takes messages"
