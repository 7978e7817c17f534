from __future__ import annotations

import tracemalloc
import zlib

import pytest
from tests.support.registration import decode_registration

from kerolox.protocol import registration
from kerolox.protocol.bodies import BodyError, DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.registration import (
    RegisterBody,
    RegistrationReader,
    encode_registration,
)


def body(*topics: TopicConfig, filter_servers: list[str] | None = None) -> RegisterBody:
    return RegisterBody(
        filter_server_list=filter_servers or [],
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=2, timestamp=3),
            topic_config_table={topic.topic_name: topic for topic in topics},
        ),
    )


TOPIC = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8, perm=6)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_is_read_as_it_was_written(compressed: bool) -> None:
    given = body(TOPIC, TopicConfig(topic_name="U"), filter_servers=["f:1"])
    data = encode_registration(given, compressed=compressed)
    assert decode_registration(data, compressed=compressed) == given


def test_the_compressed_form_is_the_one_of_rocketmq() -> None:
    data = zlib.decompress(encode_registration(body(TOPIC), compressed=True))
    version = b'{"counter":2,"timestamp":3}'
    text = b"T 4 8 6 SINGLE_TAG"
    assert data == (
        len(version).to_bytes(4, "big")
        + version
        + b"\0\0\0\1"
        + len(text).to_bytes(4, "big")
        + text
        + b"\0\0\0\2[]"
    )


def test_the_plain_form_is_the_one_of_rocketmq() -> None:
    assert encode_registration(body(TOPIC)) == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,'
        b'"timestamp":3},"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8}}}}'
    )


def test_attributes_are_in_the_plain_form_alone_which_4_9_reads() -> None:
    """A name server of 4.9 takes a text of five parts alone."""
    fifo = TopicConfig(topic_name="F", attributes={"message.type": "FIFO"})
    plain = encode_registration(body(fifo, TOPIC))
    assert plain.count(b'"F":{"attributes":{"message.type":"FIFO"},"order"') == 1
    assert plain.count(b"attributes") == 1
    assert decode_registration(plain, compressed=False) == body(fifo, TOPIC)
    assert b"F 16 16 6 SINGLE_TAG\0" in zlib.decompress(
        encode_registration(body(fifo, TOPIC), compressed=True)
    )


@pytest.mark.parametrize("attributes", [{}, {"message.type": "FIFO", "reserve.time": "1"}])
def test_topics_of_a_broker_of_5_are_read_many_at_a_time(attributes: dict[str, str]) -> None:
    topics = [TopicConfig(topic_name=f"T{n}", attributes=attributes) for n in range(1_000)]
    reader = RegistrationReader(encode_registration(body(*topics)), compressed=False)
    pieces = [piece for piece in reader.pieces() if piece]
    assert [topic for piece in pieces for topic in piece] == topics
    assert len(pieces) < 30


def test_the_compressed_form_loses_system_flag_and_order() -> None:
    given = body(TopicConfig(topic_name="T", topic_sys_flag=3, order=True))
    data = encode_registration(given, compressed=True)
    [topic] = decode_registration(
        data, compressed=True
    ).topic_config_serialize_wrapper.topic_config_table.values()
    assert (topic.topic_sys_flag, topic.order) == (0, False)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTRATION_BYTES_MAX", 1000)
    with pytest.raises(BodyError, match="over 1000 bytes"):
        decode_registration(zlib.compress(bytes(100_000)), compressed=True)


@pytest.mark.parametrize("servers", [b"5", b'{"a":1}', b'"x"'])
def test_filter_servers_that_are_no_list_are_refused(servers: bytes) -> None:
    parts = (b"{}", b"", servers)
    data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    with pytest.raises(BodyError, match="no list"):
        decode_registration(zlib.compress(data), compressed=True)


FIVE_TOPIC = (
    b'{"attributes":{"+message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":3,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":3}'
)
FIVE_BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,'
    b'"stateVersion":0,"timestamp":8},"mappingDataVersion":{"counter":0,"stateVersion":0,'
    b'"timestamp":9},"topicConfigTable":{"T":%s},"topicQueueMappingDetailMap":{},'
    b'"topicQueueMappingInfoMap":{"U":{"currIdMap":{0:1},"bname":"b"}}}}'
) % FIVE_TOPIC


def test_the_plain_form_of_a_5_x_broker_is_read() -> None:
    read = decode_registration(FIVE_BODY, compressed=False).topic_config_serialize_wrapper
    assert read.data_version == DataVersion(counter=7, timestamp=8)
    assert read.topic_config_table == {
        "T": TopicConfig(
            attributes={"+message.type": "FIFO"},
            topic_name="T",
            read_queue_nums=3,
            write_queue_nums=3,
        )
    }


