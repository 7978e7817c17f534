"""What a hot send stores and answers."""

from __future__ import annotations

import contextlib
import zlib

import pytest

from kerolox.message import pack_host, tags_code
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.records import decode_record, decode_records
from tests.support.stores.bench import (
    NOW,
    Bench,
    commands,
    frame,
    messages,
    properties,
    pull,
    send,
    send_batch,
    send_v1,
    stored,
)

HOST_HEX = "0A141E2800002A9F"


def test_the_answer_to_json_is_this_text(bench: Bench) -> None:
    answers, _, flags, _ = bench.connect().feed(send(opaque=77, e=3))
    header = (
        b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true",'
        b'"msgId":"0A141E2800002A9F0000000000000000","queueId":"3","queueOffset":"0"},"flag":1,'
        b'"language":"PYTHON","opaque":77,"serializeTypeCurrentRPC":"JSON","version":409}'
    )
    assert answers == frame(header)
    assert flags == 0


def test_the_answer_to_the_binary_encoding_is_these_bytes(bench: Bench) -> None:
    answers, _, _, _ = bench.connect().feed(send(opaque=-5, e=2, encoding=SerializeType.ROCKETMQ))

    def entry(name: bytes, value: bytes) -> bytes:
        return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value

    entries = (
        entry(b"MSG_REGION", b"DefaultRegion")
        + entry(b"TRACE_ON", b"true")
        + entry(b"msgId", b"0A141E2800002A9F0000000000000000")
        + entry(b"queueId", b"2")
        + entry(b"queueOffset", b"0")
    )
    fixed = bytes.fromhex("0000 03 0199 fffffffb 00000001 00000000")
    assert answers == frame(fixed + len(entries).to_bytes(4, "big") + entries, b"", 1)


def test_identity_reaches_answers_and_records(bench: Bench) -> None:
    bench.store.set_identity(
        cluster="ÄC",
        region='r"\\\n%d é',
        trace_on=False,
        store_host=pack_host("2001:db8::1", 10911),
        broker_id=3,
    )
    (answer,) = bench.connect().ask(send())
    assert answer.ext_fields["MSG_REGION"] == 'r"\\\n%d é'
    assert answer.ext_fields["TRACE_ON"] == "false"
    assert answer.ext_fields["msgId"] == "20010DB8000000000000000000000001" + "00002A9F" + "0" * 16
    (binary,) = bench.connect().ask(send(encoding=SerializeType.ROCKETMQ))
    assert binary.ext_fields["MSG_REGION"] == 'r"\\\n%d é'
    message, _ = decode_record(bench.store.lookup(0))
    assert message.properties["CLUSTER"] == "ÄC"
    assert message.store_host == ("2001:db8::1", 10911)
    assert message.sys_flag & 48 == 32


def test_a_record_holds_what_the_request_says(bench: Bench) -> None:
    text = properties(KEYS="k1 k2", UNIQ_KEY="U", TAGS="tag-ä", WAIT="true", user="😀")
    body = bytes(range(256))
    frame_bytes = send(body, e=1, f=1 | 16, g=NOW - 99, h=-7, i=text, j=2)
    (answer,) = bench.connect().ask(frame_bytes)
    record = bench.store.lookup(int(answer.ext_fields["msgId"][16:], 16))
    message, end = decode_record(record, inflate=False)
    assert end == len(record)
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 1, 0)
    assert (message.body, message.body_crc) == (body, zlib.crc32(body) & 0x7FFFFFFF)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (-7, 1, 2)
    assert (message.born_timestamp, message.store_timestamp) == (NOW - 99, NOW)
    assert message.born_host == ("10.20.30.41", 54321)
    assert message.store_host == ("10.20.30.40", 10911)
    assert message.prepared_transaction_offset == 0
    wanted = properties(KEYS="k1 k2", UNIQ_KEY="U", TAGS="tag-ä", user="😀")
    assert record.endswith(stored(wanted).encode())
    assert bench.store.queue_entry("T", 1, 0) == (0, len(record), tags_code("tag-ä"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("TAGS\x01t\x02", "TAGS\x01t"),
        ("WAIT\x01true", ""),
        ("WAIT\x01false\x02a\x01b", "a\x01b"),
        ("a\x01b\x02WAIT\x01true\x02c\x01d\x02", "a\x01b\x02c\x01d"),
        ("a\x01b\x02WAIT\x01x", "a\x01b"),
    ],
)
def test_the_property_text_is_kept_but_for_wait_and_the_cluster(
    bench: Bench, given: str, kept: str
) -> None:
    bench.connect().ask(send(i=given))
    record = bench.store.lookup(0)
    text = stored(kept).encode()
    assert record.endswith(len(text).to_bytes(2, "big") + text)


