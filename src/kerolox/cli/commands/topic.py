"""``kerolox topic``: list, describe, create, update, permission, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import (
    Place,
    cluster_option,
    name_server_option,
    place_options,
)
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
from kerolox.cli.permissions import PermissionType, permission_text
from kerolox.cli.rows import (
    Column,
    columns_of,
    is_text,
    number_column,
    show_row,
    show_rows,
    time_column,
)
from kerolox.protocol.attributes import TopicMessageType
from kerolox.text import counted, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.admin import Admin, GroupProgress, GroupState, TopicChange, TopicDescription
    from kerolox.admin.duplicates import TopicWindow
    from kerolox.admin.retention import TopicRetention
    from kerolox.protocol.bodies import TopicConfig

KINDS = ("normal", "retry", "dlq", "system")


class _AttributeType(click.ParamType[tuple[str, str]]):
    """``name=value``."""

    name = "attribute"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Name and value."""
        key, equals, text = str(value).partition("=")
        if not (key and equals and text):
            self.fail("write NAME=VALUE, such as message.type=FIFO", param, ctx)
        return key, text


_attribute_option = click.option(
    "--attribute",
    "attributes",
    type=_AttributeType(),
    multiple=True,
    metavar="NAME=VALUE",
    help="An attribute of RocketMQ 5, such as message.type=FIFO; may be repeated.",
)


@click.group(cls=CommandGroup)
def topic() -> None:
    """List, describe, create, change and delete topics.

    \b
    kerolox topic create Orders --queues 4
    kerolox topic update Orders --queues 8 --dry-run
    kerolox topic permission Orders R
    kerolox topic list -o '{topic} {messages}'
    """


@topic.command("list")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Only topics of this kind; may be repeated. Default: normal.",
)
@click.option("--all", "everything", is_flag=True, help="All kinds: RocketMQ's own topics too.")
@click.option(
    "--type",
    "types",
    type=click.Choice([each.value for each in TopicMessageType]),
    multiple=True,
    help="Only topics of this message.type, may be repeated; one without any counts as MIXED.",
)
@click.option("--names", is_flag=True, help="Only their names; without --type no broker is asked.")
@output_option
@name_server_option
def list_command(
    kinds: tuple[str, ...],
    everything: bool,
    types: tuple[str, ...],
    names: bool,
    output: str,
    name_server: str,
) -> None:
    """Print topics: queues, permission, how many messages they hold."""
    wanted = KINDS if everything else kinds or KINDS[:1]
    if names and not types:
        rows = [{"topic": each} for each in on_cluster(name_server, lambda a: _names(a, wanted))]
        show_rows(rows, [Column("topic", "TOPIC")], output)
        return
    columns = (
        Column("topic", "TOPIC"),
        Column("kind", "KIND"),
        Column("messageType", "TYPE"),
        number_column("brokers", "BROKERS"),
        number_column("writeQueueNums", "QUEUES"),
        Column("perm", "PERM", text=permission_text),
        number_column("messages", "MESSAGES"),
        time_column("lastUpdateTimestamp", "LAST MESSAGE"),
    )
    rows_of_all = on_cluster(name_server, lambda admin: _listed(admin, wanted, types))
    if names:
        show_rows([{"topic": row["topic"]} for row in rows_of_all], columns[:1], output)
        return
    show_rows(rows_of_all, columns, output)
    if is_text(output):
        for row in rows_of_all:
            if row["error"]:
                complain(f"kerolox: topic {row['topic']}: {row['error']}")


async def _names(admin: Admin, kinds: tuple[str, ...]) -> list[str]:
    from kerolox.admin.topics import topic_kind

    found = await admin.list_topics()
    if kinds == KINDS:
        return found
    info = await admin.cluster_info()
    return [name for name in found if topic_kind(name, info).value in kinds]


async def _listed(
    admin: Admin, kinds: tuple[str, ...], types: tuple[str, ...]
) -> list[dict[str, object]]:
    from kerolox.admin import TopicKind

    rows: list[dict[str, object]] = []
    for each in await admin.topic_summaries(map(TopicKind, kinds), message_types=types):
        perms = set(each.permissions.values())
        rows.append(
            {
                "topic": each.topic,
                "kind": each.kind.value,
                # None: it has no type, and takes all messages.
                "messageType": ",".join(each.message_types) or None,
                "brokers": len(each.permissions),
                "readQueueNums": each.read_queues,
                "writeQueueNums": each.write_queues,
                # What is the same everywhere; topic describe has that of each broker.
                "perm": perms.pop() if len(perms) == 1 else None,
                "messages": each.messages,
                "lastUpdateTimestamp": each.last_update_ms,
                "error": each.error,
            }
        )
    return rows


