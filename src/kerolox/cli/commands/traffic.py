"""``kerolox stats`` and ``producers``: how much goes through a cluster, and who sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import BROKER_HELP, name_server_option, resolved
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.output import complain, output_option
from kerolox.cli.rows import Column, is_text, number_column, show_rows, time_column
from kerolox.cli.values import rate_text

if TYPE_CHECKING:
    from kerolox.admin import Admin, ProducerInfo
    from kerolox.errors import KeroloxError


@click.command(cls=Command)
@click.argument("topic", required=False, default="", shell_complete=completing.topics)
@click.option("--active", is_flag=True, help="Only where a message came or went in the last day.")
@output_option
@name_server_option
def stats(topic: str, active: bool, output: str, name_server: str) -> None:
    """Print how much goes into topics, and out to each of their groups.

    Rates are messages a second over the last minute; IN and OUT those of the last day, or of as
    much of it as the brokers have run.

    \b
    kerolox stats --active
    kerolox stats Orders -o '{topic} {group} {lag}'
    """
    found = on_cluster(
        name_server,
        lambda admin: admin.traffic(topic=topic, active_only=active),
        doing="reading the metrics of topics and groups",
    )
    rows = [
        {
            "topic": each.topic,
            "group": each.group,
            "lag": each.lag if each.group else None,
            "inTps": each.in_per_second,
            "outTps": each.out_per_second if each.group else None,
            "inDay": each.in_day,
            "outDay": each.out_day if each.group else None,
        }
        for each in found
    ]
    columns = (
        Column("topic", "TOPIC"),
        Column("group", "GROUP"),
        number_column("lag", "LAG"),
        Column("inTps", "IN/S", is_number=True, text=rate_text),
        Column("outTps", "OUT/S", is_number=True, text=rate_text),
        number_column("inDay", "IN"),
        number_column("outDay", "OUT"),
    )
    show_rows(rows, columns, output)


@click.command(cls=Command)
@click.option("--group", default="", metavar="GROUP", help="Only this producer group.")
@click.option(
    "--broker",
    default="",
    metavar="BROKER",
    shell_complete=completing.brokers,
    help=f"Only those that this broker knows: {BROKER_HELP}.",
)
@output_option
@name_server_option
def producers(group: str, broker: str, output: str, name_server: str) -> None:
    """Print the producers that brokers know: group, client, address, last heartbeat.

    A producer that has sent nothing yet is known to no broker. Brokers of RocketMQ before 4.9.3
    do not report theirs.
    """
    address = resolved(name_server, broker)
    rows, silent = on_cluster(name_server, lambda admin: _producers(admin, address))
    columns = (
        Column("group", "GROUP"),
        Column("clientId", "CLIENT"),
        Column("address", "ADDRESS"),
        Column("language", "LANGUAGE"),
        Column("version", "VERSION"),
        Column("protocol", "PROTOCOL"),
        time_column("lastUpdateTimestamp", "HEARTBEAT"),
        Column("brokers", "BROKERS"),
    )
    show_rows([row for row in rows if group in ("", row["group"])], columns, output)
    if is_text(output):
        for place, error in silent.items():
            complain(f"kerolox: {place} does not report its producers: {error}")


async def _producers(
    admin: Admin, broker: str
) -> tuple[list[dict[str, object]], dict[str, KeroloxError]]:
    """A row for each member of a group, and the brokers that did not say."""
    from kerolox.admin.asking import answers_of, masters_of

    info = await admin.cluster_info()
    names = masters_of(info.nodes(), "")
    found, silent = await answers_of([broker] if broker else names, admin.all_producers)
    newest: dict[tuple[str, str], ProducerInfo] = {}
    brokers: dict[tuple[str, str], list[str]] = {}
    for address, members in found.items():
        for each in members:
            key = each.group, each.client_id
            brokers.setdefault(key, []).append(names.get(address, address))
            if newest.setdefault(key, each).heartbeat_ms < each.heartbeat_ms:
                newest[key] = each
    rows: list[dict[str, object]] = [
        {
            "group": each.group,
            "clientId": each.client_id,
            "address": each.address,
            "language": each.language,
            "version": each.version_name,
            "protocol": each.protocol,
            "lastUpdateTimestamp": each.heartbeat_ms,
            "brokers": ", ".join(brokers[key]),
        }
        for key, each in sorted(newest.items())
    ]
    return rows, silent
