"""Consumer groups: list, lag, members, moving offsets, pausing."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from kerolox.admin import (
    ConsumerStatus,
    GroupChange,
    GroupProgress,
    PoppedMessages,
    QueueProgress,
    QueueTimeSpan,
    SubscriptionGroupConfig,
)
from kerolox.admin.asking import answers_of
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.cache import KEPT_SECONDS
from kerolox.console.history.sampler import lag_series
from kerolox.console.listing import Value, order_of
from kerolox.console.pages.overview import HOURS, hours_of
from kerolox.console.pages.popped import held
from kerolox.console.pages.resets import ALL_TOPICS
from kerolox.console.rendering import slice_of
from kerolox.console.visit import Visit
from kerolox.errors import ClientError, ConsumerNotOnlineError, KeroloxError, NotFoundError
from kerolox.message import MessageQueue
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.text import counted, printable

__all__ = [
    *("clone", "delete", "described", "examined", "listed", "member", "pause", "resume"),
    "update",
]

COLUMNS = {"name": False, "state": False, "lag": True, "rate": True, "last": True}
"""Columns of the list → whether the largest comes first."""
RETRIES = SubscriptionGroupConfig(group_name="").retry_max_times
"""What the form for a new group proposes: RocketMQ's default."""
RETRIES_MAX = 10_000
STACK_CHARACTERS_MAX = 256 * 1024


async def listed(visit: Visit) -> Response:
    """All groups, page by page. Who is online is shown as far as it is known by then."""
    wanted = visit.asked("q").lower()
    internal, paused = visit.asked("all") == "1", visit.asked("state") == "paused"
    states, silent = await visit.console.cluster.group_states_told(internal=internal)
    sample = await visit.console.sampler.newest()
    found = [
        name
        for name, state in states.items()
        if wanted in name.lower() and (state.paused or not paused)
    ]
    order = order_of(visit, COLUMNS)

    def value(name: str) -> Value:
        if order.column == "name":
            return name
        if order.column == "state":
            return states[name].text
        progress = sample.groups.get(name)
        return None if progress is None else _progress_value(progress, order.column)

    shown = slice_of(order.sorted(found, value), visit.number("page", 1, 1))
    members = visit.console.members
    members.keep_only(await visit.console.cluster.group_states(internal=True))
    online = await members.get(shown.items, seconds_max=KEPT_SECONDS)
    rows = [(name, states[name], name in online, online.get(name)) for name in shown.items]
    return visit.page(
        "groups.html",
        rows=rows,
        unknown=any(name not in online for name in shown.items),
        is_error=lambda each: isinstance(each, KeroloxError),
        progress=sample.groups,
        consumed_ms=lambda each: _progress_value(each, "last") or 0,
        silent={name: str(error) for name, error in silent.items()},
        shown=shown,
        q=visit.asked("q"),
        internal=internal,
        paused=paused,
        parameters={
            "q": visit.asked("q"),
            "all": "1" if internal else "",
            "state": "paused" if paused else "",
        },
        order=order,
        sample=sample,
        retries=RETRIES,
    )


def _progress_value(progress: GroupProgress, column: str) -> float | None:
    match column:
        case "lag":
            return max(progress.lag, 0)
        case "rate":
            return progress.consumed_per_second
    return max((each.last_consumed_ms for each in progress.queues), default=0) or None


