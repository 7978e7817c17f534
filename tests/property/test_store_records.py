from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.message import decode_properties, encode_properties, java_hash, property_value
from kerolox.protocol.records import decode_record, parse_record
from kerolox.store.index import KeyHasher
from tests.support.stores.message_store import (
    BORN_HOST,
    crash,
    opened,
    put,
    read_messages,
    small_settings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)).map(
    lambda host: host[:-4] + (0).to_bytes(2, "big") + host[-2:]
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8)
topics = st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)


@settings(max_examples=60, deadline=None)
@given(
    topic=topics,
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    born_timestamp=st.integers(-(2**63), 2**63 - 1),
    born_host=hosts,
    store_host=hosts,
    reconsume_times=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=2_000),
    properties=st.dictionaries(names, names, max_size=5),
)
def test_a_record_decodes_to_what_was_appended(
    topic: str,
    queue_id: int,
    flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int,
    body: bytes,
    properties: dict[str, str],
) -> None:
    text = encode_properties(properties).encode()
    with tempfile.TemporaryDirectory() as folder, opened(small_settings(Path(folder))) as store:
        stored = put(
            store, topic, queue_id, body, text, flag=flag, born_timestamp=born_timestamp,
            born_host=born_host, store_host=store_host, reconsume_times=reconsume_times,
        )  # fmt: skip
        message, end = decode_record(store.lookup(0) or b"")
        assert end == stored.size == store.max_physical_offset
        assert (message.topic, message.queue_id, message.flag) == (topic, queue_id, flag)
        assert (message.body, message.properties) == (body, properties)
        assert message.born_timestamp == born_timestamp
        assert message.reconsume_times == reconsume_times
        assert message.store_timestamp == stored.store_timestamp


@given(data=st.binary(max_size=300), at=st.integers(0, 300))
def test_garbage_is_never_parsed_and_never_raises(data: bytes, at: int) -> None:
    record = parse_record(data, at, len(data), 2**60)
    assert record is None


@given(properties=st.dictionaries(names, names, max_size=6), name=names)
def test_a_property_is_found_as_the_decoder_finds_it(properties: dict[str, str], name: str) -> None:
    text = encode_properties(properties)
    expected = decode_properties(text).get(name)
    found = property_value(text.encode(), name)
    assert (None if found is None else found.decode()) == expected


@given(topic=topics, key=st.text(max_size=60))
def test_the_fast_key_hash_is_the_java_hash(topic: str, key: str) -> None:
    key = key.encode("utf-8", "ignore").decode()
    expected = abs(java_hash(f"{topic}#{key}"))
    assert KeyHasher().hash(topic.encode(), key.encode()) == (0 if expected == 2**31 else expected)


@settings(max_examples=30, deadline=None)
@given(
    chunks=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900)), min_size=1, max_size=20),
        max_size=8,
    ),
    is_killed=st.booleans(),
)
def test_queues_hold_what_chunks_brought_in_order(
    chunks: Sequence[Sequence[tuple[int, int]]], is_killed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_settings = small_settings(Path(folder), mapped_file_size_commit_log=4_096)
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        with opened(given_settings) as store:
            number = 0
            for chunk in chunks:
                items = []
                for queue_id, size in chunk:
                    body = b"%d|" % number + b"." * size
                    number += 1
                    expected[queue_id].append(body)
                    items.append((store.files.queues.get("T", queue_id), 0, 0, 0, 0, 0, body, b""))
                assert len(store.append_chunk(items, BORN_HOST)) == len(items)
            if is_killed:
                crash(store)
        with opened(given_settings) as again:
            for queue_id, bodies in expected.items():
                assert [m.body for m in read_messages(again, "T", queue_id)] == bodies


def test_a_tail_torn_at_any_byte_costs_the_last_record_only() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        with opened(small_settings(base, mapped_file_size_commit_log=2_048)) as store:
            for index in range(3):
                put(store, body=b"body-%d" % index, properties=b"KEYS\x01k%d\x02A\x01b" % index)
            last = put(store, body=b"the last one", properties=b"KEYS\x01last")
            crash(store)
        log = f"store/commitlog/{0:020d}"
        data = (base / log).read_bytes()
        for kept in range(last.size):
            copy = Path(folder) / "copy"
            shutil.copytree(base, copy)
            cut = last.physical_offset + kept
            (copy / log).write_bytes(data[:cut] + bytes(len(data) - cut))
            with opened(small_settings(copy, mapped_file_size_commit_log=2_048)) as store:
                assert store.max_physical_offset == last.physical_offset
                assert store.queue_bounds("T", 0) == (0, 3)
                assert store.query_key("T", "last", 9, 0, 10**15)[2] == b""
                assert put(store, body=b"again").queue_offset == 3
                assert len(read_messages(store)) == 4
                after = (copy / log).read_bytes()
                assert not after[store.max_physical_offset :].strip(b"\0")
            shutil.rmtree(copy)
