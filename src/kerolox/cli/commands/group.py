"""``kerolox group``: list, describe, members, reset, release, create, update, pause, clone,
delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from kerolox.admin.positions import Position
from kerolox.cli import completing
from kerolox.cli.cluster_options import (
    Place,
    cluster_option,
    name_server_option,
    place_options,
    topic_option,
)
from kerolox.cli.commands.group_popped import (
    OUT_COLUMNS,
    held,
    out_row,
    print_owners,
    release_command,
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
from kerolox.cli.positions import POSITION_HELP, PositionType, queue_of
from kerolox.cli.rows import (
    Column,
    columns_of,
    duration_column,
    is_text,
    number_column,
    show_row,
    show_rows,
    time_column,
)
from kerolox.text import counted, duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.admin import (
        Admin,
        ConsumerStatus,
        GroupChange,
        GroupProgress,
        GroupState,
        OffsetMove,
        PoppedMessages,
        QueueTimeSpan,
        SubscriptionGroupConfig,
    )
    from kerolox.errors import KeroloxError
    from kerolox.message import MessageQueue

_Result = TypeVar("_Result")

MOVE_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("queue", "QUEUE"),
    number_column("oldOffset", "FROM"),
    number_column("newOffset", "TO"),
    number_column("again", "AGAIN"),
    number_column("skipped", "SKIPPED"),
)
"""Of offsets that are to move: what that does to a group."""

new_group_option = click.option(
    "--new-group", is_flag=True, help="Also where no broker knows the group yet."
)


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, change and reset consumer groups.

    \b
    kerolox group describe shop
    kerolox group reset shop Orders --to 2h --dry-run
    kerolox group list -o '{group} {lag}'
    """


@group.command("list")
@click.option("--all", "everything", is_flag=True, help="RocketMQ's own groups too.")
@cluster_option("Those of this cluster only.")
@output_option
@name_server_option
def list_command(everything: bool, cluster: str, output: str, name_server: str) -> None:
    """Print all groups: state, members online, rate and lag.

    A group is active, paused, paused on some brokers, or has offsets and no settings.
    """
    from kerolox.admin.consumers.groups import group_states_told

    async def work(admin: Admin) -> tuple[list[dict[str, object]], dict[str, KeroloxError]]:
        states, silent = await group_states_told(admin, cluster=cluster, internal=everything)
        rows: list[dict[str, object]] = [
            {
                "group": each.group,
                "state": states[each.group].text,
                "pausedOn": states[each.group].paused,
                "members": each.members,
                "type": each.consume_type,
                "model": each.message_model,
                "consumeTps": each.consumed_per_second if each.is_progress_known else None,
                "lag": each.lag if each.is_progress_known else None,
            }
            for each in await admin.group_summaries(states)
        ]
        return rows, silent

    columns = (
        Column("group", "GROUP"),
        Column("state", "STATE"),
        number_column("members", "MEMBERS"),
        Column("model", "MODEL"),
        number_column("consumeTps", "DELIVERED/S"),
        number_column("lag", "LAG"),
    )
    rows, silent = on_cluster(name_server, work)
    if silent and not rows:
        raise next(iter(silent.values()))
    show_rows(rows, columns, output)
    for name, error in silent.items():
        complain(f"kerolox: the groups on {name} are not known: {error}")


