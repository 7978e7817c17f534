"""A scenario that either broker can be told, and everything that a client can see of its store."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from kerolox.inspect.check import check_store
from kerolox.inspect.dump import Selection, select_records
from kerolox.inspect.findings import Findings
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.message import MessageExt, encode_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_record, encode_batch
from kerolox.store.layout import ENTRY_BYTES
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until

__all__ = ["Seen", "assert_clean", "assert_equal", "assert_keys", "look", "tell"]
__all__ += ["assert_delivered", "assert_places", "assert_waiting", "delay", "tables_on_disk"]

TOPICS = {"Both-plain": 4, "Both-batch": 2, "%RETRY%both": 1}
LATER = "Both-later"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
GROUP = "both"
DELAY_LEVELS = "5s 12s"
SHORT, LONG = 1, 2
"""Levels: longer than a broker needs to end, on a busy machine. Java takes 6 s to stop."""
PLAIN, BATCHES, DELAYED = 160, 12, 4
UNICODE = "Schlüssel-キー-😀"


@dataclass
class Seen:
    """What clients see: raw records by queue, offsets of a group, and keys that were given."""

    records: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    later: list[bytes] = field(default_factory=list)
    """Bodies that wait to be delivered, in order."""
    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    """(topic, key) → how many messages carry it."""


def tell(address: str, chapter: str, seen: Seen) -> None:
    """Send a chapter: plain, tagged, keyed, compressed, in batches; commit offsets."""
    with PatientConnection(address) as connection:
        for number in range(PLAIN):
            body = f"{chapter} {number} {UNICODE}|".encode() * (number % 23 + 1)
            key = f"{chapter}-{number}"
            topic = "%RETRY%both" if number % 16 == 0 else "Both-plain"
            compressed = number % 5 == 0
            _send(
                connection,
                topic,
                number % TOPICS[topic],
                zlib.compress(body) if compressed else body,
                {
                    "KEYS": f"{key} {chapter}-{UNICODE}",
                    "UNIQ_KEY": f"U{key}".upper(),
                    "TAGS": ("red", "grün", "")[number % 3],
                    "größe": f"{number} ✓",
                },
                sys_flag=1 if compressed else 0,
                flag=number,
            )
            for each in (key, f"{chapter}-{UNICODE}", f"U{key}".upper()):
                seen.keys[topic, each] = seen.keys.get((topic, each), 0) + 1
        for number in range(BATCHES):
            items = []
            for item in range(1 + number):
                key = f"{chapter}-b{number}-{item}"
                seen.keys["Both-batch", key] = 1
                properties = encode_properties({"KEYS": key, "TAGS": "batch", "WAIT": "true"})
                items.append((item, f"{key} {UNICODE}".encode(), properties.encode()))
            _send(connection, "Both-batch", number % 2, encode_batch(items), {}, batch=True)
        for topic, count in TOPICS.items():
            for queue_id in range(count):
                offset = len(seen.records.get((topic, queue_id), ())) + queue_id + 1
                _commit(connection, topic, queue_id, offset)
                seen.offsets[topic, queue_id] = offset


def delay(address: str, chapter: str, seen: Seen, level: int) -> None:
    """Send what is to be delivered later, by whoever has the store then."""
    with PatientConnection(address) as connection:
        for number in range(DELAYED):
            body = f"{chapter} later {number}".encode()
            _send(connection, LATER, number % 2, body, {"DELAY": str(level)})
            seen.later.append(body)


def look(address: str, seen: Seen) -> Seen:
    """Pull every message of every queue, and ask for the group's offsets."""
    found = Seen(later=list(seen.later), keys=dict(seen.keys))
    with PatientConnection(address) as connection:
        for topic, count in (*TOPICS.items(), (LATER, 2)):
            for queue_id in range(count):
                found.records[topic, queue_id] = pull_all(connection, topic, queue_id)
        for topic, queue_id in seen.offsets:
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id}
            asked = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            answer = connection.invoke(asked)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            found.offsets[topic, queue_id] = int(answer.ext_fields["offset"])
    return found


