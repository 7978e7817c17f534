"""``kerolox cluster``: what a cluster consists of and how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, output_option
from kerolox.cli.rows import Column, is_text, number_column, show_rows, time_column
from kerolox.cli.values import percent_text

if TYPE_CHECKING:
    from kerolox.admin import Admin, BrokerRuntime
    from kerolox.errors import KeroloxError


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Examine clusters."""


@cluster.command("list")
@output_option
@name_server_option
def list_command(output: str, name_server: str) -> None:
    """Print all clusters."""

    info = on_cluster(name_server, lambda admin: admin.cluster_info())
    rows = [
        {
            "cluster": name,
            "brokers": len(info.nodes(name)),
            "nodes": sum(len(each.addresses) for each in info.nodes(name)),
        }
        for name in sorted(info.clusters)
    ]
    columns = (
        Column("cluster", "NAME"),
        number_column("brokers", "BROKERS"),
        number_column("nodes", "NODES"),
    )
    show_rows(rows, columns, output)


@cluster.command("describe")
@click.argument("name", required=False, default="", shell_complete=completing.clusters)
@output_option
@name_server_option
def describe_command(name: str, output: str, name_server: str) -> None:
    """Print the nodes of a cluster, or of all: role, version, rates, disk, log."""
    rows, failed = on_cluster(name_server, lambda admin: _described(admin, name))
    columns = (
        Column("cluster", "IN CLUSTER"),
        Column("broker", "BROKER"),
        Column("role", "ROLE"),
        Column("address", "ADDRESS"),
        Column("software", "VERSION"),
        number_column("inTps", "IN/S"),
        number_column("outTps", "OUT/S"),
        Column("diskRatio", "DISK", is_number=True, text=percent_text),
        number_column("logBytes", "LOG BYTES"),
        time_column("bootTimestamp", "STARTED"),
    )
    show_rows(rows, columns, output)
    if is_text(output):
        for address, error in failed.items():
            complain(f"kerolox: {address}: {error}")


async def _described(
    admin: Admin, name: str
) -> tuple[list[dict[str, object]], dict[str, KeroloxError]]:
    from kerolox.admin.asking import answers_of
    from kerolox.client.core.routes import MASTER_ID

    nodes = (await admin.cluster_info()).nodes(name)
    addresses = [address for node in nodes for address in node.addresses.values()]
    found, failed = await answers_of(addresses, lambda address: admin.broker_runtime(address))
    rows: list[dict[str, object]] = []
    for node in nodes:
        for broker_id, address in node.addresses.items():
            rows.append(
                {
                    "cluster": node.cluster,
                    "broker": node.broker_name,
                    "brokerId": broker_id,
                    "role": "master" if broker_id == MASTER_ID else f"slave {broker_id}",
                    "address": address,
                    **_metrics(found.get(address)),
                    "error": str(failed.get(address, "")),
                }
            )
    return rows, failed


def _metrics(runtime: BrokerRuntime | None) -> dict[str, object]:
    if runtime is None:
        names = ("version", "software", "inTps", "outTps", "diskRatio", "logBytes", "bootTimestamp")
        return dict.fromkeys(names)
    return {
        "version": runtime.version,
        "software": runtime.software,
        "inTps": round(runtime.put_rate.ten_seconds, 1),
        "outTps": round(runtime.transferred_rate.ten_seconds, 1),
        "diskRatio": runtime.log_disk_ratio,
        "logBytes": runtime.log_max_offset - runtime.log_min_offset,
        "bootTimestamp": runtime.boot_ms,
    }
