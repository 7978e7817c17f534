"""Units beside the queue entries and their bit maps: what the one broker wrote the other uses."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from kerolox.inspect.check import check_store
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.message import encode_properties, java_hash
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 20 * 30,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": 1_000,
}
TOPIC = "Extended"
CHAPTER = 60
"""Messages: more than two files of units."""
GROUPS = {"low": "n < 7", "high": "n > 40 and color = 'red'"}
VERSION = 7
ENTRY, UNIT = struct.Struct(">qiq"), struct.Struct(">hqqh")
FIRST_ADDRESS = -(1 << 63)
MAP_BYTES = 14


def color(number: int) -> str:
    return ("red", "green", "blue")[number % 3]


def ask(connection: PatientConnection, code: int, fields: object, body: bytes = b"") -> bytes:
    asked = RemotingCommand.request(code, fields, body=body)  # type: ignore[arg-type]
    answer = connection.invoke(asked)
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return answer.body


def subscribe(connection: PatientConnection, group: str) -> None:
    subscription = {
        "topic": TOPIC,
        "subString": GROUPS[group],
        "expressionType": "SQL92",
        "subVersion": VERSION,
        "codeSet": [],
        "tagsSet": [],
        "classFilterMode": False,
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_ACTIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": f"{group}@1", "consumerDataSet": [consumer], "producerDataSet": []}
    ask(connection, RequestCode.HEART_BEAT, {}, encode_body(body))


def send(connection: PatientConnection, chapter: str, number: int) -> None:
    properties = {"n": str(number), "color": color(number), "TAGS": color(number)}
    text = encode_properties({**properties, "UNIQ_KEY": f"{chapter}{number}", "WAIT": "true"})
    values = ("P", TOPIC, "TBW102", 1, 0, 0, int(time.time() * 1_000), 0, text, 0)
    fields: dict[str, object] = dict(zip("abcdefghij", values, strict=True))
    body = f"{chapter} {number}".encode()
    ask(connection, RequestCode.SEND_MESSAGE_V2, fields | {"k": False, "m": False}, body)


def pulled(connection: PatientConnection, group: str, tags: str | None = None) -> list[str]:
    """The bodies of all messages that a group gets: by its expression, or by tags."""
    found: list[str] = []
    offset = 0
    while True:
        fields = {
            "consumerGroup": group,
            "topic": TOPIC,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullSysFlag.SUBSCRIPTION) if tags else 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": tags,
            "subVersion": VERSION,
            "expressionType": "TAG" if tags else "SQL92",
        }
        asked = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
        answer = connection.invoke(asked)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        codes = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        assert answer.code in codes, (answer.code, answer.remark)
        found += [message.body.decode() for message in decode_records(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])


def tell(address: str, chapter: str) -> None:
    """Register the groups, then send a chapter."""
    with PatientConnection(address) as connection:
        for group in GROUPS:
            subscribe(connection, group)
        # What is stored in the millisecond of a filter's birth is not told by its bits.
        time_ms = time.time_ns() // 1_000_000
        wait_until(lambda: time.time_ns() // 1_000_000 > time_ms)
        for number in range(CHAPTER):
            send(connection, chapter, number)


def assert_served(address: str, chapters: list[str]) -> None:
    """Each group gets what it wants, and tags find what has them."""
    rules = {
        "low": lambda number: number < 7,
        "high": lambda number: number > 40 and color(number) == "red",
    }
    with PatientConnection(address) as connection:
        for group, rule in rules.items():
            subscribe(connection, group)
            wanted = [f"{name} {n}" for name in chapters for n in range(CHAPTER) if rule(n)]
            assert pulled(connection, group) == wanted
        blue = [f"{name} {n}" for name in chapters for n in range(CHAPTER) if color(n) == "blue"]
        assert pulled(connection, "low", "blue") == blue


def units(data: Path) -> list[tuple[int, bytes]]:
    """(tags code, bit map) of each entry's unit, as the files have them."""
    store = data / "store"
    entries = b"".join(
        file.read_bytes() for file in sorted((store / "consumequeue" / TOPIC / "0").iterdir())
    )
    files = sorted((store / "consumequeue_ext" / TOPIC / "0").iterdir())
    assert [int(file.name) for file in files] == [1_000 * at for at in range(len(files))]
    data_of_units = b"".join(file.read_bytes() for file in files)
    found = []
    for _offset, size, address in ENTRY.iter_unpack(entries):
        if size:
            at = address - FIRST_ADDRESS
            _size, code, _time, map_size = UNIT.unpack_from(data_of_units, at)
            at += UNIT.size
            found.append((code, data_of_units[at : at + map_size]))
    return found


def assert_units(data: Path, chapters: int) -> None:
    """Every message has its unit, and the maps of all chapters are the same."""
    found = units(data)
    assert [code for code, _ in found] == [
        java_hash(color(number)) for _ in range(chapters) for number in range(CHAPTER)
    ]
    assert {len(each) for _, each in found} == {MAP_BYTES}
    assert found == found[:CHAPTER] * chapters
    options = StoreOptions.of_settings(data / "broker.conf")
    report = check_store(StorePlaces.find(str(data / "store"), options))
    assert report.findings.kept == []


@pytest.mark.parametrize(("kernel", "ends"), [("native", "stop"), ("python", "kill")])
def test_units_and_maps_are_the_same_and_used_by_both(
    kernel: str, ends: str, tmp_path: Path
) -> None:
    if kernel not in KERNELS:
        kernel = "python"
    data = tmp_path / "data"
    up = Up(data, settings=SETTINGS, kernel=kernel).start()
    tell(up.broker, "first")
    assert_served(up.broker, ["first"])
    up.kill() if ends == "kill" else up.stop()
    assert_units(data, 1)

    lines = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    with JavaPeer(data, settings=lines, with_namesrv=False) as java:
        address = f"127.0.0.1:{java.port}"
        assert_served(address, ["first"])
        tell(address, "second")
        wait_until(lambda: len(units(data)) == 2 * CHAPTER, what="Java's dispatch")
        assert_served(address, ["first", "second"])
        if ends == "kill":
            java.kill()
    assert_units(data, 2)

    with Up(data, settings=SETTINGS, kernel=kernel) as again:
        assert_served(again.broker, ["first", "second"])
        tell(again.broker, "third")
        assert_served(again.broker, ["first", "second", "third"])
    assert_units(data, 3)