def test_an_ipv6_peer_is_stored_as_such(bench: Bench) -> None:
    bench.connect(pack_host("2001:db8::2", 40000)).ask(send(f=32))
    message, _ = decode_record(bench.store.lookup(0))
    assert message.born_host == ("2001:db8::2", 40000)
    assert message.sys_flag == 16


def test_the_long_names_store_the_same_record(bench: Bench) -> None:
    text = properties(TAGS="t")
    first, second = bench.connect().ask(
        send(opaque=1, i=text, j=2, h=5), send_v1(opaque=2, i=text, j=2, h=5)
    )
    one, _ = decode_record(bench.store.lookup(0))
    two, _ = decode_record(bench.store.lookup(one.store_size))
    assert (first.opaque, second.opaque) == (1, 2)
    assert second.ext_fields["queueOffset"] == "1"
    two.commit_log_offset, two.queue_offset = one.commit_log_offset, one.queue_offset
    assert one == two


def test_queue_offsets_count_per_queue_and_answers_keep_the_order(bench: Bench) -> None:
    wire = bench.connect()
    queues = [0, 1, 0, 3, 0, 1, 2, 3]
    answers = wire.ask(*(send(opaque=i, e=queue) for i, queue in enumerate(queues)))
    assert [answer.opaque for answer in answers] == list(range(8))
    offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers]
    assert offsets == [0, 0, 1, 0, 2, 1, 0, 1]
    assert [int(answer.ext_fields["queueId"]) for answer in answers] == queues
    assert [bench.store.queue_bounds("T", queue) for queue in range(4)] == [
        (0, 3),
        (0, 2),
        (0, 1),
        (0, 2),
    ]


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_oneway_sends_are_stored_and_not_answered(bench: Bench, encoding: SerializeType) -> None:
    answers, cold, _, _ = bench.connect().feed(
        send(b"1", oneway=True, encoding=encoding),
        send(b"2", opaque=2, encoding=encoding),
        send_batch([(0, b"3", b"")], oneway=True, encoding=encoding),
    )
    assert cold == []
    assert [answer.opaque for answer in commands(answers)] == [2]
    assert bench.bodies() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_a_batch_is_stored_message_by_message(bench: Bench, encoding: SerializeType) -> None:
    items = [
        (1, b"one", b""),
        (2, b"two", b"TAGS\x01a"),
        (3, b"three", b"TAGS\x01b\x02WAIT\x01false\x02"),
        (4, b"four", b"no separator"),
    ]
    wire = bench.connect()
    wire.ask(send(b"zero", e=2))
    (answer,) = wire.ask(send_batch(items, opaque=9, e=2, j=1, encoding=encoding))
    read = bench.store.read("T", 2, 1, 32, None)
    found = decode_records(read[6])
    ids = [f"{HOST_HEX}{message.commit_log_offset:016X}" for message in found]
    assert answer.ext_fields["msgId"] == ",".join(ids)
    assert (answer.opaque, answer.ext_fields["queueOffset"]) == (9, "1")
    assert [message.body for message in found] == [b"one", b"two", b"three", b"four"]
    assert [message.flag for message in found] == [1, 2, 3, 4]
    assert [message.queue_offset for message in found] == [1, 2, 3, 4]
    assert {message.reconsume_times for message in found} == {1}
    codes = [bench.store.queue_entry("T", 2, offset)[2] for offset in range(1, 5)]
    assert codes == [0, tags_code("a"), tags_code("b"), 0]
    texts = [bench.store.lookup(m.commit_log_offset).split(b"T", 1)[1] for m in found]
    cluster = b"CLUSTER\x01DefaultCluster"
    assert texts[0].endswith(b"\x00\x16" + cluster)
    assert texts[1].endswith(b"TAGS\x01a\x02" + cluster)
    assert texts[2].endswith(b"TAGS\x01b\x02WAIT\x01false\x02" + cluster)
    assert texts[3].endswith(b"no separator\x02" + cluster)


def test_the_properties_of_a_batch_go_to_each_message(bench: Bench) -> None:
    bench.connect().ask(
        send_batch([(0, b"1", b"a\x01b"), (0, b"2", b"")], i="WAIT\x01true\x02k\x01v")
    )
    tail = b"WAIT\x01true\x02k\x01v\x02CLUSTER\x01DefaultCluster"
    first, second = (bench.store.queue_entry("T", 0, offset) for offset in (0, 1))
    assert bench.store.lookup(first[0]).endswith(b"a\x01b\x02" + tail)
    assert bench.store.lookup(second[0]).endswith(len(tail).to_bytes(2, "big") + tail)


def test_a_batch_never_crosses_a_file(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*(send(bytes(1_000)) for _ in range(50)))
    (answer,) = wire.ask(send_batch([(0, bytes(4_000), b"")] * 4))
    offsets = [int(text[16:], 16) for text in answer.ext_fields["msgId"].split(",")]
    assert offsets[0] == 64 * 1024
    assert len(bench.bodies()) == 54


