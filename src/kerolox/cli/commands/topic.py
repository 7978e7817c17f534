"""``kerolox topic``: list, create, update, describe, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import name_server_option, on_cluster
from kerolox.cli.output import output_option, print_json, print_line
from kerolox.text import time_text

if TYPE_CHECKING:
    from kerolox.admin import TopicChange, TopicDescription


@click.group()
def topic() -> None:
    """List, create, change, describe and delete topics."""


@topic.command("list")
@click.option("--all", "everything", is_flag=True, help="RocketMQ's own topics too.")
@output_option
@name_server_option
def list_command(everything: bool, output: str, name_server: str) -> None:
    """Print the names of all topics."""
    from kerolox.admin import Access, cluster_info, is_internal_topic, list_topics

    async def work(access: Access) -> list[str]:
        names = await list_topics(access)
        if everything:
            return names
        info = await cluster_info(access)
        return [name for name in names if not is_internal_topic(name, info)]

    names = on_cluster(name_server, work)
    if output == "json":
        print_json(names)
    else:
        for name in names:
            print_line(name, output)


@topic.command("create")
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True)
@click.option("--perm", type=click.Choice(["2", "4", "6"]), default="6", show_default=True)
@click.option("--order", is_flag=True, help="Producers keep to a fixed set of queues.")
@click.option("--cluster", default="", help="Its masters; needed when there are several clusters.")
@click.option("--broker", default="", metavar="HOST:PORT", help="This broker only.")
@name_server_option
def create_command(
    name: str, queues: int, perm: str, order: bool, cluster: str, broker: str, name_server: str
) -> None:
    """Create a topic. One that is there already is left as it is, and that is an error."""
    from kerolox.admin import create_topic

    addresses = on_cluster(
        name_server,
        lambda access: create_topic(
            access,
            name,
            cluster=cluster,
            broker=broker,
            queues=queues,
            perm=int(perm),
            order=order,
        ),
    )
    print_line(f"topic {name} has {queues} queues on {', '.join(addresses)}")


@topic.command("update")
@click.argument("name")
@click.option(
    "--queues", type=click.IntRange(1, 65535), help="Write queues, and read queues if more."
)
@click.option("--perm", type=click.Choice(["2", "4", "6"]))
@click.option("--order/--no-order", default=None, help="Producers keep to a fixed set of queues.")
@click.option(
    "--shrink-read-queues",
    is_flag=True,
    help="Fewer read queues too: what the others still hold is delivered to nobody.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--cluster", default="", help="Only there.")
@click.option("--broker", default="", metavar="HOST:PORT", help="This broker only.")
@name_server_option
def update_command(
    name: str,
    queues: int | None,
    perm: str | None,
    order: bool | None,
    shrink_read_queues: bool,
    dry_run: bool,
    cluster: str,
    broker: str,
    name_server: str,
) -> None:
    """Change a topic; what is not named stays as it is."""
    from kerolox.admin import update_topic

    if queues is None and perm is None and order is None:
        raise click.UsageError("Give what to change: --queues, --perm, --order or --no-order.")
    changes = on_cluster(
        name_server,
        lambda access: update_topic(
            access,
            name,
            cluster=cluster,
            broker=broker,
            queues=queues,
            perm=None if perm is None else int(perm),
            order=order,
            shrink_read_queues=shrink_read_queues,
            dry_run=dry_run,
        ),
    )
    for change in changes:
        print_line(f"topic {name} on {change.address}: {_change_text(change)}")
        if change.kept_read_queues:
            print_line(
                f"  read queues stay {change.kept_read_queues}: the others may hold messages; "
                "--shrink-read-queues when they are consumed"
            )
    if dry_run:
        print_line("nothing was changed (--dry-run)")


def _change_text(change: TopicChange) -> str:
    parts = []
    for what, field in (
        ("read queues", "read_queue_nums"),
        ("write queues", "write_queue_nums"),
        ("perm", "perm"),
        ("order", "order"),
    ):
        old, new = getattr(change.old, field), getattr(change.new, field)
        if old != new:
            parts.append(f"{what} {old} → {new}")
    return ", ".join(parts) or "nothing changes"


@topic.command("describe")
@click.argument("name")
@output_option
@name_server_option
def describe_command(name: str, output: str, name_server: str) -> None:
    """Print the brokers and queues of a topic, with offsets."""
    from kerolox.admin import describe_topic

    description = on_cluster(name_server, lambda access: describe_topic(access, name))
    if output == "json":
        print_json(_as_json(description))
        return
    print_line(f"topic {name}", output)
    for queue in description.route.queues:
        print_line(
            f"  {queue.broker_name}: {queue.read_queues} read, {queue.write_queues} write queues, "
            f"perm {queue.perm}",
            output,
        )
    for broker in description.route.brokers:
        for broker_id, address in broker.addresses.items():
            role = "master" if broker_id == 0 else f"slave {broker_id}"
            print_line(f"  {broker.broker_name} {role} {address} ({broker.cluster})", output)
    print_line(f"  {'queue':24} {'min':>12} {'max':>12}  last message", output)
    for status in description.queues:
        where = f"{status.queue.broker_name}/{status.queue.queue_id}"
        when = time_text(status.last_update_timestamp)
        print_line(f"  {where:24} {status.min_offset:>12} {status.max_offset:>12}  {when}", output)
    count = sum(status.max_offset - status.min_offset for status in description.queues)
    print_line(f"  {count} messages", output)


@topic.command("delete")
@click.argument("name")
@click.option("--cluster", default="", help="Only there.")
@name_server_option
def delete_command(name: str, cluster: str, name_server: str) -> None:
    """Delete a topic on all brokers and name servers."""
    from kerolox.admin import delete_topic

    addresses = on_cluster(name_server, lambda access: delete_topic(access, name, cluster=cluster))
    print_line(f"topic {name} deleted on {', '.join(addresses) or 'the name servers'}")


def _as_json(description: TopicDescription) -> dict[str, object]:
    return {
        "topic": description.topic,
        "brokers": [
            {
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
                "brokerAddrs": {str(i): address for i, address in broker.addresses.items()},
            }
            for broker in description.route.brokers
        ],
        "queueData": [
            {
                "brokerName": queue.broker_name,
                "readQueueNums": queue.read_queues,
                "writeQueueNums": queue.write_queues,
                "perm": queue.perm,
            }
            for queue in description.route.queues
        ],
        "queues": [
            {
                "brokerName": status.queue.broker_name,
                "queueId": status.queue.queue_id,
                "minOffset": status.min_offset,
                "maxOffset": status.max_offset,
                "lastUpdateTimestamp": status.last_update_timestamp,
            }
            for status in description.queues
        ],
    }