@group.command("describe")
@click.argument("name", shell_complete=completing.groups)
@topic_option("In this topic only.")
@output_option
@name_server_option
def describe_command(name: str, topic: str, output: str, name_server: str) -> None:
    """Print the lag of a group in each queue, in messages and in time, and who owns the queue.

    Where members pop messages, also how many they hold, for how long, and who.
    """
    rows, progress, state, out = on_cluster(
        name_server, lambda admin: _described(admin, name, topic)
    )
    columns = (
        Column("topic", "TOPIC"),
        Column("queue", "QUEUE"),
        number_column("consumerOffset", "OFFSET"),
        number_column("brokerOffset", "END"),
        number_column("lag", "LAG"),
        duration_column("waitingMs", "WAITING"),
        time_column("lastConsumedTimestamp", "CONSUMED UP TO"),
        Column("clientId", "OWNER"),
        *(OUT_COLUMNS if progress.in_flight else ()),
    )
    show_rows(rows, columns, output)
    if is_text(output):
        print_line(
            f"group {name}: {counted(progress.lag, 'message')} left, "
            f"{progress.consumed_per_second:.1f} delivered a second"
        )
        if progress.in_flight:
            print_line(
                f"{counted(progress.in_flight, 'message')} out, popped and not acknowledged, for "
                f"{duration_text(progress.in_flight_ms)} at most"
            )
        if out is not None:
            print_owners(out)
        if state.ordered:
            print_line(
                "clients by gRPC get the messages of a queue in order (consumeMessageOrderly) on "
                f"{', '.join(state.ordered)}"
            )
        _print_paused(state)


async def _with_state(
    admin: Admin, name: str, asked: Awaitable[_Result]
) -> tuple[_Result, GroupState]:
    """What was asked of a group, and whether it gets messages; a group that is paused and has no
    offset, or no member, is said to be paused before that error goes on."""
    from kerolox.errors import ConsumerNotOnlineError

    try:
        found = await asked
    except ConsumerNotOnlineError:
        _print_paused(await admin.group_state(name))
        raise
    return found, await admin.group_state(name)


def _print_paused(state: GroupState) -> None:
    if state.paused:
        complain(
            f"kerolox: group {state.group} is {state.text}: it gets no messages there (kerolox "
            f"group resume {state.group})"
        )


async def _described(
    admin: Admin, name: str, topic: str
) -> tuple[list[dict[str, object]], GroupProgress, GroupState, PoppedMessages | None]:
    from kerolox.errors import KeroloxError

    progress, state = await _with_state(
        admin, name, admin.group_progress(name, topic=topic, clients=True)
    )
    spans: dict[MessageQueue, QueueTimeSpan] = {}
    for each in sorted({queue.queue.topic for queue in progress.queues}):
        try:
            spans |= {span.queue: span for span in await admin.consume_time_spans(name, each)}
        except KeroloxError:
            continue  # a slave, or a topic that is gone: its times are not known
    out = await held(admin, name, topic) if progress.in_flight else None
    popped = {} if out is None else {each.queue: each for each in out.queues}
    rows: list[dict[str, object]] = []
    for queue in progress.queues:
        span = spans.get(queue.queue)
        rows.append(
            {
                "topic": queue.queue.topic,
                "queue": f"{queue.queue.broker_name}/{queue.queue.queue_id}",
                "brokerName": queue.queue.broker_name,
                "queueId": queue.queue.queue_id,
                "consumerOffset": queue.consumer_offset,
                "brokerOffset": queue.broker_offset,
                "lag": queue.lag,
                "waitingMs": span.delay_ms if span is not None and queue.lag > 0 else 0,
                "lastConsumedTimestamp": queue.last_consumed_ms,
                "clientId": queue.client_id,
                **out_row(popped.get(queue.queue), queue.in_flight, queue.in_flight_ms),
                "paused": queue.queue.broker_name in state.paused,
                "orderly": queue.queue.broker_name in state.ordered,
            }
        )
    return rows, progress, state, out


@group.command("members")
@click.argument("name", shell_complete=completing.groups)
@click.option("--stacks", is_flag=True, help="What their threads do, too.")
@output_option
@name_server_option
def members_command(name: str, stacks: bool, output: str, name_server: str) -> None:
    """Print the members of a group that are online, their subscriptions, and what is wrong."""

    async def query(admin: Admin) -> tuple[ConsumerStatus, GroupState]:
        return await _with_state(admin, name, admin.consumer_status(name, stacks=stacks))

    status, state = on_cluster(name_server, query)
    columns = (
        Column("clientId", "CLIENT"),
        Column("address", "ADDRESS"),
        Column("language", "LANGUAGE"),
        Column("software", "VERSION"),
        Column("protocol", "PROTOCOL"),
        number_column("queues", "QUEUES"),
        Column("subscriptions", "SUBSCRIPTIONS", text=_subscriptions_text),
    )
    show_rows(_member_rows(status, state), columns, output)
    if not is_text(output):
        return
    _print_paused(state)
    for client, reason in status.silent.items():
        complain(f"kerolox: no further details of {client}: {reason}")
    for finding in status.findings:
        complain(f"kerolox: {finding}")
    if not status.has_same_subscriptions:
        complain("kerolox: members subscribe to different things; each of them misses messages")
    for member in status.members if stacks else ():
        print_line(f"stacks of {member.client_id}")
        for line in member.stacks.splitlines():
            print_line(f"  {line}")