def test_a_chunk_may_cross_a_file(bench: Bench) -> None:
    answers = bench.connect().ask(*(send(bytes(900), opaque=i, e=i % 4) for i in range(200)))
    assert [answer.opaque for answer in answers] == list(range(200))
    offsets = [int(answer.ext_fields["msgId"][16:], 16) for answer in answers]
    assert offsets == sorted(offsets)
    assert bench.store.max_physical_offset > 3 * 64 * 1024
    for queue in range(4):
        assert len(bench.bodies(queue)) == 50


def test_store_timestamps_never_go_back(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send())
    bench.store.set_clock(NOW - 1_000)
    wire.ask(send())
    bench.store.set_clock(NOW + 5)
    wire.ask(send())
    times = [bench.store.store_time("T", 0, offset) for offset in range(3)]
    assert times == [NOW, NOW, NOW + 5]


def test_the_clock_thaws(bench: Bench) -> None:
    bench.store.set_clock(None)
    bench.connect().ask(send())
    assert bench.store.store_time("T", 0, 0) > NOW


def test_a_send_can_be_pulled_in_the_same_chunk(bench: Bench) -> None:
    wire = bench.connect()
    answers = wire.ask(send(b"1"), pull(opaque=2), send(b"3", opaque=3), pull(opaque=4))
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4]
    assert [message.body for message in messages(answers[1])] == [b"1"]
    assert [message.body for message in messages(answers[3])] == [b"1", b"3"]


def test_hot_sends_are_found_by_key(bench: Bench) -> None:
    text = properties(KEYS="order-1 order-2", UNIQ_KEY="U1")
    bench.connect().ask(send(b"1", i=text), send(b"2"))
    bench.wait_indexed()
    for key in ("order-1", "order-2", "U1"):
        _, _, records = bench.store.query_key("T", key, 32, 0, NOW + 1_000)
        assert [message.body for message in decode_records(records)] == [b"1"]


def test_counters_count_hot_sends(bench: Bench) -> None:
    bench.connect().ask(send(e=0), send(e=1), send_batch([(0, b"x", b"")] * 3))
    stats = bench.store.stats()
    assert stats["put_count"] == 5
    assert stats["put_bytes"] == bench.store.max_physical_offset
    assert bench.store.topic_stats() == [("T", 5, stats["put_bytes"])]


def test_any_number_of_names_tags_and_headers_is_taken(bench: Bench) -> None:
    wire = bench.connect()
    for start in range(0, 5_000, 500):
        frames = [
            send(opaque=n, h=n, e=n % 4, i=properties(**{f"name{n}": "v", "TAGS": f"tag{n}"}))
            for n in range(start, start + 500)
        ]
        assert len(wire.ask(*frames)) == 500
    assert bench.store.queue_entry("T", 3, 1_249)[2] == tags_code("tag4999")
    long = "x" * 3_000
    for _ in range(2):
        assert wire.ask(send(i=properties(**{long: "v", "TAGS": long})))[0].code == 0
    assert bench.store.queue_entry("T", 0, 1_250)[2] == tags_code(long)


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_a_long_region_makes_a_long_answer(bench: Bench, encoding: SerializeType) -> None:
    bench.store.set_identity(
        cluster="C", region="r" * 5_000, trace_on=True, store_host=bytes(8), broker_id=0
    )
    answers = bench.connect().ask(send(opaque=1, encoding=encoding), send(opaque=2))
    assert [answer.opaque for answer in answers] == [1, 2]
    assert answers[0].ext_fields["MSG_REGION"] == "r" * 5_000


def test_a_number_with_too_many_digits_is_cold(bench: Bench) -> None:
    assert bench.connect().is_cold(send(g="1" * 5_000))


def test_sends_that_find_no_room_are_cold_and_the_others_are_kept(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(bytes(60_000)))
    # Folders that stand where the next files of the log must go, as a full disk would; a kernel
    # that makes files ahead may have made the first.
    for index in range(1, 4):
        with contextlib.suppress(FileExistsError):
            (bench.path / "commitlog" / f"{index * 64 * 1024:020d}").mkdir()
    frames = [send(bytes(9_000), opaque=n) for n in range(40)]
    answers, cold, _, error = wire.feed(*frames)
    found = [answer.opaque for answer in commands(answers)]
    assert error is None
    assert found == list(range(len(found)))
    assert cold == [frame[4:] for frame in frames[len(found) :]]
    assert len(found) < 40
    assert wire.is_cold(send_batch([(0, bytes(9_000), b"")]))
    assert bench.append(bytes(9_000))[0] in (4, 5)
    assert len(bench.bodies()) == 1 + len(found)