def pull_all(connection: PatientConnection, topic: str, queue_id: int) -> dict[int, bytes]:
    """The raw records of a queue by queue offset; each is at the offset that it was pulled from."""
    records: dict[int, bytes] = {}
    offset = 0
    while True:
        fields = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        answer = connection.invoke(RemotingCommand.request(RequestCode.PULL_MESSAGE, fields))
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
            return records
        if answer.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY):
            assert not records, answer.remark
            return records
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        at = 0
        while at < len(answer.body):
            message, end = decode_record(answer.body, at)
            assert message.queue_offset == offset
            records[offset] = bytes(answer.body[at:end])
            offset, at = offset + 1, end


def assert_equal(found: Seen, wanted: Seen) -> None:
    """The same records to the byte, and the same offsets of the group.

    Delivered messages may have come since; those that were there are still the same.
    """
    for queue, records in wanted.records.items():
        if queue[0] == LATER:
            kept = {offset: found.records[queue].get(offset) for offset in records}
            assert kept == records, queue
        else:
            assert found.records[queue] == records, queue
    assert found.offsets == wanted.offsets


def assert_keys(address: str, seen: Seen) -> None:
    """Each key finds the messages that carry it."""
    with PatientConnection(address) as connection:
        for (topic, key), count in seen.keys.items():
            wait_until(
                lambda topic=topic, key=key, count=count: (
                    _found(connection, topic, key) >= min(count, 32)
                ),
                what=f"{count} messages of {topic} with the key {key}",
            )


def assert_places(address: str, seen: Seen, *, by_files_of: Path | None = None) -> None:
    """Each queue has its bounds; its first and last message are found by their place in the log,
    and by time.

    ``by_files_of``: the data folder of a Java broker. It searches only in the first file of a
    queue that was not changed before the time that is sought (``getMappedFileByTime``): where two
    messages are stored within a millisecond, or after a recovery, that may be another file than
    the message's own.
    """
    with PatientConnection(address) as connection:

        def asked(code: RequestCode, **fields: object) -> RemotingCommand:
            answer = connection.invoke(RemotingCommand.request(code, fields))
            assert answer.code == ResponseCode.SUCCESS, (fields, answer.remark)
            return answer

        for (topic, queue_id), records in seen.records.items():
            if topic == LATER or not records:
                continue
            queue = {"topic": topic, "queueId": queue_id}
            high = asked(RequestCode.GET_MAX_OFFSET, **queue).ext_fields["offset"]
            low = asked(RequestCode.GET_MIN_OFFSET, **queue).ext_fields["offset"]
            assert (int(low), int(high)) == (0, len(records)), queue
            times = {at: decode_record(data)[0].store_timestamp for at, data in records.items()}
            for at in (0, len(records) - 1):
                place = decode_record(records[at])[0].commit_log_offset
                viewed = asked(RequestCode.VIEW_MESSAGE_BY_ID, offset=place)
                assert bytes(viewed.body) == records[at], (queue, at)
                when = {**queue, "timestamp": times[at]}
                found = asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **when)
                searched = times
                if by_files_of is not None:
                    folder = by_files_of / "store" / "consumequeue" / topic / str(queue_id)
                    searched = _of_file_by_time(folder, times, times[at])
                nearest = min(searched.values(), key=lambda stored: abs(stored - times[at]))
                assert times[int(found.ext_fields["offset"])] == nearest, (queue, at)