def _member_rows(status: ConsumerStatus, state: GroupState) -> list[dict[str, object]]:
    infos = {each.client_id: each for each in status.members}
    software = status.software
    rows: list[dict[str, object]] = []
    for member in status.connections.members:
        info = infos.get(member.client_id)
        rows.append(
            {
                "clientId": member.client_id,
                "address": member.address,
                "language": member.language,
                "version": member.version_name,
                "software": software[member.client_id],
                "protocol": member.protocol,
                "queues": len(info.queues) if info else 0,
                "subscriptions": {
                    each.topic: each.sub_string for each in (info.subscriptions if info else ())
                },
                "stacks": info.stacks if info else "",
                "pausedOn": state.paused,
            }
        )
    return rows


def _subscriptions_text(value: object) -> str:
    assert isinstance(value, dict)
    return ", ".join(f"{topic} {expression}" for topic, expression in value.items())


@group.command("reset")
@click.argument("name", shell_complete=completing.groups)
@click.argument("topic", shell_complete=completing.topics)
@click.option(
    "--to",
    "position",
    type=PositionType(),
    required=True,
    metavar="POSITION",
    help=f"Where to go: {POSITION_HELP}.",
)
@click.option("--queue", "queues", multiple=True, metavar="BROKER/ID", help="Only this queue.")
@new_group_option
@consent_options
@output_option
@name_server_option
def reset_command(
    name: str,
    topic: str,
    position: Position,
    queues: tuple[str, ...],
    new_group: bool,
    consent: Consent,
    output: str,
    name_server: str,
) -> None:
    """Reset the offsets of a group in TOPIC. Members that are online continue there at once.

    Says first what that does, and asks on a terminal; elsewhere it needs --yes.
    """

    chosen = [queue_of(topic, text) for text in queues]
    _check_known(name, new_group, name_server)

    def moved(*, dry_run: bool) -> list[OffsetMove]:
        return on_cluster(
            name_server,
            lambda admin: admin.move_offsets(name, topic, position, queues=chosen, dry_run=dry_run),
        )

    columns = (
        *MOVE_COLUMNS[1:],
        number_column("minOffset", "FIRST"),
        number_column("maxOffset", "END"),
    )
    if not consent.yes:
        planned = _move_rows(moved(dry_run=True), is_done=False)
        show_rows(planned, columns, output)
        if not confirm(
            f"Reset the offsets of group {name} in {topic}?", consent, output, name_server
        ):
            return
    moves = moved(dry_run=False)
    if consent.yes:
        show_rows(_move_rows(moves, is_done=True), columns, output)
    else:
        print_line(f"the offsets of group {name} are reset")


def _check_known(name: str, new_group: bool, name_server: str) -> None:
    """Refuse a group that no broker knows: most likely its name is mistyped."""
    from kerolox.errors import ClientError

    if not new_group and not on_cluster(name_server, lambda admin: admin.group_exists(name)):
        raise ClientError(
            f"no broker knows group {name!r}, so nothing was changed; 'kerolox group list' has "
            "those that are there, --new-group gives one its first offsets before it is online"
        )


