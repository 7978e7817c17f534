"""One store, two brokers in turn that write through a transient pool and are killed: the other one
serves what was committed, and begins where that ends.

What waits in a pool when its broker is killed is lost, though it was acknowledged and its queue
entries may be there; so it is with RocketMQ's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_record
from tests.store_compat.scenario import (
    BATCHES,
    PLAIN,
    Seen,
    assert_clean,
    assert_keys,
    assert_places,
    look,
    tell,
)
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = {
    "transientStorePoolEnable": "true",
    # Java writes into a file that is there already without its pool: the log has to go on in
    # others.
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 30,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 400,
    "brokerName": "broker-a",
    "maxMessageSize": 16_384,
}
CHAPTER = PLAIN + sum(range(1, BATCHES + 1))
"""Messages that a chapter of the scenario has."""
LAST = 20
LAST_QUEUE = ("Both-plain", 1)


def total(seen: Seen) -> int:
    return sum(map(len, seen.records.values()))


def tell_committed(address: str, chapter: str, seen: Seen) -> Seen:
    """Tell a chapter and wait until all of it is committed, hence can be read; what is there."""
    before = total(seen)
    tell(address, chapter, seen)
    wait_until(lambda: total(look(address, seen)) >= before + CHAPTER, what="the commit")
    return look(address, seen)


def send_last(address: str) -> None:
    """Messages that are lost, or not, when the broker is killed now."""
    with PatientConnection(address) as connection:
        for number in range(LAST):
            fields = {"a": "last", "b": LAST_QUEUE[0], "c": "TBW102", "d": 4, "e": LAST_QUEUE[1]}
            fields |= {"f": 0, "g": 1, "h": 0, "i": encode_properties({"TAGS": "last"})}
            fields |= {"j": 0, "k": False, "m": False}
            body = b"last %d" % number
            asked = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=body)
            assert connection.invoke(asked).code == 0


def look_again(address: str, seen: Seen) -> Seen:
    """What is there: all that was seen, and of the last messages the first ones, perhaps none."""
    found = look(address, seen)
    for queue, records in seen.records.items():
        more = dict(found.records[queue])
        assert {offset: more.pop(offset, None) for offset in records} == records, queue
        begin = len(records)
        bodies = [decode_record(data)[0].body for _offset, data in sorted(more.items())]
        assert sorted(more) == list(range(begin, begin + len(bodies))), queue
        assert bodies == [b"last %d" % number for number in range(len(bodies))], queue
        assert queue == LAST_QUEUE or not bodies
    return found


def test_what_was_committed_survives_a_kill_and_the_other_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seen = Seen()
    for number, name in enumerate(KERNELS):
        up = Up(data, settings=SETTINGS, kernel=name).start()
        seen = tell_committed(up.broker, f"ours{number}", look_again(up.broker, seen))
        send_last(up.broker)
        up.kill()

    lines = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    with JavaPeer(data, settings=lines, with_namesrv=False) as java:
        address = f"127.0.0.1:{java.port}"
        seen = look_again(address, seen)
        assert_places(address, seen, by_files_of=data)
        seen = tell_committed(address, "java", seen)
        send_last(address)
        java.kill()
    assert_clean(data)

    for number, name in enumerate(KERNELS):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(data, copy)
        with Up(copy, settings=SETTINGS, kernel=name) as again:
            seen_again = look_again(again.broker, seen)
            assert_places(again.broker, seen_again)
            seen_again = tell_committed(again.broker, "again", seen_again)
            assert_keys(again.broker, seen_again)
        assert_clean(copy)