class _Described(NamedTuple):
    description: TopicDescription
    groups: dict[str, GroupProgress | None]
    """None: it has no offset yet."""


@topic.command("describe")
@click.argument("name", shell_complete=completing.topics)
@output_option
@name_server_option
def describe_command(name: str, output: str, name_server: str) -> None:
    """Print the brokers and queues of a topic with their offsets, and who consumes it."""
    (description, groups), states, attributes, kept, windows = on_cluster(
        name_server, lambda admin: _describe_with_states(admin, name)
    )
    if not is_text(output):
        document = _as_json(description, _group_rows(groups, states))
        document["attributes"] = attributes
        document["retention"] = {each.broker: _retention_as_json(each) for each in kept}
        document["dedupWindows"] = {each.broker: _window_as_json(each) for each in windows}
        show_row(document, columns_of(document), output)
        return
    print_line(f"topic {name}")
    for queue in description.route.queues:
        print_line(
            f"  {queue.broker_name}: {queue.read_queues} read, {queue.write_queues} write queues, "
            f"permission {permission_text(queue.perm)}"
        )
    for broker_name, values in attributes.items():
        print_line(f"  {broker_name}: {attributes_text(values)}")
    for each in kept:
        oldest = f", oldest message {time_text(each.oldest_ms)}" if each.oldest_ms else ""
        print_line(f"  {each.broker}: kept {each.text}{oldest}")
    for window in windows:
        print_line(f"  {window.broker}: {window.text}")
    for broker in description.route.brokers:
        for broker_id, address in broker.addresses.items():
            role = "master" if broker_id == 0 else f"slave {broker_id}"
            print_line(f"  {broker.broker_name} {role} {address} ({broker.cluster})")
    print_line("")
    columns = (
        Column("queue", "QUEUE"),
        number_column("minOffset", "FIRST"),
        number_column("maxOffset", "END"),
        number_column("messages", "MESSAGES"),
        time_column("lastUpdateTimestamp", "LAST MESSAGE"),
    )
    show_rows(_queue_rows(description), columns, output)
    print_line("")
    group_columns = (
        Column("group", "GROUP"),
        Column("state", "STATE"),
        number_column("lag", "LAG"),
    )
    show_rows(_group_rows(groups, states), group_columns, output)
    count = _messages(description)
    print_line(f"{counted(count, 'message')}, {counted(len(groups), 'group')}")


async def _describe(admin: Admin, name: str) -> _Described:
    from kerolox.admin.asking import answers_of

    description = await admin.describe_topic(name)
    groups = await admin.groups_of_topic(name)
    found, _ = await answers_of(groups, lambda group: admin.group_progress(group, topic=name))
    return _Described(description, {group: found.get(group) for group in groups})


def _retention_as_json(kept: TopicRetention) -> dict[str, object]:
    return {
        "fileReservedTime": kept.hours,
        "reserveTime": kept.wanted,
        "oldestTimestamp": kept.oldest_ms,
    }


def _window_as_json(window: TopicWindow) -> dict[str, object]:
    return {
        "windowMs": window.window_ms,
        "isKept": window.is_kept,
        "keys": window.keys,
        "bytes": window.bytes_taken,
        "ageMs": window.age_ms,
        "keysCut": window.cut,
        "answered": window.answered,
    }


class _DescribedWithStates(NamedTuple):
    described: _Described
    states: dict[str, GroupState]
    """Whether groups get messages; empty where brokers don't say."""
    attributes: dict[str, dict[str, str]]
    """By broker."""
    kept: list[TopicRetention]
    windows: list[TopicWindow]


async def _describe_with_states(admin: Admin, name: str) -> _DescribedWithStates:
    """All that brokers say of a topic."""
    from kerolox.admin.consumers.groups import group_states_told
    from kerolox.admin.duplicates import topic_windows
    from kerolox.admin.retention import topic_retentions

    described = await _describe(admin, name)
    states, _ = await group_states_told(admin, internal=True)
    attributes = await admin.topic_attributes(name)
    kept = await topic_retentions(admin, described.description, attributes)
    windows = await topic_windows(admin, described.description.route, name, attributes)
    return _DescribedWithStates(described, states, attributes, kept, windows)


def attributes_text(attributes: Mapping[str, str] | None) -> str:
    """On one line; a dash where there are none."""
    return ", ".join(f"{name}={value}" for name, value in (attributes or {}).items()) or "-"


def _messages(description: TopicDescription) -> int:
    return sum(each.max_offset - each.min_offset for each in description.queues)