def _move_rows(moves: list[OffsetMove], *, is_done: bool) -> list[dict[str, object]]:
    return [
        {
            "topic": each.queue.topic,
            "queue": f"{each.queue.broker_name}/{each.queue.queue_id}",
            "brokerName": each.queue.broker_name,
            "queueId": each.queue.queue_id,
            "oldOffset": each.old,
            "newOffset": each.new,
            "again": each.again,
            "skipped": each.skipped,
            "minOffset": each.min_offset,
            "maxOffset": each.max_offset,
            "done": is_done,
        }
        for each in moves
    ]


class _Settings(TypedDict, total=False):
    """Arguments of ``update_group``; None: not given."""

    retry_max_times: int | None
    retry_queue_nums: int | None
    consume_broadcast_enable: bool | None
    consume_message_orderly: bool | None
    consume_enable: bool | None
    dry_run: bool
    drop_retries: bool


def _settings_options(command: Callable[..., object]) -> Callable[..., object]:
    """What ``create`` and ``update`` may set, without ``consume_enable``."""
    for option in (
        click.option(
            "--broadcast/--no-broadcast",
            "consume_broadcast_enable",
            default=None,
            help="Members may consume by broadcasting.",
        ),
        click.option(
            "--orderly/--no-orderly",
            "consume_message_orderly",
            default=None,
            help="Clients by gRPC get messages of a queue in order (consumeMessageOrderly).",
        ),
        click.option(
            "--retry-queues",
            "retry_queue_nums",
            type=click.IntRange(0, 65535),
            help="Queues of its retry topic.",
        ),
        click.option(
            "--drop-retries",
            "drop_retries",
            is_flag=True,
            help="With --retry-queues 0: brokers drop what the group gives back.",
        ),
        click.option(
            "--retries",
            "retry_max_times",
            type=click.IntRange(0),
            help="Tries before a dead letter, of clients that do not say it (Java before 3.4.9).",
        ),
    ):
        command = option(command)
    return command


group.add_command(release_command)


@group.command("create")
@click.argument("name")
@_settings_options
@dry_run_option
@place_options
@output_option
@name_server_option
def create_command(
    name: str, place: Place, output: str, name_server: str, **settings: Unpack[_Settings]
) -> None:
    """Create a group where it is missing, else change it; what is not named stays as it is."""
    _update(name_server, name, place, output, **settings)


@group.command("update")
@click.argument("name", shell_complete=completing.groups)
@_settings_options
@dry_run_option
@place_options
@output_option
@name_server_option
def update_command(
    name: str, place: Place, output: str, name_server: str, **settings: Unpack[_Settings]
) -> None:
    """Change a group; what is not named stays as it is."""
    flags = ("drop_retries", "dry_run")
    if all(value is None for name, value in settings.items() if name not in flags):
        raise click.UsageError(
            "Give what to change: --retries, --retry-queues, --broadcast or --orderly."
        )
    _check_settings(name, name_server)
    _update(name_server, name, place, output, **settings)


@group.command("pause")
@click.argument("name", shell_complete=completing.groups)
@dry_run_option
@place_options
@output_option
@name_server_option
def pause_command(name: str, dry_run: bool, place: Place, output: str, name_server: str) -> None:
    """Stop the delivery to a group (consumeEnable=false). Its offsets stay."""
    _check_settings(name, name_server)
    _update(name_server, name, place, output, consume_enable=False, dry_run=dry_run)


@group.command("resume")
@click.argument("name", shell_complete=completing.groups)
@dry_run_option
@place_options
@output_option
@name_server_option
def resume_command(name: str, dry_run: bool, place: Place, output: str, name_server: str) -> None:
    """Resume the delivery to a group."""
    _check_settings(name, name_server)
    _update(name_server, name, place, output, consume_enable=True, dry_run=dry_run)