def _of_file_by_time(folder: Path, times: dict[int, int], sought_ms: int) -> dict[int, int]:
    """Of a queue's store times by offset: those in the file that Java searches."""
    files = sorted(each for each in folder.iterdir() if each.name.isdecimal())
    changed = (each for each in files if each.stat().st_mtime_ns // 1_000_000 >= sought_ms)
    file = next(changed, files[-1])
    start, entries = int(file.name) // ENTRY_BYTES, file.stat().st_size // ENTRY_BYTES
    return {offset: times[offset] for offset in range(start, start + entries) if offset in times}


def _found(connection: PatientConnection, topic: str, key: str) -> int:
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": int(time.time() * 1_000) + 60_000,
    }
    answer = connection.invoke(RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields))
    if answer.code != ResponseCode.SUCCESS:
        return 0
    return sum(_has_key(message, key) for message in _messages(answer.body))


def _has_key(message: MessageExt, key: str) -> bool:
    return key == message.unique_key or key in message.keys.split(" ")


def _messages(body: bytes) -> list[MessageExt]:
    found, at = [], 0
    while at < len(body):
        message, at = decode_record(body, at)
        found.append(message)
    return found


def assert_delivered(address: str, seen: Seen) -> None:
    """Everything that was delayed is in its topic, once."""

    def bodies() -> list[bytes]:
        with PatientConnection(address) as connection:
            records = [pull_all(connection, LATER, queue_id) for queue_id in range(2)]
        pulled = [record for queue in records for record in queue.values()]
        return sorted(decode_record(record)[0].body for record in pulled)

    wait_until(
        lambda: bodies() == sorted(seen.later),
        what="the delivery of delayed messages",
    )


def tables_on_disk(data: Path, seen: Seen) -> bool:
    """The group's offsets and those of delivered messages are written: a crash keeps them."""
    config = data / "store" / "config"
    try:
        offsets = fastjson.loads((config / "consumerOffset.json").read_bytes())["offsetTable"]
        table = {
            (topic, queue_id): offsets[f"{topic}@{GROUP}"].get(str(queue_id))
            or offsets[f"{topic}@{GROUP}"].get(queue_id)
            for topic, queue_id in seen.offsets
        }
        delivered = 0
        if seen.later:
            delays = fastjson.loads((config / "delayOffset.json").read_bytes())["offsetTable"]
            delivered = sum(map(int, delays.values()))
    except (OSError, ValueError, KeyError):
        return False
    return table == seen.offsets and delivered == len(seen.later)


def assert_waiting(data: Path, seen: Seen) -> None:
    """The store has the last delayed messages, and nobody delivered them yet."""
    places = StorePlaces.find(str(data / "store"), StoreOptions.of_settings(data / "broker.conf"))
    wanted = seen.later[-DELAYED:]
    found = select_records(places, Selection(), Findings())
    assert [each.topic for each in found if each.body in wanted] == [SCHEDULE_TOPIC] * DELAYED


def assert_clean(data: Path) -> None:
    """``kerolox store check`` finds nothing."""
    options = StoreOptions.of_settings(data / "broker.conf")
    report = check_store(StorePlaces.find(str(data / "store"), options))
    assert report.findings.kept == [], json.dumps([str(each) for each in report.findings.kept])
    assert report.records > PLAIN


def _send(
    connection: PatientConnection,
    topic: str,
    queue_id: int,
    body: bytes,
    properties: dict[str, str],
    *,
    sys_flag: int = 0,
    flag: int = 0,
    batch: bool = False,
) -> None:
    given = {name: value for name, value in properties.items() if value}
    fields = {
        "a": "both-producer",
        "b": topic,
        "c": "TBW102",
        "d": TOPICS.get(topic, 2),
        "e": queue_id,
        "f": sys_flag,
        "g": int(time.time() * 1_000),
        "h": flag,
        "i": encode_properties(given | {"WAIT": "true"}),
        "j": 0,
        "k": False,
        "m": batch,
    }
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    answer = connection.invoke(RemotingCommand.request(code, fields, body=body))
    assert answer.code == ResponseCode.SUCCESS, (topic, answer.code, answer.remark)


def _commit(connection: PatientConnection, topic: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    asked = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert connection.invoke(asked).code == ResponseCode.SUCCESS