def _queue_rows(description: TopicDescription) -> list[dict[str, object]]:
    return [
        {
            "queue": f"{status.queue.broker_name}/{status.queue.queue_id}",
            "brokerName": status.queue.broker_name,
            "queueId": status.queue.queue_id,
            "minOffset": status.min_offset,
            "maxOffset": status.max_offset,
            "messages": status.max_offset - status.min_offset,
            "lastUpdateTimestamp": status.last_update_timestamp,
        }
        for status in description.queues
    ]


def _group_rows(
    groups: dict[str, GroupProgress | None], states: dict[str, GroupState]
) -> list[dict[str, object]]:
    return [
        {
            "group": group,
            "state": states[group].text if group in states else None,
            "lag": progress.lag if progress else None,
        }
        for group, progress in groups.items()
    ]


def _as_json(description: TopicDescription, groups: list[dict[str, object]]) -> dict[str, object]:
    return {
        "topic": description.topic,
        "messages": _messages(description),
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
        "queues": _queue_rows(description),
        "groups": groups,
    }


@topic.command("create")
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, 65535),
    default=8,
    show_default=True,
    help="Read and write queues on each broker.",
)
@click.option(
    "--perm",
    type=PermissionType(),
    default="RW",
    show_default=True,
    metavar="R|W|RW",
    help="May be read, written, or both.",
)
@click.option("--order", is_flag=True, help="Producers keep to a fixed set of queues.")
@_attribute_option
@dry_run_option
@place_options
@output_option
@name_server_option
def create_command(
    name: str,
    queues: int,
    perm: int,
    order: bool,
    attributes: tuple[tuple[str, str], ...],
    dry_run: bool,
    place: Place,
    output: str,
    name_server: str,
) -> None:
    """Create a topic. One that is there already is left as it is, and that is an error."""

    addresses = on_cluster(
        name_server,
        lambda admin: admin.create_topic(
            name,
            **place._asdict(),
            queues=queues,
            perm=perm,
            order=order,
            attributes=dict(attributes),
            dry_run=dry_run,
        ),
    )
    if is_text(output):
        has = "would have" if dry_run else "has"
        print_line(f"topic {name} {has} {counted(queues, 'queue')} on {', '.join(addresses)}")
        if dry_run:
            print_dry_run(output)
        return
    settings = {
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": perm,
        "order": order,
        "attributes": dict(attributes),
        "done": not dry_run,
    }
    rows = [{"topic": name, "brokerAddr": address, **settings} for address in addresses]
    show_rows(rows, columns_of(rows[0]), output)


@topic.command("update")
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--queues", type=click.IntRange(1, 65535), help="Write queues, and read queues if more."
)
@click.option(
    "--perm", type=PermissionType(), metavar="R|W|RW", help="May be read, written, or both."
)
@click.option("--order/--no-order", default=None, help="Producers keep to a fixed set of queues.")
@_attribute_option
@click.option(
    "--remove-attribute", "removed", multiple=True, metavar="NAME", help="Have it no longer."
)
@click.option(
    "--shrink-read-queues",
    is_flag=True,
    help="Fewer read queues too: what the others still hold is delivered to nobody.",
)
@dry_run_option
@place_options
@output_option
@name_server_option
def update_command(
    name: str,
    queues: int | None,
    perm: int | None,
    order: bool | None,
    attributes: tuple[tuple[str, str], ...],
    removed: tuple[str, ...],
    shrink_read_queues: bool,
    dry_run: bool,
    place: Place,
    output: str,
    name_server: str,
) -> None:
    """Change a topic and print the difference; what is not named stays as it is."""

    given = dict.fromkeys(removed) | dict[str, str | None](attributes)
    if queues is None and perm is None and order is None and not given:
        raise click.UsageError(
            "Give what to change: --queues, --perm, --order or --no-order, --attribute or "
            "--remove-attribute."
        )
    changes = on_cluster(
        name_server,
        lambda admin: admin.update_topic(
            name,
            **place._asdict(),
            queues=queues,
            perm=perm,
            order=order,
            attributes=given,
            shrink_read_queues=shrink_read_queues,
            dry_run=dry_run,
        ),
    )
    _show_changes(name, changes, output, is_done=not dry_run)


@topic.command("permission")
@click.argument("name", shell_complete=completing.topics)
@click.argument("perm", type=PermissionType(), required=False, metavar="[R|W|RW]")
@dry_run_option
@place_options
@output_option
@name_server_option
def permission_command(
    name: str, perm: int | None, dry_run: bool, place: Place, output: str, name_server: str
) -> None:
    """Print the permission of a topic, or change it.

    Without W producers choose other brokers or fail; without R no group gets messages.
    """

    if perm is not None:
        changes = on_cluster(
            name_server,
            lambda admin: admin.update_topic(name, **place._asdict(), perm=perm, dry_run=dry_run),
        )
        _show_changes(name, changes, output, is_done=not dry_run)
        return
    route = on_cluster(name_server, lambda admin: admin.describe_route(name))
    rows = [{"brokerName": each.broker_name, "perm": each.perm} for each in route.queues]
    columns = Column("brokerName", "BROKER"), Column("perm", "PERM", text=permission_text)
    show_rows(rows, columns, output)