@group.command("mode")
@click.argument("name", shell_complete=completing.groups)
@click.argument("topic", shell_complete=completing.topics)
@click.argument("mode", type=click.Choice(("pull", "pop")))
@click.option(
    "--share",
    type=click.IntRange(0, 65_535),
    default=0,
    metavar="N",
    help="With pop: each member helps N of those after it; 0: all (popShareQueueNum).",
)
@dry_run_option
@place_options
@output_option
@name_server_option
def mode_command(
    name: str,
    topic: str,
    mode: str,
    share: int,
    dry_run: bool,
    place: Place,
    output: str,
    name_server: str,
) -> None:
    """Say how a group reads a topic: queue by queue, or message by message (pop).

    It counts for members that leave it to the brokers: push consumers with client_rebalance=False,
    in Java clientRebalance=false.
    """
    from kerolox.admin.asking import targets

    _check_settings(name, name_server)

    async def work(admin: Admin) -> list[str]:
        if dry_run:
            return await targets(admin, **place._asdict())
        return await admin.set_request_mode(
            name, topic, mode, share_queues=share, **place._asdict()
        )

    addresses = on_cluster(name_server, work)
    if not is_text(output):
        row = {"group": name, "topic": topic, "mode": mode.upper(), "done": not dry_run}
        rows = [{**row, "brokerAddr": address} for address in addresses]
        show_rows(rows, columns_of(rows[0]) if rows else (), output)
        return
    for address in addresses:
        would = "would read" if dry_run else "reads"
        how = "message by message (pop)" if mode == "pop" else "queue by queue (pull)"
        print_line(f"group {name} {would} {topic} {how} on {address}")
    if dry_run:
        print_dry_run(output)


def _check_settings(name: str, name_server: str) -> None:
    """Refuse a group that no broker has settings of: most likely its name is mistyped."""
    from kerolox.errors import ClientError

    if not on_cluster(name_server, lambda admin: admin.group_state(name)).has_settings:
        raise ClientError(
            f"no broker has settings of group {name!r}, and nothing was changed; "
            "'kerolox group list' has those that are there, 'kerolox group create' makes one"
        )


def _update(
    name_server: str, name: str, place: Place, output: str, **settings: Unpack[_Settings]
) -> None:

    is_done = not settings.get("dry_run")
    changes = on_cluster(
        name_server,
        lambda admin: admin.update_group(name, **place._asdict(), **settings),
    )
    if is_text(output):
        for change in changes:
            print_line(f"group {name} on {change.address}: {_change_text(change)}")
        if not is_done:
            print_dry_run(output)
        return
    rows = [
        {
            "group": name,
            "brokerAddr": change.address,
            "old": None if change.old is None else _settings_row(change.old),
            "new": _settings_row(change.new),
            "done": is_done,
        }
        for change in changes
    ]
    show_rows(rows, columns_of(rows[0]) if rows else (), output)


def _settings_row(settings: SubscriptionGroupConfig) -> dict[str, object]:
    return {
        "retryMaxTimes": settings.retry_max_times,
        "retryQueueNums": settings.retry_queue_nums,
        "consumeBroadcastEnable": settings.consume_broadcast_enable,
        "consumeEnable": settings.consume_enable,
        "consumeMessageOrderly": bool(settings.consume_message_orderly),
    }


def _change_text(change: GroupChange) -> str:
    old, new = change.old, change.new
    if old is None:
        paused = "" if new.consume_enable else ", paused"
        orderly = ", in order" if new.consume_message_orderly else ""
        return f"made, {new.retry_max_times} retries{orderly}{paused}"
    parts = []
    for what, field in (
        ("retries", "retry_max_times"),
        ("retry queues", "retry_queue_nums"),
        ("broadcast", "consume_broadcast_enable"),
    ):
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            parts.append(f"{what} {before} → {after}")
    if bool(old.consume_message_orderly) != bool(new.consume_message_orderly):
        parts.append("in order" if new.consume_message_orderly else "not in order any more")
    if old.consume_enable != new.consume_enable:
        parts.append("resumed" if new.consume_enable else "paused")
    unchanged = "nothing changes" if new.consume_enable else "nothing changes, it is paused"
    return ", ".join(parts) or unchanged


