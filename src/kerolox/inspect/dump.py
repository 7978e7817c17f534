"""``kerolox store dump``: records of the log as JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.errors import RemoteProtocolError, StoreError
from kerolox.inspect.log_walk import LogWalk, read_record, record_at_or_after, written_files
from kerolox.inspect.queue_files import QueueFiles
from kerolox.protocol.records import decode_record
from kerolox.store.layout import PRE_BLANK_SIZE

if TYPE_CHECKING:
    from kerolox.inspect.findings import Findings
    from kerolox.inspect.places import StorePlaces
    from kerolox.message import MessageExt

OFFSET_MAX = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which records. Ranges include their first number and not their last."""

    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    """Physical offsets."""
    topic: str = ""
    queue_id: int = -1
    from_queue_offset: int = 0
    to_queue_offset: int = OFFSET_MAX
    since_ms: int = 0
    until_ms: int = OFFSET_MAX
    """Store timestamps."""
    limit: int = OFFSET_MAX

    def __post_init__(self) -> None:
        is_ranged = self.from_queue_offset > 0 or self.to_queue_offset < OFFSET_MAX
        if is_ranged and (not self.topic or self.queue_id < 0):
            raise StoreError("a range of queue offsets needs a topic and a queue")


def select_records(
    places: StorePlaces, selection: Selection, findings: Findings
) -> Iterator[MessageExt]:
    """The records of a selection, in the order of the log; bodies inflated.

    Reads no more of the log than the selection needs, as far as files tell. What is damaged is a
    finding and left out.

    Raises:
        OSError: something can't be read.
    """
    walk = LogWalk(
        [file for file in places.log_files if file.size],
        findings,
        is_in_use=places.is_in_use,
        is_closed_cleanly=places.is_closed_cleanly,
    )
    start, end = _range(places, selection)
    start = record_at_or_after(walk.files, start) if start > walk.start else walk.start
    if start < 0:
        return
    topic = selection.topic.encode()
    left = selection.limit
    for record in walk.records(start):
        offset = record.physical_offset
        if offset >= end or left <= 0:
            return
        if topic and record.topic != topic:
            continue
        if selection.queue_id >= 0 and record.queue_id != selection.queue_id:
            continue
        if not selection.from_queue_offset <= record.queue_offset < selection.to_queue_offset:
            continue
        if not selection.since_ms <= record.store_timestamp < selection.until_ms:
            continue
        try:
            message, _ = decode_record(walk.data(record))
        except RemoteProtocolError as error:
            findings.note(f"the record at {offset} can't be decoded: {error}")
            continue
        left -= 1
        yield message
        if not left:
            return


def _range(places: StorePlaces, selection: Selection) -> tuple[int, int]:
    """The physical range that holds the selection."""
    start, end = selection.from_offset, selection.to_offset
    if selection.topic and selection.queue_id >= 0:
        queue = QueueFiles(places.queue_path(selection.topic.encode(), selection.queue_id))
        first, stop = queue.first, queue.end()
        if first < selection.from_queue_offset < stop:
            physical, size, _code = queue.entry(selection.from_queue_offset)
            start = max(start, physical) if 0 < size < PRE_BLANK_SIZE else start
        if first < selection.to_queue_offset < stop:
            physical, size, _code = queue.entry(selection.to_queue_offset)
            end = min(end, physical) if 0 < size < PRE_BLANK_SIZE else end
    if selection.since_ms:
        start = max(start, _start_of_time(places, selection.since_ms))
    return start, end


def _start_of_time(places: StorePlaces, since_ms: int) -> int:
    """Beginning of the last file whose first record is older than a time."""
    start = 0
    for file in written_files([file for file in places.log_files if file.size]):
        data = read_record([file], file.start)
        if data is not None and decode_record(data, inflate=False)[0].store_timestamp >= since_ms:
            break
        start = file.start
    return start


def as_json(message: MessageExt, body: str) -> dict[str, object]:
    """A record in RocketMQ's names. ``body``: ``text`` (base64 where it is no UTF-8), ``base64`` or
    ``none``.
    """
    fields: dict[str, object] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": "{}:{}".format(*message.born_host),
        "storeHost": "{}:{}".format(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    if message.body_error:
        fields["bodyError"] = message.body_error
    if body == "none":
        return fields
    if body == "text":
        try:
            fields["body"] = message.body.decode()
        except UnicodeDecodeError:
            body = "base64"
    if body == "base64":
        fields["bodyBase64"] = base64.b64encode(message.body).decode()
    return fields
