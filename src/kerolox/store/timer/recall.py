"""Taking a message back before its moment: the handle that its producer gets, and the command that
deletes the message (``RecallMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kerolox.message import PropertyKey
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.protocol.recall_handles import RecallError, RecallHandle, decode_handle
from kerolox.store.timer.puts import Refused, TimerSettings, delete_key, out_ms

RECALL_TAG = "_RECALL_TAG_"
"""Tag of a command to delete."""
RECALL_BODY = b"0"
"""Its body."""


class Recall(NamedTuple):
    """A command to delete."""

    properties: dict[str, str]
    out_ms: int
    """``TIMER_OUT_MS`` of the message."""


def handle_of(properties: Mapping[str, str], broker_name: str) -> RecallHandle | None:
    """The handle of a message that was put into the timer's topic; None: it can't be taken back,
    since it waits for no moment, is a retry, or has no ``UNIQ_KEY``."""
    time_ms = out_ms(properties)
    topic = properties.get(PropertyKey.REAL_TOPIC, "")
    unique_key = properties.get(PropertyKey.UNIQUE_KEY, "")
    if time_ms is None or not topic or topic.startswith(RETRY_PREFIX) or not unique_key:
        return None
    return RecallHandle(topic, broker_name, time_ms + 1, unique_key)


def decide_recall(
    handle: str,
    settings: TimerSettings,
    *,
    topic: str,
    broker_name: str,
    group: str,
    now_ms: int,
    has_index: bool = True,
) -> Refused | Recall:
    """The command, which is sent to ``topic``, the one that the request names,
    with :data:`RECALL_BODY`, and which :func:`~kerolox.store.timer.puts.decide_put` puts into the
    timer's topic. ``group``: the producer's. ``has_index``: the broker can tell whether the message
    still waits.

    That it is stored does not say that there was such a message. Within the step that the message
    comes in, the command names the step's end. RocketMQ calls that too late; so it is without an
    index, since the message may have come.
    """
    try:
        found = decode_handle(handle)
    except RecallError as error:
        return _refused(str(error))
    if found.topic != topic:
        return _refused("recall failed, topic not match")
    if found.broker_name != broker_name:
        return _refused("recall failed, broker service not available")
    end_ms = settings.step(found.time_ms - 1) + settings.precision_ms
    if end_ms <= now_ms:
        return _refused("recall failed, timestamp invalid: its moment is over")
    if found.time_ms <= now_ms and not has_index:
        return _refused(
            "recall failed, timestamp invalid: its moment may be over, and without an index "
            "(messageIndexEnable) nothing tells"
        )
    if found.time_ms - now_ms >= settings.max_delay_sec * 1_000:
        return _refused("recall failed, timestamp invalid: no message waits for so long")
    properties = {
        PropertyKey.TAGS: RECALL_TAG,
        PropertyKey.TIMER_DELETES: delete_key(found.topic, found.unique_key),
        PropertyKey.UNIQUE_KEY: found.unique_key,
        PropertyKey.TIMER_DELIVER: str(found.time_ms if found.time_ms > now_ms else end_ms),
        PropertyKey.PRODUCER_GROUP: group,
    }
    return Recall(properties, found.time_ms - 1)


def _refused(text: str) -> Refused:
    return Refused(ResponseCode.ILLEGAL_OPERATION, text)