@pytest.mark.parametrize("attributes", [b"", b" ", b" {}", b' {"+message.type":"a b"}'])
def test_the_compressed_form_may_have_attributes_behind_the_filter_type(attributes: bytes) -> None:
    parts = (b"T 3 3 6 SINGLE_TAG" + attributes, b"[]")
    data = b"\0\0\0\2{}\0\0\0\1" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    for compressed in (True, False):
        # A 5.x broker says of a compressed body that it is not; and it adds its maps of queues.
        read = decode_registration(zlib.compress(data + b"\0\0\0\0"), compressed=compressed)
        assert list(read.topic_config_serialize_wrapper.topic_config_table) == ["T"]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_reader_gives_the_same_pieces_each_time_none_of_them_large(compressed: bool) -> None:
    given = body(*(TopicConfig(topic_name=f"T{number}") for number in range(1_000)))
    reader = RegistrationReader(encode_registration(given, compressed=compressed), compressed=False)
    first, second = list(reader.pieces()), list(reader.pieces())
    assert first == second
    assert max(map(len, first)) <= 64
    assert sum(map(len, first)) == 1_000


def test_of_a_large_inflated_body_little_is_kept_at_a_time() -> None:
    text = b"T 1 1 6 " + b"S" * 60_000
    entry = len(text).to_bytes(4, "big") + text
    data = zlib.compress(b"\0\0\0\2{}" + (400).to_bytes(4, "big") + entry * 400 + b"\0\0\0\2[]")
    reader = RegistrationReader(data, compressed=True)
    tracemalloc.start()
    try:
        assert sum(len(piece) for piece in reader.pieces()) == 400
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(entry) * 400 > 20 << 20
    assert most < 2 << 20


@pytest.mark.parametrize("compressed", [False, True])
def test_a_topic_too_many_is_refused(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 99)
    data = encode_registration(
        body(*(TopicConfig(topic_name=f"T{number}") for number in range(100))),
        compressed=compressed,
    )
    with pytest.raises(BodyError, match=r"99|gives 100"):
        decode_registration(data, compressed=compressed)


def test_what_means_nothing_is_passed_in_steps_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b'{"other":[' + b"[]," * 3_000 + b"1]}"
    assert len(list(RegistrationReader(data, compressed=False).pieces())) >= 9_000 // 256
    monkeypatch.setattr(registration, "PASSED_MAX", 8_000)
    with pytest.raises(BodyError, match="more than 8000 parts that mean nothing"):
        decode_registration(data, compressed=False)


@pytest.mark.parametrize("number", ["9" * 5_000, "2147483648", "-2147483649", "1.5", ""])
def test_a_number_that_java_could_not_have_sent_is_refused(number: str) -> None:
    text = f"T 3 3 {number} SINGLE_TAG".encode()
    data = b"\0\0\0\2{}\0\0\0\1" + len(text).to_bytes(4, "big") + text + b"\0\0\0\2[]"
    with pytest.raises(BodyError, match="the registration has a topic"):
        decode_registration(zlib.compress(data), compressed=True)


ODD_MEMBERS = (
    b'"t1":{"topicName":"other","perm":2}',
    b'"t{":{"topicName":"t{"}',
    b'"t\\u0041":{"topicName":"t\\u0041"}',
    b'"a":{"topicName":"a","attributes":{"k":"v"}}',
    b'bare:{topicName:"bare",perm:4}',
    b'"list":{"topicName":"list","order":[]}',
    b'"none":{}',
    b'"n":{"topicName":"n","readQueueNums":"7"}',
    b'"n":5',
    b",",
    b'"x":{"topicName":"x"',
    b"",
)


@pytest.mark.parametrize("odd", ODD_MEMBERS)
@pytest.mark.parametrize("place", [0, 1, 100, 200])
def test_topics_read_in_runs_are_those_read_one_by_one(
    odd: bytes, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [b' "t%d" : {"topicName":"t%d", "perm":%d}' % (i, i, i % 8) for i in range(200)]
    members.insert(place, odd)
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % b",".join(members)

    def read() -> object:
        try:
            return decode_registration(body, compressed=False)
        except BodyError as error:
            return str(error)

    in_runs = read()
    monkeypatch.setattr(registration._Json, "run", lambda _: [])
    assert read() == in_runs


def test_ordinary_topics_are_read_many_at_a_time() -> None:
    topics = {f"t{i}": TopicConfig(topic_name=f"t{i}") for i in range(1_000)}
    table = TopicConfigTable(topic_config_table=topics)
    body = encode_registration(RegisterBody(topic_config_serialize_wrapper=table))
    text = registration._Json(body[body.index(b'"t0"') :], "table")
    assert [topic.topic_name for topic in text.run()] == [f"t{i}" for i in range(64)]