async def described(visit: Visit) -> Response:
    """One group: how far it is in each queue, who its members are, what they want."""
    name = visit.needed("name")
    await visit.console.cluster.check_group(name)
    (queues, spans, late), (status, away), settings, letters, popped = await visit.shared(
        ("group", name), lambda: examined(visit, name)
    )
    faults = [each for each in (late, away) if each]
    sample = visit.console.sampler.known
    progress = sample.groups.get(name) if sample is not None else None
    topic = visit.asked("topic")
    chosen = [each for each in queues if topic in ("", each.queue.topic)]
    return visit.page(
        "group.html",
        name=name,
        topic=topic,
        topics=sorted(
            {each.queue.topic for each in queues},
            # Its retries come again by themselves: they are meant least.
            key=lambda each: (each.startswith(RETRY_PREFIX), each),
        ),
        queues=slice_of(chosen, visit.number("page", 1, 1)),
        spans=spans,
        popped=popped,
        in_flight=sum(each.in_flight for each in queues),
        lag=sum(max(each.lag, 0) for each in chosen),
        waits_ms=max(
            (spans[e.queue].delay_ms for e in chosen if e.lag > 0 and e.queue in spans), default=0
        ),
        rate=None if progress is None else progress.consumed_per_second,
        letters=letters,
        status=status,
        paused=sorted(b for b, each in settings.items() if each and not each.consume_enable),
        ordered=sorted(b for b, each in settings.items() if each and each.consume_message_orderly),
        delivering=sorted(b for b, each in settings.items() if each and each.consume_enable),
        group_settings={broker: each for broker, each in settings.items() if each is not None},
        ALL_TOPICS=ALL_TOPICS,
        retries=next((each.retry_max_times for each in settings.values() if each), RETRIES),
        faults=faults,
        hours=hours_of(visit),
        hours_choices=HOURS,
        charted=[lag_series(name)],
    )


async def examined(
    visit: Actor, name: str
) -> tuple[
    tuple[list[QueueProgress], dict[MessageQueue, QueueTimeSpan], str],
    tuple[ConsumerStatus | None, str],
    dict[str, SubscriptionGroupConfig | None],
    int | None,
    PoppedMessages | None,
]:
    """How far a group is, its members, its settings by broker, how many dead letters wait, and what
    it has out."""
    # Together: a broker that does not answer is waited for once.
    progress, status, (settings, _), letters = await asyncio.gather(
        _progress(visit, name),
        _status(visit, name),
        visit.console.cluster.ask_masters(
            lambda address: visit.admin.group_settings(address, name)
        ),
        _dead_letters(visit, name),
    )
    popped = await held(visit, name) if any(each.in_flight for each in progress[0]) else None
    return progress, status, settings, letters, popped


async def _dead_letters(visit: Actor, name: str) -> int | None:
    """How many of a group wait; None: its brokers do not tell."""
    try:
        return sum(each.waiting for each in await visit.admin.dead_letter_queues(name))
    except KeroloxError:
        return None


async def _progress(
    visit: Actor, name: str
) -> tuple[list[QueueProgress], dict[MessageQueue, QueueTimeSpan], str]:
    """How far a group is in its queues, in messages and in time, and what was not to be learnt."""
    try:
        queues = list((await visit.admin.group_progress(name, clients=True)).queues)
        return queues, await _spans(visit, name, {each.queue.topic for each in queues}), ""
    except ConsumerNotOnlineError:
        return [], {}, "It has consumed nothing yet: no broker has an offset of it."
    except KeroloxError as error:
        return [], {}, str(error)


async def _status(visit: Actor, name: str) -> tuple[ConsumerStatus | None, str]:
    """The members of a group, and what was not to be learnt."""
    try:
        return await visit.admin.consumer_status(name), ""
    except ConsumerNotOnlineError:
        return None, "No member is online."
    except KeroloxError as error:
        return None, str(error)


async def member(visit: Visit) -> Response:
    """One member: its queues, how fast it is, what its threads do."""
    name, client_id = visit.needed("name"), visit.needed("client")
    is_asked = visit.asked("stacks") == "1"
    info = await visit.admin.consumer_running_info(name, client_id, stacks=is_asked)
    return visit.page(
        "member.html",
        name=name,
        info=info,
        is_asked=is_asked,
        stacks="\n".join(
            printable(line, characters_max=None)
            for line in info.stacks[:STACK_CHARACTERS_MAX].splitlines()
        ),
    )


async def update(visit: Actor) -> ActionResult:
    """Make a group, or change the retries of one and whether it consumes in order."""
    name = visit.required("name")
    retries = visit.given_number("retries", 0, RETRIES_MAX)
    orderly = True if visit.given("orderly") == "1" else None
    if orderly is None and visit.given("was_orderly") == "1":
        orderly = False
    changes = await _change(visit, name, retry_max_times=retries, consume_message_orderly=orderly)
    made = [each.address for each in changes if each.old is None]
    what = f"is made on {', '.join(made)}, with" if made else "has"
    return ActionResult(
        f"Group {name} {what} {counted(retries, 'retry', plural='retries')}"
        f"{', in order by gRPC' if orderly else ''}.",
        visit.path("/group", name=name),
        {"group": name},
        old={each.address: _audited(each.old) for each in changes},
        new={each.address: _audited(each.new) for each in changes},
    )


