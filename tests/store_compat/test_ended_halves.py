"""A Java broker takes halves that ours ended in bulk for ended ones: it asks about others alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.half_messages import HalfSelection, end_half_messages_request
from kerolox.protocol.records import decode_record, encode_batch
from tests.support.clients.peer import Peer, peer_at
from tests.support.clients.requests import send_fields
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.asyncio, pytest.mark.timeout(600)]

GROUP = "sinks"
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 64 << 20,
    "transactionCheckInterval": 500,
    "transactionTimeOut": 500,
    "flushConsumerOffsetInterval": 500,
}


async def write_and_end(peer: Peer) -> None:
    """Three halves of each attempt; the first is committed, the second rolled back."""
    await peer.create_topic("T", queues=1)
    for attempt in ("q/1/0/0", "q/1/0/1", "q/1/0/2"):
        text = encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "KEROLOX_SINK": attempt})
        items = [
            (0, f"{attempt} {n}".encode(), f"UNIQ_KEY\x01{attempt} {n}".encode()) for n in range(3)
        ]
        born = time.time_ns() // 1_000_000
        fields = send_fields(b="T", e=0, i=text, f=4, m="true", g=born)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    for attempt, commit in (("q/1/0/0", True), ("q/1/0/1", False)):
        selection = HalfSelection(attempts=[attempt])
        request = end_half_messages_request(GROUP, 0, 9, selection, commit=commit)
        answer = await peer.ask(request.code, request.ext_fields, request.body)
        assert answer.ext_fields["ended"] == "3", answer.remark


async def test_java_asks_about_no_half_that_ours_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # As quick as it is, the check of ours would store open halves again.
    ours = {**SETTINGS, "transactionCheckInterval": 600_000}
    with Up(data, settings=ours, kernel=KERNELS[-1]) as up:
        async with peer_at(up.broker) as peer:
            await write_and_end(peer)
    lines = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    with JavaPeer(data, settings=lines, with_namesrv=False) as java:
        async with peer_at(f"127.0.0.1:{java.port}") as peer:
            await peer.heartbeat("c1", "", producers=[GROUP])
            asked: set[bytes] = set()

            def note() -> set[bytes]:
                code = RequestCode.CHECK_TRANSACTION_STATE
                questions = [each for each in peer.notices if each.code == code]
                asked.update(decode_record(each.body)[0].body for each in questions)
                return asked

            await until(lambda: len(note()) >= 3)
            # Java asks in the order of the halves; a round later it has asked about all.
            count = len(peer.notices)
            await until(lambda: len(peer.notices) >= count + 3)
            assert note() == {b"q/1/0/2 0", b"q/1/0/2 1", b"q/1/0/2 2"}
            found = [message.body for message in await peer.messages("T")]
            assert found == [b"q/1/0/0 0", b"q/1/0/0 1", b"q/1/0/0 2"]
