"""Receives and acknowledgements by gRPC in the kernel: the bytes that Python would answer."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.grpc.checks import SYSTEM_PROPERTIES
from kerolox.broker.grpc.records import message_of
from kerolox.clock import now_ms
from kerolox.kernel.http2 import Http2Error
from kerolox.message import ITEM_END, NAME_END
from kerolox.protocol.codes import BORN_HOST_V6, MessageSysFlag
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.pop import PopReceipt
from kerolox.protocol.pop_names import TopicKind
from kerolox.protocol.records import decode_records
from kerolox.remoting.grpc.wire import OK_TRAILERS, MessageReader, with_prefix
from kerolox.remoting.http2.frames import (
    DEFAULT_WINDOW,
    PREFACE,
    WINDOW_MAX,
    Setting,
    settings_frame,
    window_update,
)
from tests.kernel.test_calls import Client, call
from tests.support.kernels import KERNELS, MODULES
from tests.support.stores.bench import Bench

pytestmark = pytest.mark.skipif("native" not in KERNELS, reason="the native kernel does it")

BROKER, SECONDS, COUNT = "broker-x", 60, 32
BEGIN = (
    PREFACE
    + settings_frame([(Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX)])
    + window_update(0, WINDOW_MAX - DEFAULT_WINDOW)
)
NAMES = [*sorted(SYSTEM_PROPERTIES), "a", "b", "zone", "Ärger", "😀"]
VALUES = ["x", "1", "true", "TRUE", "1700000000123", "a b  c", " \u2003k\x1cl\u0085", "ä😀", "0"]
ODD_FLAGS = (0, 0, 0, int(MessageSysFlag.COMPRESSED), BORN_HOST_V6)


ODD_TAGS = "ä", "a b", "a|b", "a||", "|| a", "a||*", "a\t", "a" * 1_025


def opened(path: Path) -> Bench:
    bench = Bench(importlib.import_module(MODULES["native"]), path)
    bench.open(now=None)
    return bench


def lend(bench: Bench, queue_ids: Sequence[int] = range(4), *, broker: str = BROKER) -> None:
    steady = time.monotonic_ns() // 1_000_000
    for queue_id in queue_ids:
        assert bench.store.lend_pops(
            "G", "T", queue_id, 0, 0, 4_096, 0, steady, (0, 0), 20, broker, []
        )


def take_back(bench: Bench) -> None:
    for queue_id in range(4):
        assert bench.store.lent_pops("G", "T", queue_id, True)


def receive(**changes: Any) -> Any:
    request = pb.ReceiveMessageRequest(batch_size=COUNT)
    request.group.name = "G"
    request.message_queue.topic.name = "T"
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = SECONDS
    request.MergeFrom(pb.ReceiveMessageRequest(**changes))
    return request


def asked(client: Client, stream_id: int, request: Any) -> bytes:
    """What a call is answered; nothing: it is for Python."""
    name = type(request).DESCRIPTOR.name.removesuffix("Request")
    data = with_prefix(request.SerializeToString())
    client.feed((BEGIN if stream_id == 1 else b"") + call(stream_id, data, name))
    return client.data_of(stream_id)


def received(data: bytes) -> list[bytes]:
    """The messages of an answer, as bytes; its status and its time are checked."""
    parts = MessageReader(1 << 26).feed(data)
    first, last = map(pb.ReceiveMessageResponse.FromString, (parts[0], parts[-1]))
    assert first.status == pb.Status(code=pb.OK, message="OK")
    assert abs(last.delivery_timestamp.ToMilliseconds() - now_ms()) < 60_000
    return parts[1:-1]


def handle(data: bytes) -> Any:
    return pb.ReceiveMessageResponse.FromString(data).message.system_properties


def acks(messages: Sequence[bytes], **changes: str) -> Any:
    request = pb.AckMessageRequest(group=pb.Resource(name="G"), topic=pb.Resource(name="T"))
    for each in map(handle, messages):
        entry = request.entries.add(message_id=each.message_id)
        entry.receipt_handle = each.receipt_handle
        for old, new in changes.items():
            entry.receipt_handle = entry.receipt_handle.replace(f" {old} ", f" {new} ", 1)
    return request


def properties_text(dice: random.Random) -> str:
    items = [dice.choice(NAMES) + NAME_END + dice.choice(VALUES) for _ in range(dice.randrange(9))]
    items += dice.sample(("", "broken", f"{NAME_END}empty", f"empty{NAME_END}"), 2)
    return ITEM_END.join(items)


def test_messages_are_told_to_the_byte_as_python_tells_them(tmp_path: Path) -> None:
    dice = random.Random(11)
    bench = opened(tmp_path)
    try:
        for number in range(900):
            bench.append(
                dice.randbytes(dice.choice((0, 1, 55, 56, 64, 300, 20_000 * (number % 90 == 0)))),
                properties_text(dice),
                reconsume_times=dice.randrange(4),
                born_timestamp=dice.choice((0, 999, 1_000, 1_700_000_000_001)),
            )
        lend(bench)
        client, told = Client(bench), 0
        for stream_id in range(1, 61, 2):
            for data in received(
                asked(client, stream_id, receive(batch_size=dice.randrange(1, 40)))
            ):
                system = handle(data)
                receipt = PopReceipt.parse(system.receipt_handle)
                assert receipt.text == system.receipt_handle
                assert receipt.kind is TopicKind.NORMAL
                assert (receipt.broker_name, receipt.invisible_time) == (BROKER, 1_000 * SECONDS)
                assert receipt.queue_offset == told >= receipt.start_offset
                stored = bench.store.read("T", 0, told, 1, None)[6]
                [record] = decode_records(stored, inflate=False)
                wanted = message_of(record, "T", receipt.text)
                response = pb.ReceiveMessageResponse(message=wanted)
                assert data == response.SerializeToString(deterministic=True)
                told += 1
        assert told > 300
    finally:
        bench.store.close()


def test_messages_with_tags_are_found_whatever_lies_between_them(tmp_path: Path) -> None:
    """Also where many windows have none, and where a message only names a tag in a property."""
    bench = opened(tmp_path)
    try:
        tags = {number: "a" for number in (0, 1, 31, 32, 63, 200, 201, 499)} | {2: "A", 3: "aa"}
        for number in range(500):
            tag = tags.get(number, "b")
            bench.append(b"body", f"x{NAME_END}a{ITEM_END}TAGS{NAME_END}{tag}{ITEM_END}")
        lend(bench)
        client, told = Client(bench), list[int]()
        for stream_id, count in ((1, 3), (3, 1), (5, 32)):
            request = receive(batch_size=count)
            request.filter_expression.expression = "a || c"
            found = [
                PopReceipt.parse(handle(each).receipt_handle)
                for each in received(asked(client, stream_id, request))
            ]
            told += [each.queue_offset for each in found]
            assert all(each.start_offset <= each.queue_offset for each in found)
        assert told == sorted(number for number, tag in tags.items() if tag == "a")
        assert bench.store.stats()["get_count"] == len(told)
        assert ("G", "T", 0, 8) in bench.store.lent_counts()
        request = receive()
        request.filter_expression.expression = "b"
        assert asked(client, 7, request) == b"", "all was looked through"
    finally:
        bench.store.close()


def test_records_that_python_has_to_inflate_are_left_to_it(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    try:
        for changes in (
            {"sys_flag": int(MessageSysFlag.COMPRESSED)},
            {"born_host": bytes(20)},
            {"properties": b"a\x01\xff"},
            {"born_timestamp": -1},
        ):
            bench.append(b"usual")
            bench.append(b"odd", **changes)
        lend(bench)
        client = Client(bench)
        assert asked(client, 1, receive()) == b""
        [usual] = received(asked(client, 3, receive(batch_size=1)))
        assert pb.ReceiveMessageResponse.FromString(usual).message.body == b"usual"
        assert asked(client, 5, receive(batch_size=1)) == b""
        committed, following, _, leases = bench.store.lent_pops("G", "T", 0, True)
        assert (committed, following, [each[:2] for each in leases]) == (0, 1, [(0, 1)])
    finally:
        bench.store.close()


def test_acknowledged_messages_are_done_and_named_in_the_answer(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    try:
        for number in range(20):
            bench.append(b"body", queue_id=number % 2)
        lend(bench)
        client = Client(bench)
        messages = received(asked(client, 1, receive()))
        request = acks([*messages, messages[0]])
        request.entries[3].message_id = ""
        [data] = MessageReader(1 << 20).feed(asked(client, 3, request))
        answer = pb.AckMessageResponse.FromString(data)
        assert data == answer.SerializeToString()
        status = pb.Status(code=pb.OK, message="OK")
        assert answer.status == status
        assert [(each.message_id, each.receipt_handle) for each in answer.entries] == [
            (each.message_id, each.receipt_handle) for each in request.entries
        ]
        assert all(each.status == status for each in answer.entries)
        assert sorted(bench.store.drain_commits()) == [("G", "T", 0, 10), ("G", "T", 1, 10)]
        assert asked(client, 5, request) == b"", "they are done"
    finally:
        bench.store.close()


def test_one_entry_that_is_not_usual_leaves_all_to_python(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    try:
        for _ in range(8):
            bench.append(b"body")
        lend(bench)
        client = Client(bench)
        messages = received(asked(client, 1, receive()))
        stream_id = 3
        for changes in ({BROKER: "other"}, {"60000": "0"}, {"0 0": "0 1"}, {"0 0": "999 0"}):
            request = acks(messages[:7])
            request.entries.append(acks(messages[7:], **changes).entries[0])
            assert asked(client, stream_id, request) == b"", changes
            stream_id += 2
        for text in ("", "a", "1 2 3 0 0 broker-x 0 7", "ä 2 3 0 0 broker-x 0 7 9"):
            request = acks(messages[:7])
            request.entries.add(receipt_handle=text)
            assert asked(client, stream_id, request) == b"", text
            stream_id += 2
        assert ("G", "T", 0, 8) in bench.store.lent_counts()
        assert asked(client, stream_id, acks(messages)) != b""
    finally:
        bench.store.close()


def test_receives_that_are_not_usual_are_handed_on(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    try:
        bench.append(b"body")
        client, stream_id = Client(bench), 1
        odd = [receive() for _ in range(8 + len(ODD_TAGS))]
        odd[0].group.resource_namespace = "n"
        odd[1].message_queue.broker.name = "other"
        odd[2].filter_expression.type = 7
        odd[3].filter_expression.type = pb.SQL
        odd[4].invisible_duration.seconds = 9
        odd[5].invisible_duration.seconds = 43_201
        odd[6].group.name = "Nobody"
        odd[7].message_queue.topic.name = "Nothing"
        for request, expression in zip(odd[8:], ODD_TAGS, strict=True):
            request.filter_expression.expression = expression
        asked(client, stream_id, receive())
        assert list(client.handed_on()) == [1], "nothing is lent"
        lend(bench, broker="")
        asked(client, stream_id := stream_id + 2, receive())
        take_back(bench)
        lend(bench)
        for request in odd:
            asked(client, stream_id := stream_id + 2, request)
        bench.store.set_accounts([])
        asked(client, stream_id := stream_id + 2, receive())
        bench.store.set_accounts(None)
        bench.store.set_group("G", False, 1)
        asked(client, stream_id := stream_id + 2, receive())
        bench.store.set_group("G", True, 1)
        assert len(client.handed_on()) == 12 + len(ODD_TAGS)
        assert client.output.count(OK_TRAILERS) == 0
        usual = receive(attempt_id="x", auto_renew=True)
        usual.message_queue.broker.name = BROKER
        usual.message_queue.broker.endpoints.addresses.add(host="h", port=1)
        usual.message_queue.accept_message_types.extend((pb.NORMAL, pb.FIFO))
        [data] = received(asked(client, stream_id + 2, usual))
        assert PopReceipt.parse(handle(data).receipt_handle).invisible_time == 60_000
    finally:
        bench.store.close()


@pytest.mark.parametrize("name", ["ReceiveMessage", "AckMessage"])
def test_requests_that_are_torn_or_lie_do_what_python_reads_in_them(
    tmp_path: Path, name: str
) -> None:
    bench, dice = opened(tmp_path), random.Random(5)
    kind = getattr(pb, f"{name}Request")
    try:
        for _ in range(2_000):
            bench.append(b"body")
        lend(bench)
        messages: list[bytes] = []
        for _ in range(600):
            client = Client(bench)
            if not messages:
                messages = received(asked(client, 1, receive(batch_size=3)))
                client = Client(bench)
            usual = receive() if name == "ReceiveMessage" else acks(messages[:2])
            usual.group.name = "G"
            data = bytearray(with_prefix(usual.SerializeToString()))
            for _ in range(dice.randrange(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.2:
                del data[dice.randrange(len(data)) :]
            try:
                client.feed(BEGIN + call(1, bytes(data), name))
            except Http2Error:
                raise AssertionError("a body broke its connection") from None
            answered = client.output.count(OK_TRAILERS)
            assert answered + len(client.handed_on()) == 1
            if answered:
                request = kind.FromString(bytes(data[5:]))
                assert request.group.name == "G"
                if name == "AckMessage":
                    assert request.topic.name == "T"
                    done = {each.receipt_handle for each in request.entries}
                    messages = [
                        each for each in messages if handle(each).receipt_handle not in done
                    ]
                else:
                    assert request.message_queue.topic.name == "T"
                    take_back(bench)
                    lend(bench)
    finally:
        bench.store.close()


def test_what_the_broker_renews_is_known_by_its_client(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    try:
        for _ in range(10):
            bench.append(b"body")
        lend(bench)
        client, store = Client(bench), bench.store
        received(asked(client, 1, receive(batch_size=2)))
        assert store.lent_changes()[2] == 0
        messages = received(asked(client, 3, receive(batch_size=5, auto_renew=True)))
        assert store.lent_changes()[2] == 5
        asked(client, 5, acks(messages[:2]))
        assert store.lent_changes()[2] == 3
        soon = time.monotonic_ns() // 1_000_000 + 70_000
        assert store.lent_renewed("me", soon) == store.lent_renewed(None, soon) == [("G", "T", 0)]
        assert store.lent_renewed("you", soon) == store.lent_renewed("me", soon - 20_000) == []
        leases = store.lent_pops("G", "T", 0, True)[3]
        assert [each[-2:] for each in leases] == [("me", False), ("me", True)]
    finally:
        bench.store.close()