def _audited(settings: SubscriptionGroupConfig | None) -> int | str | None:
    """Its retries, and whether it consumes in order."""
    if settings is None:
        return None
    retries = settings.retry_max_times
    return f"{retries}, in order" if settings.consume_message_orderly else retries


async def clone(visit: Actor) -> ActionResult:
    """Give another group the offsets of this one."""
    name, target = visit.required("name"), visit.required("target")
    if name == target:
        raise ClientError("a group has its own offsets; name another one")
    topic = visit.given("topic")
    await visit.console.cluster.check_group(name)
    if visit.given("new") != "1":
        await visit.console.cluster.check_group(target)
    done = await visit.admin.clone_offsets(name, target, topic=topic)
    return ActionResult(
        f"Group {target} has the offsets of {name} on {', '.join(done)}.",
        visit.path("/group", name=target),
        {"group": target, "source": name, "topic": topic},
        new=f"the offsets of {name}",
    )


async def pause(visit: Actor) -> ActionResult:
    """Deliver nothing more to a group."""
    return await _enable(visit, enable=False)


async def resume(visit: Actor) -> ActionResult:
    """Deliver to it again."""
    return await _enable(visit, enable=True)


async def delete(visit: Actor) -> ActionResult:
    """Delete a group, whose name was typed once more."""
    name = visit.required("name")
    if visit.given("again") != name:
        raise ClientError("type the group's name once more to delete it; nothing was deleted")
    await visit.console.cluster.check_group(name)
    clusters = sorted((await visit.console.cluster.info()).clusters)
    done: list[str] = []
    for cluster in clusters:
        done += await visit.admin.delete_group(
            name, cluster=cluster, remove_offsets=visit.given("offsets") == "1"
        )
    return ActionResult(
        f"Group {name} is deleted on {', '.join(done)}.",
        visit.path("/groups"),
        {"group": name},
        old=f"a group on {', '.join(done)}",
    )


async def _enable(visit: Actor, *, enable: bool) -> ActionResult:
    name = visit.required("name")
    changes = await _change(visit, name, consume_enable=enable)
    return ActionResult(
        f"Group {name} is {'resumed' if enable else 'paused'} on "
        f"{', '.join(each.address for each in changes)}.",
        visit.path("/group", name=name),
        {"group": name},
        old={each.address: each.old.consume_enable if each.old else None for each in changes},
        new={each.address: each.new.consume_enable for each in changes},
    )


async def _change(
    visit: Actor,
    name: str,
    *,
    consume_enable: bool | None = None,
    retry_max_times: int | None = None,
    consume_message_orderly: bool | None = None,
) -> list[GroupChange]:
    """Of a group on all clusters; None: stays. To pause one makes none."""
    clusters = sorted((await visit.console.cluster.info()).clusters)
    if consume_enable is not None:
        clusters = [each for each in clusters if await _is_there(visit, name, each)]
        if not clusters:
            await visit.console.cluster.check_group(name)
            raise NotFoundError(
                f"no broker has settings of group {name!r}, and nothing was changed"
            )
    changes: list[GroupChange] = []
    for cluster in clusters:
        changes += await visit.admin.update_group(
            name,
            cluster=cluster,
            consume_enable=consume_enable,
            retry_max_times=retry_max_times,
            consume_message_orderly=consume_message_orderly,
        )
    return changes


async def _is_there(visit: Actor, name: str, cluster: str) -> bool:
    """Whether a broker of a cluster has settings of a group."""
    masters = (await visit.console.cluster.info()).masters(cluster)
    found, _ = await answers_of(masters, lambda each: visit.admin.group_settings(each, name))
    return any(found.values())


async def _spans(visit: Actor, group: str, topics: set[str]) -> dict[MessageQueue, QueueTimeSpan]:
    """By queue; nothing of a topic whose broker does not report."""
    found, _ = await answers_of(
        sorted(topics), lambda topic: visit.admin.consume_time_spans(group, topic)
    )
    return {span.queue: span for spans in found.values() for span in spans}
