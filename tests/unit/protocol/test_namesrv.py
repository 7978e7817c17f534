from __future__ import annotations

import zlib

import pytest

from kerolox.protocol import namesrv
from kerolox.protocol.bodies import BodyError, DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.namesrv import RegisterBody, decode_registration, encode_registration


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


def test_the_compressed_form_loses_system_flag_and_order() -> None:
    given = body(TopicConfig(topic_name="T", topic_sys_flag=3, order=True))
    data = encode_registration(given, compressed=True)
    [topic] = decode_registration(
        data, compressed=True
    ).topic_config_serialize_wrapper.topic_config_table.values()
    assert (topic.topic_sys_flag, topic.order) == (0, False)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namesrv, "REGISTRATION_BYTES_MAX", 1000)
    with pytest.raises(BodyError, match="over 1000 bytes"):
        decode_registration(zlib.compress(bytes(100_000)), compressed=True)


@pytest.mark.parametrize("servers", [b"5", b'{"a":1}', b'"x"'])
def test_filter_servers_that_are_no_list_are_refused(servers: bytes) -> None:
    parts = (b"{}", b"", servers)
    data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    with pytest.raises(BodyError, match="no list"):
        decode_registration(zlib.compress(data), compressed=True)
