"""Taking a message back before its moment: the handle that its producer gets, and the command that
deletes the message (``RecallMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping

from kerolox.message import PropertyKey
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.protocol.recall_handles import RecallError, RecallHandle, decode_handle
from kerolox.store.timer.puts import Refused, TimerSettings, delete_key, out_ms

RECALL_TAG = "_RECALL_TAG_"
"""Tag of a command to delete."""
RECALL_BODY = b"0"
"""Its body."""


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
) -> Refused | dict[str, str]:
    """The properties of the command, which is sent to ``topic``, the one that the request names,
    with :data:`RECALL_BODY`, and which :func:`~kerolox.store.timer.puts.decide_put` puts into the
    timer's topic. ``group``: the producer's.

    That it is stored does not say that there was such a message.
    """
    try:
        found = decode_handle(handle)
    except RecallError as error:
        return _refused(str(error))
    if found.topic != topic:
        return _refused("recall failed, topic not match")
    if found.broker_name != broker_name:
        return _refused("recall failed, broker service not available")
    left_ms = found.time_ms - now_ms
    if left_ms <= 0:
        return _refused("recall failed, timestamp invalid: its moment is over")
    if left_ms >= settings.max_delay_sec * 1_000:
        return _refused("recall failed, timestamp invalid: no message waits for so long")
    return {
        PropertyKey.TAGS: RECALL_TAG,
        PropertyKey.TIMER_DELETES: delete_key(found.topic, found.unique_key),
        PropertyKey.UNIQUE_KEY: found.unique_key,
        PropertyKey.TIMER_DELIVER: str(found.time_ms),
        PropertyKey.PRODUCER_GROUP: group,
    }


def _refused(text: str) -> Refused:
    return Refused(ResponseCode.ILLEGAL_OPERATION, text)
