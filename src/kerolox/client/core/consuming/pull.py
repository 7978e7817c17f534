"""Pull requests and what their responses mean."""

from __future__ import annotations

import functools
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kerolox.codec.pulling import PullFrames, decode_messages
from kerolox.errors import BrokerError, RemoteProtocolError
from kerolox.message import MessageExt, MessageQueue
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import PullMessageHeader

if TYPE_CHECKING:
    from kerolox.filter.tags import Subscription


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


# As plain numbers: flags of an enumeration take a microsecond each to join.
_COMMIT_OFFSET, _SUSPEND = PullSysFlag.COMMIT_OFFSET.value, PullSysFlag.SUSPEND.value
_SUBSCRIPTION, _LITE_PULL = PullSysFlag.SUBSCRIPTION.value, PullSysFlag.LITE_PULL.value
_CLASS_FILTER = PullSysFlag.CLASS_FILTER.value

PULLED_QUEUES_KEPT = 4_096
"""Queues of which most of a pull's header is kept ready."""

_STATUS_BY_CODE: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullResult(NamedTuple):
    """The answer to a pull.

    A message whose body can't be inflated is among ``messages`` too, with ``body_error`` set.
    ``next_offset`` is where to go on, whatever the status is; ``suggested_broker_id`` which node
    of the broker to ask next.
    """

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0


def from_the_start(result: PullResult, offset: int) -> PullResult:
    """The answer to a pull at an offset of a topic that was gone meanwhile: behind the end of its
    queue it goes on at the start, since all messages there are new. RocketMQ names the end."""
    if result.status is not PullStatus.OFFSET_ILLEGAL or result.next_offset > offset:
        return result
    return result._replace(next_offset=min(result.next_offset, result.min_offset))


def pull_request(
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_messages: int,
    suspend_timeout_ms: int = 0,
    commit_offset: int = -1,
    with_subscription: bool = False,
    is_lite: bool = False,
) -> RemotingCommand:
    """A pull request.

    Args:
        group: consumer group.
        queue: where from.
        offset: first queue offset.
        subscription: its expression is sent only when ``with_subscription``; else the broker takes
            the one of the group's heartbeats, if its version is not older than this one's.
        max_messages: most messages of the answer.
        suspend_timeout_ms: how long the broker may hold the request; 0: not at all.
        commit_offset: the group's offset to be stored on the way; -1: none.
        with_subscription: see ``subscription``.
        is_lite: it is the pull of a lite pull consumer.
    """
    flags = pull_flags(suspend_timeout_ms=suspend_timeout_ms, commits=commit_offset >= 0)
    if with_subscription:
        flags |= _SUBSCRIPTION
    if is_lite:
        flags |= _LITE_PULL
    if subscription.class_filter_mode:
        flags |= _CLASS_FILTER
    expression = subscription.expression if with_subscription else None
    fields = _fields_of(
        group, queue, max_messages, suspend_timeout_ms, subscription.version, expression,
        subscription.expression_type,
    ).copy()  # fmt: skip
    fields["queueOffset"] = str(offset)
    fields["sysFlag"] = str(flags)
    fields["commitOffset"] = str(max(commit_offset, 0))
    return RemotingCommand(RequestCode.PULL_MESSAGE, fields)


def pull_flags(*, suspend_timeout_ms: int, commits: bool = False) -> int:
    """The sys flag of a pull that may be held for so long, and has an offset to be stored."""
    flags = _COMMIT_OFFSET if commits else 0
    return flags | _SUSPEND if suspend_timeout_ms > 0 else flags


@functools.lru_cache(maxsize=PULLED_QUEUES_KEPT)
def pull_frames(
    group: str,
    queue: MessageQueue,
    subscription: Subscription,
    max_messages: int,
    suspend_timeout_ms: int,
) -> PullFrames:
    """Makes the frames of such pulls as :func:`pull_request` makes commands."""
    return PullFrames(
        _fields_of(
            group, queue, max_messages, suspend_timeout_ms, subscription.version, None,
            subscription.expression_type,
        )
    )  # fmt: skip


@functools.lru_cache(maxsize=PULLED_QUEUES_KEPT)
def _fields_of(
    group: str,
    queue: MessageQueue,
    max_messages: int,
    suspend_timeout_ms: int,
    version: int,
    expression: str | None,
    expression_type: str,
) -> dict[str, str]:
    """The header of a pull but for what changes from one to the next, which is 0 here."""
    header = PullMessageHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=0,
        max_msg_nums=max_messages,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=suspend_timeout_ms,
        sub_version=version,
        subscription=expression,
        expression_type=expression_type,
    )
    return header.encode()


def pull_result(
    response: RemotingCommand, queue: MessageQueue, subscription: Subscription, address: str
) -> PullResult:
    """What the broker's answer says; messages whose tag only has the same hash are left out.
    BrokerError: neither messages nor one of the four statuses. RemoteProtocolError: a field is
    missing, or the records are torn.
    """
    status = _STATUS_BY_CODE.get(response.code)
    if status is None:
        raise BrokerError.from_response(response.code, response.remark, address)
    fields = response.ext_fields
    try:
        next_offset, suggested = int(fields["nextBeginOffset"]), fields["suggestWhichBrokerId"]
        min_offset, max_offset = int(fields["minOffset"]), int(fields["maxOffset"])
        suggested_broker_id = int(suggested)
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"pull response of {address} is malformed: {error!r}") from None
    messages: list[MessageExt] = []
    if status is PullStatus.FOUND:
        messages = decode_messages(
            response.body,
            broker_name=queue.broker_name,
            tags=subscription.tags,
            bounds=(fields["minOffset"], fields["maxOffset"]),
        )
    return PullResult(status, messages, next_offset, min_offset, max_offset, suggested_broker_id)
