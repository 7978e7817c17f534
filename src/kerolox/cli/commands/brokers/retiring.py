"""``kerolox broker retire`` and ``return``: take a broker out of service, and bring it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import broker_argument, name_server_option, seconds_option
from kerolox.cli.confirming import dry_run_option, print_dry_run
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import columns_of, is_text, show_row
from kerolox.text import counted

if TYPE_CHECKING:
    from kerolox.admin import Admin, BrokerDrain


@click.command("retire", cls=Command)
@broker_argument
@click.option("--force", is_flag=True, help="Even if its topics are on no other broker.")
@click.option("--no-wait", is_flag=True, help="Only say what is left; don't wait for that.")
@click.option(
    "--ignore-group",
    "ignored",
    multiple=True,
    metavar="GROUP",
    help="Do not wait for this group; may be repeated.",
)
@seconds_option(
    "--quiet",
    "Wait until no message came for so long; default: 40, as clients learn routes every 30.",
)
@seconds_option("--timeout", "Give up after so long, with exit code 1; the broker stays retired.")
@dry_run_option
@output_option
@name_server_option
def retire_command(
    address: str,
    force: bool,
    no_wait: bool,
    ignored: tuple[str, ...],
    quiet_seconds: float | None,
    timeout_seconds: float | None,
    dry_run: bool,
    output: str,
    name_server: str,
) -> None:
    """Take a master out of service: no new messages, then wait until it can be stopped.

    Producers choose other brokers (brokerPermission=4). It goes on delivering until each group has
    consumed all of its messages, and no delayed message and no open transaction is left. Interrupt
    it at any time: the broker stays retired, and the command can be run again.
    """
    from kerolox.admin.roles.retiring import QUIET_SECONDS

    progress = _Progress() if is_text(output) else None

    async def work(admin: Admin) -> BrokerDrain:
        alone = await admin.retire_broker(address, force=force, dry_run=dry_run)
        if progress is not None:
            progress.retired(address, alone, is_done=not dry_run)
        if no_wait or dry_run:
            return await admin.broker_drain(address, ignored=ignored)
        return await admin.wait_until_drained(
            address,
            quiet_seconds=QUIET_SECONDS if quiet_seconds is None else quiet_seconds,
            timeout_seconds=timeout_seconds,
            ignored=ignored,
            on_look=progress,
        )

    found = on_cluster(name_server, work, doing=f"waiting until {address} can be stopped")
    row = _row(found, is_safe=not (no_wait or dry_run)) | {"done": not dry_run}
    if progress is None:
        show_row(row, columns_of(row), output)
        return
    if no_wait or dry_run:
        print_line(_left_text(found))
        if dry_run:
            print_dry_run(output)
        return
    for topic, count in found.unread.items():
        unread = f"{counted(count, 'message')} of {topic}, which no group reads"
        complain(f"kerolox: on its disk stay {unread}")
    print_line(f"{address} can be stopped; kerolox broker return {address} undoes it")


class _Progress:
    """Says what is left whenever that has changed."""

    def __init__(self) -> None:
        self._said = ""

    def retired(self, address: str, alone: list[str], *, is_done: bool) -> None:
        if is_done:
            complain(f"kerolox: {address} gets no new messages")
        else:
            complain(f"kerolox: {address} would get no new messages")
        if alone and is_done:
            complain(f"kerolox: nobody can send to {', '.join(alone)} now")
        elif alone:
            complain(f"kerolox: nobody could send to {', '.join(alone)}")

    def __call__(self, found: BrokerDrain) -> None:
        text = _left_text(found)
        if text != self._said:
            complain(f"kerolox: {text}")
            self._said = text


def _left_text(found: BrokerDrain) -> str:
    lag = sum(found.lag.values())
    behind = sorted({group for group, _ in found.lag})
    parts = [f"{counted(lag, 'message')} left for {', '.join(behind)}"] if lag else []
    if found.delayed:
        parts.append(counted(found.delayed, "delayed message"))
    if found.transactions:
        parts.append(counted(found.transactions, "open transaction"))
    if found.sending:
        parts.append(f"{', '.join(found.sending)} still sends producers there")
    return "; ".join(parts) or "all is consumed; no more message may come"


def _row(found: BrokerDrain, *, is_safe: bool) -> dict[str, object]:
    return {
        "address": found.address,
        "broker": found.broker_name,
        "safeToStop": is_safe,
        "lag": [
            {"group": group, "topic": topic, "messages": count}
            for (group, topic), count in found.lag.items()
        ],
        "delayed": found.delayed,
        "transactions": found.transactions,
        "unread": found.unread,
        "sending": list(found.sending),
    }


@click.command("return", cls=Command)
@broker_argument
@dry_run_option
@output_option
@name_server_option
def return_command(address: str, dry_run: bool, output: str, name_server: str) -> None:
    """Bring a master back into service (brokerPermission=6)."""

    on_cluster(name_server, lambda admin: admin.return_broker(address, dry_run=dry_run))
    if is_text(output):
        print_line(f"{address} {'would get' if dry_run else 'gets'} new messages again")
        if dry_run:
            print_dry_run(output)
    else:
        row = {"address": address, "returned": not dry_run, "done": not dry_run}
        show_row(row, columns_of(row), output)
