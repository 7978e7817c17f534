"""``kerolox broker list`` and ``describe``: which brokers there are, and how one goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import broker_argument, cluster_option, name_server_option
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import complain, output_option
from kerolox.cli.permissions import permission_text
from kerolox.cli.rows import (
    Column,
    is_text,
    number_column,
    show_record,
    show_rows,
    time_column,
)
from kerolox.cli.values import percent_text, rate_text
from kerolox.text import time_text

if TYPE_CHECKING:
    from kerolox.admin import Admin, BrokerRuntime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command("list", cls=Command)
@cluster_option("Those of this cluster only.")
@output_option
@name_server_option
def list_command(cluster: str, output: str, name_server: str) -> None:
    """Print the brokers: role, permission, how many topics they have."""
    rows = on_cluster(name_server, lambda admin: _listed(admin, cluster))
    columns = (
        Column("broker", "BROKER"),
        Column("cluster", "IN CLUSTER"),
        Column("role", "ROLE"),
        Column("address", "ADDRESS"),
        Column("software", "VERSION"),
        Column("perm", "PERM", text=permission_text),
        number_column("topics", "TOPICS"),
        number_column("messages", "STORED"),
        time_column("bootTimestamp", "STARTED"),
    )
    show_rows(rows, columns, output)
    if is_text(output):
        for row in rows:
            if row["error"]:
                complain(f"kerolox: {row['address']}: {row['error']}")


async def _listed(admin: Admin, cluster: str) -> list[dict[str, object]]:
    from kerolox.admin.asking import answers_of
    from kerolox.client.core.routes import MASTER_ID

    nodes = (await admin.cluster_info()).nodes(cluster)
    addresses = [address for node in nodes for address in node.addresses.values()]
    found, failed = await answers_of(addresses, lambda address: _shown(admin, address))
    unknown = dict.fromkeys(("version", "software", "perm", "topics", "messages", "bootTimestamp"))
    return [
        {
            "broker": node.broker_name,
            "cluster": node.cluster,
            "brokerId": broker_id,
            "role": "master" if broker_id == MASTER_ID else f"slave {broker_id}",
            "address": address,
            **found.get(address, unknown),
            "error": str(failed.get(address, "")),
        }
        for node in nodes
        for broker_id, address in node.addresses.items()
    ]


async def _shown(admin: Admin, address: str) -> dict[str, object]:

    runtime = await admin.broker_runtime(address)
    permission = (await admin.broker_settings(address)).get("brokerPermission", "")
    return {
        "version": runtime.version,
        "software": runtime.software,
        "perm": int(permission) if permission.isdecimal() else None,
        "topics": len(await admin.all_topic_settings(address)),
        "messages": runtime.put_totals.now,
        "bootTimestamp": runtime.boot_ms,
    }


@click.command("describe", cls=Command)
@broker_argument
@click.option("--all", "everything", is_flag=True, help="All that it says, by RocketMQ's names.")
@output_option
@name_server_option
def describe_command(address: str, everything: bool, output: str, name_server: str) -> None:
    """Print the metrics of a broker: rates, disk, log, waiting requests, slowest send and pull."""

    runtime = on_cluster(name_server, lambda admin: admin.broker_runtime(address))
    if everything:
        rows = [{"name": name, "value": text} for name, text in runtime.values.items()]
        show_rows(rows, [Column("name", "NAME"), Column("value", "VALUE")], output)
        return
    columns = (
        Column("address", "address"),
        Column("software", "version"),
        Column("kernel", "kernel"),
        time_column("bootTimestamp", "started"),
        Column("putTps", "stored a second (10 s)", text=rate_text),
        Column("transferredTps", "delivered a second (10 s)", text=rate_text),
        Column("putToday", "stored today"),
        Column("transferredToday", "delivered today"),
        Column("messageBytesMean", "mean message", text=_bytes),
        Column("logBytes", "log", text=_bytes),
        Column("logDiskRatio", "log's disk in use", text=percent_text),
        Column("queueDiskRatio", "queues' disk in use", text=percent_text),
        time_column("earliestMessageTimestamp", "oldest message"),
        Column("growthBytesPerSecond", "log grows a second", text=_growth),
        Column("diskFullTimestamp", "disk full", text=_full),
        Column("dispatchBehindBytes", "not in queues yet", text=_bytes),
        Column("putMsMax", "slowest send, ms"),
        Column("getMsMax", "slowest pull, ms"),
        Column("sendsWaiting", "sends that wait"),
        Column("pullsWaiting", "pulls that wait"),
    )
    show_record(_metrics(runtime), columns, output)


def _metrics(runtime: BrokerRuntime) -> dict[str, object]:
    return {
        "address": runtime.address,
        "version": runtime.version,
        "software": runtime.software,
        "kernel": runtime.kernel,
        "bootTimestamp": runtime.boot_ms,
        "putTps": runtime.put_rate.ten_seconds,
        "transferredTps": runtime.transferred_rate.ten_seconds,
        "putToday": runtime.put_totals.today,
        "transferredToday": runtime.get_totals.today,
        "messageBytesMean": runtime.message_bytes_mean,
        "logBytes": runtime.log_max_offset - runtime.log_min_offset,
        "logDiskRatio": runtime.log_disk_ratio,
        "queueDiskRatio": runtime.queue_disk_ratio,
        "earliestMessageTimestamp": max(runtime.earliest_message_ms, 0),
        "growthBytesPerSecond": runtime.growth_per_second,
        "diskFullTimestamp": runtime.disk_full_ms,
        "dispatchBehindBytes": runtime.dispatch_behind_bytes,
        "putMsMax": runtime.put_ms_max,
        "getMsMax": runtime.get_ms_max,
        "sendsWaiting": runtime.send_queue.size,
        "pullsWaiting": runtime.pull_queue.size,
    }


def _growth(value: object) -> str:
    return "not known" if value is None else _bytes(value)


def _full(value: object) -> str:
    if not isinstance(value, int):
        return "not known"
    return time_text(value) if value >= 0 else "not at this rate"


def _bytes(value: object) -> str:
    size = float(value) if isinstance(value, int | float) else 0.0
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
