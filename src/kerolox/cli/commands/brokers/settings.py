"""``kerolox broker config``: what a broker is set to, and what waits for a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import Place, broker_argument, name_server_option, place_options
from kerolox.cli.confirming import dry_run_option, print_dry_run
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import Column, is_text, show_rows
from kerolox.cli.values import settings_given

if TYPE_CHECKING:
    from kerolox.admin import Admin

UNKNOWN, DEFAULT, SET = "", "default", "set"
"""Where a value comes from; nothing: the default of that key is not known here."""


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and change settings of brokers that run.

    \b
    kerolox broker config show broker-a --set
    kerolox broker config set maxMessageSize=8388608 --broker broker-a
    """


@config.command("show")
@broker_argument
@click.argument("names", nargs=-1, metavar="[KEY]...", shell_complete=completing.settings)
@click.option("--set", "only_set", is_flag=True, help="Only what differs from the default.")
@click.option("--waiting", is_flag=True, help="Only what waits for a restart.")
@output_option
@name_server_option
def show_command(
    address: str,
    names: tuple[str, ...],
    only_set: bool,
    waiting: bool,
    output: str,
    name_server: str,
) -> None:
    """Print the settings in force, which of them are no defaults, and what waits for a restart.

    What a broker of Kerolox runs stands behind them: its version and its kernel.
    """
    rows = _rows(on_cluster(name_server, lambda admin: _in_force(admin, address)))
    missing = set(names) - {str(row["key"]) for row in rows}
    if missing:
        raise click.UsageError(
            f"{address} has no setting {', '.join(sorted(missing))}; without a KEY all are printed."
        )
    shown = [
        row
        for row in rows
        if (not names or row["key"] in names)
        and (not only_set or row["source"] == SET)
        and (not waiting or row["afterRestart"] is not None)
    ]
    columns = (
        Column("key", "KEY"),
        Column("value", "VALUE"),
        Column("source", "IS"),
        Column("default", "DEFAULT"),
        Column("afterRestart", "AFTER A RESTART"),
    )
    show_rows(shown, columns, output)
    if shown or not is_text(output):
        return
    if waiting:
        print_line(f"nothing waits for a restart of {address}")
    elif only_set:
        print_line(f"all settings of {address} are the defaults")


async def _in_force(admin: Admin, address: str) -> dict[str, str]:
    """A broker's settings, and behind them what it runs."""
    from kerolox.protocol.codes import KEROLOX_KERNEL, KEROLOX_VERSION

    told = (await admin.broker_runtime(address)).values
    runs = {key: told[key] for key in (KEROLOX_VERSION, KEROLOX_KERNEL) if key in told}
    return await admin.broker_settings(address) | runs


def _rows(settings: dict[str, str]) -> list[dict[str, object]]:
    from kerolox.admin.setting_states import setting_states

    sources = {None: UNKNOWN, False: DEFAULT, True: SET}
    return [
        {
            "key": each.key,
            "value": each.value,
            "source": sources[each.is_set],
            "default": each.default,
            "afterRestart": each.after_restart,
        }
        for each in setting_states(settings)
    ]


@config.command("set")
@click.argument(
    "pairs",
    nargs=-1,
    required=True,
    metavar="KEY=VALUE...",
    shell_complete=completing.assignments,
)
@dry_run_option
@place_options
@output_option
@name_server_option
def set_command(
    pairs: tuple[str, ...], dry_run: bool, place: Place, output: str, name_server: str
) -> None:
    """Change settings of one broker, or of all masters of a cluster, and write them to their files.

    The difference is printed for each broker, and what is in force only after a restart. Slaves
    are changed by themselves, with --broker.
    """
    wanted = settings_given(pairs)
    rows = on_cluster(name_server, lambda admin: _set(admin, wanted, place, dry_run))
    slaves = [] if place.broker else on_cluster(name_server, lambda a: _slaves(a, place))
    columns = (
        Column("broker", "BROKER"),
        Column("key", "KEY"),
        Column("old", "OLD"),
        Column("new", "NEW"),
        Column("remark", "REMARK"),
    )
    show_rows(rows, columns, output)
    if dry_run:
        print_dry_run(output)
    for slave in slaves if is_text(output) else ():
        complain(f"kerolox: slaves are left as they are: --broker {slave} changes it")


async def _slaves(admin: Admin, place: Place) -> list[str]:
    """The names of the slaves beside the masters that are changed."""
    from kerolox.admin.asking import node_name
    from kerolox.client.core.routes import MASTER_ID

    return [
        node_name(node.broker_name, number)
        for node in (await admin.cluster_info()).nodes(place.cluster)
        for number in sorted(node.addresses)
        if number != MASTER_ID
    ]


async def _set(
    admin: Admin, wanted: dict[str, str], place: Place, dry_run: bool
) -> list[dict[str, object]]:
    from kerolox.admin.asking import all_answers, targets
    from kerolox.config import nearest
    from kerolox.errors import ClientError

    addresses = await targets(admin, **place._asdict())
    before = await all_answers(addresses, lambda address: admin.broker_settings(address))
    for address, settings in before.items():
        # A RocketMQ broker takes any key and forgets those that it does not know.
        for key in wanted.keys() - settings.keys():
            best = nearest(key, settings)
            hint = f"; did you mean {best!r}?" if best else "."
            raise ClientError(f"broker {address} has no setting {key!r}{hint} Nothing was changed")
    remarks: dict[str, str] = {}
    after = before
    if not dry_run:
        remarks = await admin.update_broker_settings(wanted, **place._asdict())
        after = await all_answers(addresses, lambda address: admin.broker_settings(address))
    rows: list[dict[str, object]] = []
    for address, settings in before.items():
        for key, value in wanted.items():
            is_in_force = after[address][key] == value
            remark = remarks.get(address, "")
            if not (dry_run or is_in_force or remark):
                # A RocketMQ broker answers that it is done, and logs that the value is none.
                remark = f"not taken: it is still {after[address][key]}; see the broker's log"
            rows.append(
                {
                    "broker": address,
                    "key": key,
                    "old": settings[key],
                    "new": value,
                    "remark": remark,
                    "done": not dry_run,
                    "effective": is_in_force,
                }
            )
    return rows
