"""kill -9 under load, then a restart: what was acknowledged is there, dense, found by its key.

``KEROLOX_KILL_ROUNDS`` says how many times each; three are the rule.
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.errors import RemotingError
from kerolox.message import MessageId, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "Crash"
QUEUES = 4
ROUNDS = int(os.environ.get("KEROLOX_KILL_ROUNDS", "3"))
WINDOW = 32


class Acknowledged(NamedTuple):
    """What the broker promised about one message."""

    body: bytes
    key: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class Load(threading.Thread):
    """Keeps a window of sends open on one connection until the broker dies under it."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.prefix = name
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[str] = []

    def run(self) -> None:
        open_sends: dict[int, tuple[bytes, str]] = {}
        number = 0
        try:
            with PatientConnection(self.address) as connection:
                while True:
                    while len(open_sends) < WINDOW:
                        key, size = f"{self.prefix}-{number}", (number * 37) % 700 + 1
                        body = f"{key}|".encode() + b"x" * size
                        command = send_command(body, key, queue_id=number % QUEUES)
                        open_sends[connection.send(command)] = (body, key)
                        number += 1
                    self._take(connection.receive(SECONDS_MAX), open_sends)
        except RemotingError:
            pass

    def _take(self, response: RemotingCommand, open_sends: dict[int, tuple[bytes, str]]) -> None:
        body, key = open_sends.pop(response.opaque)
        if response.code != ResponseCode.SUCCESS:
            self.refused.append(f"{response.code} {response.remark}")
            return
        fields = response.ext_fields
        self.acknowledged.append(
            Acknowledged(
                body,
                key,
                int(fields["queueId"]),
                int(fields["queueOffset"]),
                MessageId.parse(fields["msgId"]).physical_offset,
            )
        )


def send_command(body: bytes, key: str, *, queue_id: int) -> RemotingCommand:
    properties = encode_properties({"KEYS": key, "UNIQ_KEY": key.upper(), "WAIT": "true"})
    header = {
        "a": "crash-producer",
        "b": TOPIC,
        "c": "TBW102",
        "d": QUEUES,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": properties,
        "j": 0,
        "k": False,
        "m": False,
    }
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body=body)


def read_queue(connection: PatientConnection, queue_id: int) -> dict[int, tuple[bytes, int]]:
    """Every message of a queue: queue offset to (body, physical offset)."""
    found: dict[int, tuple[bytes, int]] = {}
    offset = 0
    while True:
        header = {
            "consumerGroup": "crash-check",
            "topic": TOPIC,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        response = connection.invoke(RemotingCommand.request(RequestCode.PULL_MESSAGE, header))
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert response.code == ResponseCode.SUCCESS, response.remark
        for message in decode_records(response.body):
            found[message.queue_offset] = (message.body, message.commit_log_offset)
        offset = int(response.ext_fields["nextBeginOffset"])


def query_key(connection: PatientConnection, key: str) -> list[bytes]:
    header = {
        "topic": TOPIC,
        "key": key,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": 2**62,
    }
    response = connection.invoke(RemotingCommand.request(RequestCode.QUERY_MESSAGE, header))
    return [message.body for message in decode_records(response.body)]


def verify(address: str, acknowledged: list[Acknowledged]) -> None:
    with PatientConnection(address) as connection:
        queues = {queue_id: read_queue(connection, queue_id) for queue_id in range(QUEUES)}
        for queue_id, messages in queues.items():
            assert sorted(messages) == list(range(len(messages))), f"queue {queue_id} has gaps"
        lost = [
            promise
            for promise in acknowledged
            if queues[promise.queue_id].get(promise.queue_offset)
            != (promise.body, promise.physical_offset)
        ]
        assert not lost, f"{len(lost)} of {len(acknowledged)} lost, first {lost[0]}"
        sample = acknowledged[-100:] + random.Random(7).sample(acknowledged, 100)
        unfound = [p.key for p in sample if query_key(connection, p.key) != [p.body]]
        unfound += [p.key for p in sample[:50] if query_key(connection, p.key.upper()) != [p.body]]
        assert not unfound, f"{len(unfound)} keys are not found once, first {unfound[0]}"


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_acknowledged_message_is_lost_by_kill_9(
    kernel: str, flush_disk_type: str, tmp_path: Path
) -> None:
    settings = {
        "flushDiskType": flush_disk_type,
        # small files, so that rolls happen under load
        "mappedFileSizeCommitLog": 4 << 20,
        "mappedFileSizeConsumeQueue": 2000 * 20,
        "maxHashSlotNum": 20_000,
        "maxIndexNum": 40_000,
        "defaultTopicQueueNums": QUEUES,
    }
    up = Up(tmp_path, settings=settings, kernel=kernel)
    acknowledged: list[Acknowledged] = []
    for round_number in range(ROUNDS):
        with_load = up.start()
        loads = [Load(with_load.broker, f"r{round_number}c{c}") for c in range(3)]
        for load in loads:
            load.start()
        wanted = 500 + 400 * round_number
        wait_until(
            lambda loads=loads, wanted=wanted: sum(len(x.acknowledged) for x in loads) >= wanted,
            what=f"{wanted} acknowledgements",
        )
        up.kill()
        for load in loads:
            load.join(timeout=SECONDS_MAX)
            assert not load.refused, load.refused[0]
            acknowledged += load.acknowledged
        with up:
            verify(up.broker, acknowledged)
