"""``kerolox topic``: list, create, describe, delete."""

from __future__ import annotations

import datetime

import click

from kerolox.cli.cluster_options import name_server_option, on_cluster
from kerolox.cli.output import output_option, print_json, print_line

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """List, create, describe and delete topics."""


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
    """Create a topic, or change it."""
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


@topic.command("describe")
@click.argument("name")
@output_option
@name_server_option
def describe_command(name: str, output: str, name_server: str) -> None:
    """Print the brokers and queues of a topic, with offsets."""
    from kerolox.admin import TopicDescription, describe_topic

    description: TopicDescription = on_cluster(
        name_server, lambda access: describe_topic(access, name)
    )
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
        when = _time_text(status.last_update_timestamp)
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


def _as_json(description: object) -> dict[str, object]:
    from kerolox.admin import TopicDescription

    assert isinstance(description, TopicDescription)
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


def _time_text(timestamp_ms: int) -> str:
    if timestamp_ms <= 0:
        return "-"
    when = datetime.datetime.fromtimestamp(timestamp_ms / 1000)
    return when.isoformat(sep=" ", timespec="milliseconds")
