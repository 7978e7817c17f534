"""Light message queues and their offsets: where one broker stops the other goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from kerolox.message import encode_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from tests.support.clients.patient import PatientConnection
from tests.support.clients.requests import pull_fields
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
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}
TOPIC, QUEUES = "Light", ("%LMQ%a", "%LMQ%b")
LIGHT_GROUP, PLAIN_GROUP = "%LMQ%group", "plain"


class Client:
    def __init__(self, connection: PatientConnection) -> None:
        self._connection = connection

    def ask(self, code: int, fields: Mapping[str, object]) -> RemotingCommand:
        return self._connection.invoke(RemotingCommand.request(code, fields, body=b"x"))

    def send(self, name: str) -> None:
        text = {"INNER_MULTI_DISPATCH": ",".join(QUEUES), "UNIQ_KEY": name, "WAIT": "true"}
        values = ("P", TOPIC, "TBW102", 1, 0, 0, int(time.time() * 1_000), 0)
        fields: dict[str, object] = dict(zip("abcdefgh", values, strict=True))
        more = {"i": encode_properties(text), "j": 0, "k": False, "m": False}
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, fields | more)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def names(self, topic: str) -> list[str]:
        wanted = pull_fields(
            consumerGroup=LIGHT_GROUP, topic=topic, sysFlag=int(PullSysFlag.SUBSCRIPTION)
        )
        answer = self.ask(RequestCode.PULL_MESSAGE, wanted)
        return [message.unique_key for message in decode_records(answer.body)]

    def commit(self, offset: int) -> None:
        for group, topic in ((LIGHT_GROUP, QUEUES[0]), (PLAIN_GROUP, TOPIC)):
            fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0}
            self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": offset})

    def offsets(self) -> list[str]:
        asked = ((LIGHT_GROUP, QUEUES[0], 0), (LIGHT_GROUP, QUEUES[0], 9), (PLAIN_GROUP, TOPIC, 0))
        found = []
        for group, topic, queue_id in asked:
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            found.append(answer.ext_fields["offset"])
        return found

    def table(self) -> object:
        return fastjson.loads(self.ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {}).body)


def write_and_read(address: str, known: list[str], name: str) -> list[str]:
    """What was there is there; one message more, and offsets that tell of it."""
    with PatientConnection(address) as connection:
        return scenario(Client(connection), known, name)


def scenario(client: Client, known: list[str], name: str) -> list[str]:
    if known:
        assert client.offsets() == [str(len(known))] * 3
    client.send(name)
    names = [*known, name]
    for queue in QUEUES:
        wait_until(lambda queue=queue: len(client.names(queue)) == len(names), what="dispatch")
        assert client.names(queue) == names
    client.commit(len(names))
    assert client.table() == {
        "lmqOffsetTable": {f"{QUEUES[0]}@{LIGHT_GROUP}": len(names)},
        "offsetTable": {f"{TOPIC}@{PLAIN_GROUP}": {0: len(names)}},
    }
    return names


def test_light_queues_and_their_offsets_go_from_broker_to_broker(tmp_path: Path) -> None:
    kernel = KERNELS[-1]
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        names = write_and_read(up.broker, [], "one")
    lines = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    with JavaPeer(tmp_path, settings=lines, with_namesrv=False) as java:
        names = write_and_read(f"127.0.0.1:{java.port}", names, "two")
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        assert write_and_read(up.broker, names, "three") == ["one", "two", "three"]