@group.command("clone")
@click.argument("source", shell_complete=completing.groups)
@click.argument("target", shell_complete=completing.groups)
@topic_option("Only offsets in this topic.")
@new_group_option
@consent_options
@output_option
@name_server_option
def clone_command(
    source: str,
    target: str,
    topic: str,
    new_group: bool,
    consent: Consent,
    output: str,
    name_server: str,
) -> None:
    """Copy the offsets of SOURCE to TARGET.

    Says first what that does, and asks on a terminal; elsewhere it needs --yes.
    """

    _check_known(source, False, name_server)
    _check_known(target, new_group, name_server)

    def cloned(*, dry_run: bool) -> list[str]:
        return on_cluster(
            name_server,
            lambda admin: admin.clone_offsets(source, target, topic=topic, dry_run=dry_run),
        )

    def show(addresses: list[str], *, is_done: bool) -> None:
        row = {"group": target, "source": source, "brokerAddrs": addresses, "done": is_done}
        show_row(row, columns_of(row), output)

    if not consent.yes:
        if is_text(output):
            rows = on_cluster(
                name_server, lambda admin: _planned_clone(admin, source, target, topic)
            )
            show_rows(rows, MOVE_COLUMNS, output)
        else:
            show(cloned(dry_run=True), is_done=False)
        question = f"Move group {target} to the offsets of {source}?"
        if not confirm(question, consent, output, name_server):
            return
    addresses = cloned(dry_run=False)
    if is_text(output) or not consent.yes:
        print_line(f"group {target} has the offsets of {source} on {', '.join(addresses)}")
    else:
        show(addresses, is_done=True)


async def _planned_clone(
    admin: Admin, source: str, target: str, topic: str
) -> list[dict[str, object]]:
    """What a copy of offsets does to the group that gets them. Where that has none yet, nothing
    comes again and nothing is skipped."""
    theirs, ours = await _offsets(admin, source, topic), await _offsets(admin, target, topic)
    return [
        {
            "topic": queue.topic,
            "queue": f"{queue.broker_name}/{queue.queue_id}",
            "oldOffset": ours.get(queue, -1),
            "newOffset": offset,
            "again": max(ours.get(queue, offset) - offset, 0),
            "skipped": max(offset - ours.get(queue, offset), 0),
        }
        for queue, offset in theirs.items()
    ]


async def _offsets(admin: Admin, name: str, topic: str) -> dict[MessageQueue, int]:
    from kerolox.errors import ConsumerNotOnlineError, TopicRouteNotFoundError

    try:
        progress = await admin.group_progress(name, topic=topic)
    except (ConsumerNotOnlineError, TopicRouteNotFoundError):
        return {}  # it has consumed nothing, or nobody knows it yet
    return {each.queue: each.consumer_offset for each in progress.queues}


@group.command("delete")
@click.argument("name", shell_complete=completing.groups)
@click.option("--offsets", is_flag=True, help="Delete its offsets, too.")
@place_options
@consent_options
@output_option
@name_server_option
def delete_command(
    name: str, offsets: bool, place: Place, consent: Consent, output: str, name_server: str
) -> None:
    """Delete a group; on a whole cluster its retry topic and its dead letters go, too."""
    from kerolox.errors import ClientError

    if not on_cluster(name_server, lambda admin: admin.group_exists(name)):
        raise ClientError(f"there is no group {name!r}; 'kerolox group list' has those there are")
    if not consent.yes:
        [summary] = on_cluster(name_server, lambda admin: admin.group_summaries([name]))
        complain(
            f"kerolox: group {name} has {counted(summary.members, 'member')} online and "
            f"{counted(summary.lag, 'message')} left"
        )
        if not confirm(f"Delete group {name}?", consent, output, name_server):
            if not is_text(output):
                row = {"group": name, "members": summary.members, "lag": summary.lag, "done": False}
                show_row(row, columns_of(row), output)
            return
    addresses = on_cluster(
        name_server,
        lambda admin: admin.delete_group(name, **place._asdict(), remove_offsets=offsets),
    )
    if is_text(output):
        print_line(f"group {name} deleted on {', '.join(addresses)}")
        return
    row = {"group": name, "deletedOn": addresses, "done": True}
    show_row(row, columns_of(row), output)