def _show_changes(name: str, changes: list[TopicChange], output: str, *, is_done: bool) -> None:
    if not is_text(output):
        rows = [_change_row(change, is_done=is_done) for change in changes]
        show_rows(rows, columns_of(rows[0]) if rows else (), output)
        return
    for change in changes:
        print_line(f"topic {name} on {change.address}: {_change_text(change)}")
        if change.kept_read_queues:
            print_line(
                f"  read queues stay {change.kept_read_queues}: the others may hold messages; "
                "--shrink-read-queues when they are consumed"
            )
    if not is_done:
        print_dry_run(output)


def _change_row(change: TopicChange, *, is_done: bool) -> dict[str, object]:
    return {
        "topic": change.new.topic_name,
        "brokerName": change.broker_name,
        "brokerAddr": change.address,
        "old": _settings_row(change.old),
        "new": _settings_row(change.new),
        "keptReadQueues": change.kept_read_queues,
        "done": is_done,
    }


def _settings_row(config: TopicConfig) -> dict[str, object]:
    return {
        "readQueueNums": config.read_queue_nums,
        "writeQueueNums": config.write_queue_nums,
        "perm": config.perm,
        "order": config.order,
        "attributes": config.attributes or {},
    }


def _change_text(change: TopicChange) -> str:
    parts = []
    for what, field in (
        ("read queues", "read_queue_nums"),
        ("write queues", "write_queue_nums"),
        ("perm", "perm"),
        ("order", "order"),
        ("attributes", "attributes"),
    ):
        old, new = getattr(change.old, field), getattr(change.new, field)
        if old == new:
            continue
        if field == "perm":
            old, new = permission_text(old), permission_text(new)
        if field == "attributes":
            old, new = attributes_text(old), attributes_text(new)
        parts.append(f"{what} {old} → {new}")
    return ", ".join(parts) or "nothing changes"


@topic.command("delete")
@click.argument("name", shell_complete=completing.topics)
@cluster_option("Delete it in this cluster only.")
@consent_options
@output_option
@name_server_option
def delete_command(
    name: str, cluster: str, consent: Consent, output: str, name_server: str
) -> None:
    """Delete a topic on all brokers and name servers.

    Says first what goes with it, and asks on a terminal; elsewhere it needs --yes.
    """

    row = on_cluster(name_server, lambda admin: _going(admin, name, cluster))
    if not consent.yes:
        complain(_going_text(row))
    if not confirm(f"Delete topic {name}?", consent, output, name_server):
        _show_going(row | {"done": False}, output)
        return
    addresses = on_cluster(name_server, lambda admin: admin.delete_topic(name, cluster=cluster))
    if is_text(output):
        print_line(f"topic {name} deleted on {', '.join(addresses) or 'the name servers'}")
    else:
        _show_going(row | {"deletedOn": addresses, "done": True}, output)


def _show_going(row: dict[str, object], output: str) -> None:
    if not is_text(output):
        show_row(row, columns_of(row), output)


async def _going(admin: Admin, name: str, cluster: str) -> dict[str, object]:
    """What goes with a topic; errors of its brokers are left to the deletion to tell."""
    from kerolox.admin.topics import brokers_of, check_not_internal
    from kerolox.errors import KeroloxError

    check_not_internal(name)
    await brokers_of(admin.access, name)
    try:
        description, groups = await _describe(admin, name)
    except KeroloxError as error:
        return {"topic": name, "messages": None, "groups": [], "error": str(error)}
    clusters = {each.broker_name: each.cluster for each in description.route.brokers}
    queues = [
        each
        for each in description.queues
        if cluster in ("", clusters.get(each.queue.broker_name, ""))
    ]
    return {
        "topic": name,
        "messages": sum(each.max_offset - each.min_offset for each in queues),
        "groups": [
            {"group": group, "lag": progress.lag if progress else None}
            for group, progress in groups.items()
        ],
        "error": "",
    }


def _going_text(row: dict[str, object]) -> str:
    if row["error"]:
        return f"kerolox: what topic {row['topic']} holds is not known: {row['error']}"
    groups, count = row["groups"], row["messages"]
    assert isinstance(groups, list)
    assert isinstance(count, int)
    left = [f"{each['group']} ({each['lag']} left)" for each in groups if each["lag"]]
    behind = f"; not consumed yet by {', '.join(left)}" if left else ""
    return f"kerolox: topic {row['topic']} holds {counted(count, 'message')}{behind}"
