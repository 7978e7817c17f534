"""What a hot pull answers."""

from __future__ import annotations

import pytest

from kerolox.message import java_hash
from kerolox.protocol.codes import SerializeType
from tests.support.stores.bench import NOW, Bench, commands, frame, messages, properties, pull, send

ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)


def tagged(*tags: str, queue: int = 0) -> list[bytes]:
    """Sends with a body and a tag each; an empty tag is none."""
    return [
        send(tag.encode() or b"-", e=queue, i=properties(TAGS=tag) if tag else "") for tag in tags
    ]


def test_the_answer_to_json_is_this_text(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(b"1"), send(b"2"))
    answers, _, _, _ = wire.feed(pull(opaque=9))
    header = (
        b'{"code":0,"extFields":{"maxOffset":"2","minOffset":"0","nextBeginOffset":"2",'
        b'"suggestWhichBrokerId":"0"},"flag":1,"language":"PYTHON","opaque":9,'
        b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":409}'
    )
    records = bench.store.read("T", 0, 0, 32, None)[6]
    assert len(records) == bench.store.max_physical_offset
    assert answers == frame(header, records)


def test_the_answer_to_the_binary_encoding_is_these_bytes(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(b"1"))
    answers, _, _, _ = wire.feed(pull(opaque=9, encoding=SerializeType.ROCKETMQ))

    def entry(name: bytes, value: bytes) -> bytes:
        return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value

    entries = (
        entry(b"maxOffset", b"1")
        + entry(b"minOffset", b"0")
        + entry(b"nextBeginOffset", b"1")
        + entry(b"suggestWhichBrokerId", b"0")
    )
    fixed = bytes.fromhex("0000 03 0199 00000009 00000001 00000005") + b"FOUND"
    header = fixed + len(entries).to_bytes(4, "big") + entries
    assert answers == frame(header, bench.store.lookup(0), 1)


@ENCODINGS
@pytest.mark.parametrize(
    ("changes", "code", "remark", "next_offset"),
    [
        ({"queueOffset": 3}, 19, "OFFSET_OVERFLOW_ONE", 3),
        ({"queueOffset": 0, "queueId": 1}, 19, "NO_MESSAGE_IN_QUEUE", 0),
        ({"queueOffset": 0, "subscription": "nobody"}, 20, "NO_MATCHED_MESSAGE", 3),
        ({"queueOffset": 2, "subscription": "a"}, 20, "NO_MATCHED_MESSAGE", 3),
        ({"queueOffset": 1}, 0, "FOUND", 3),
    ],
)
def test_each_result_has_its_code(
    bench: Bench,
    encoding: SerializeType,
    changes: dict[str, object],
    code: int,
    remark: str,
    next_offset: int,
) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a", "a", "b"))
    (answer,) = wire.ask(pull(encoding=encoding, **changes))
    assert (answer.code, answer.remark) == (code, remark)
    assert answer.ext_fields["nextBeginOffset"] == str(next_offset)
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert list(answer.ext_fields) == [
        "maxOffset",
        "minOffset",
        "nextBeginOffset",
        "suggestWhichBrokerId",
    ]
    assert bool(answer.body) == (code == 0)


@pytest.mark.parametrize(
    ("expression", "bodies"),
    [
        ("*", [b"a", b"b", b"-", b"\xc3\xa4"]),
        ("a", [b"a"]),
        ("a||b", [b"a", b"b"]),
        (" a \t||\x1f ä ", [b"a", b"\xc3\xa4"]),
        ("||a||", [b"a"]),
        ("b||*", [b"b"]),
    ],
)
def test_tags_choose(bench: Bench, expression: str, bodies: list[bytes]) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a", "b", "", "ä"))
    # In the binary encoding, where control characters need no escapes.
    (answer,) = wire.ask(pull(subscription=expression, encoding=SerializeType.ROCKETMQ))
    assert [message.body for message in messages(answer)] == bodies
    assert answer.ext_fields["nextBeginOffset"] == "4"


def test_a_tag_surrounded_by_other_blanks_is_another_tag(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a"))
    (answer,) = wire.ask(pull(subscription="\u00a0a"))
    assert answer.code == 20


def test_the_subscription_of_the_heartbeat_chooses(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a", "b"))
    bench.store.set_subscription("G", "T", 5, [java_hash("b"), 17])
    (answer,) = wire.ask(pull(sysFlag=0, subVersion=5, subscription="a"))
    assert [message.body for message in messages(answer)] == [b"b"]
    bench.store.set_subscription("G", "T", 6, None)
    (answer,) = wire.ask(pull(sysFlag=0, subVersion=5))
    assert len(messages(answer)) == 2


def test_no_more_messages_than_asked_for(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*(send(b"x") for _ in range(40)))
    (answer,) = wire.ask(pull(maxMsgNums=7, queueOffset=3))
    assert [message.queue_offset for message in messages(answer)] == list(range(3, 10))
    assert answer.ext_fields["nextBeginOffset"] == "10"
    assert answer.ext_fields["maxOffset"] == "40"


def test_no_more_messages_and_bytes_than_the_settings_allow(closed_bench: Bench) -> None:
    closed_bench.open(mapped_file_size_commit_log=1 << 20)
    wire = closed_bench.connect()
    wire.ask(*(send(b"x") for _ in range(40)))
    (answer,) = wire.ask(pull(maxMsgNums=1000))
    assert len(messages(answer)) == 32
    wire.ask(*(send(bytes(100_000), e=1) for _ in range(4)))
    (answer,) = wire.ask(pull(maxMsgNums=1000, queueId=1))
    assert len(messages(answer)) == 2


def test_records_of_several_files_and_of_mixed_queues_are_concatenated(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*(send(b"%d" % i + bytes(3_000), e=i % 2) for i in range(60)))
    (answer,) = wire.ask(pull(queueId=1, maxMsgNums=32, queueOffset=0))
    assert [int(m.body[:2].rstrip(b"\0")) for m in messages(answer)] == list(range(1, 60, 2))


def test_a_commit_travels_with_the_pull(bench: Bench) -> None:
    wire = bench.connect()
    bench.append()
    wire.ask(
        pull(sysFlag=5, commitOffset=3),
        pull(sysFlag=5, commitOffset=1),
        pull(sysFlag=5, commitOffset=8, queueId=2),
        pull(sysFlag=4, commitOffset=9, queueId=3),
        pull(sysFlag=5, commitOffset=-1, queueId=3),
    )
    assert sorted(bench.store.drain_commits()) == [("G", "T", 0, 1), ("G", "T", 2, 8)]
    assert bench.store.drain_commits() == []


def test_a_cold_pull_commits_nothing(bench: Bench) -> None:
    wire = bench.connect()
    assert wire.is_cold(pull(sysFlag=5, commitOffset=3, queueOffset=9))
    assert bench.store.drain_commits() == []


def test_another_broker_is_suggested_when_far_behind(closed_bench: Bench) -> None:
    closed_bench.open(access_message_in_memory_max_ratio=0)
    wire = closed_bench.connect()
    wire.ask(send(b"1"), send(b"2"))
    closed_bench.store.set_group("G", True, 4)
    (answer,) = wire.ask(pull(maxMsgNums=1))
    assert answer.ext_fields["suggestWhichBrokerId"] == "4"
    (answer,) = wire.ask(pull(queueOffset=2))
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"


def test_counters_count_what_was_got(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a", "b", "a"))
    wire.ask(pull(), pull(subscription="a"), pull(queueOffset=3), pull(subscription="c"))
    size = bench.store.max_physical_offset
    ((group, topic, queue_id, reads, count, got, milliseconds),) = bench.store.group_stats()
    assert (group, topic, queue_id, reads, count) == ("G", "T", 0, 2, 5)
    assert 0 <= milliseconds < 1_000
    assert size < got < 2 * size
    stats = bench.store.stats()
    assert (stats["get_found"], stats["get_miss"]) == (2, 2)
    assert (stats["get_count"], stats["get_bytes"]) == (5, got)


@pytest.mark.parametrize("deleted", ["group", "topic"])
def test_what_was_counted_goes_with_its_group_or_topic(bench: Bench, deleted: str) -> None:
    wire = bench.connect()
    wire.ask(*tagged("a"))
    wire.ask(pull())
    assert len(bench.store.group_stats()) == len(bench.store.lag()) == 1
    if deleted == "group":
        bench.store.delete_group("G")
    else:
        bench.store.delete_topic("T")
        bench.store.delete_queues("T")
        assert bench.store.topic_stats() == []
    assert bench.store.group_stats() == bench.store.lag() == []


def test_a_flood_of_pulls_is_answered_in_bounded_portions(closed_bench: Bench) -> None:
    closed_bench.open(mapped_file_size_commit_log=1 << 22, max_message_size=1 << 21)
    wire = closed_bench.connect()
    wire.ask(*(send(bytes(60_000)) for _ in range(4)))
    answers, cold, flags, error = wire.feed(
        *(pull(opaque=i) for i in range(40)), send(opaque=40), b"\0\0\0"
    )
    opaques: list[int] = []
    rounds = 0
    while True:
        rounds += 1
        assert (cold, error) == ([], None)
        assert len(answers) < 2 << 20
        opaques += [answer.opaque for answer in commands(answers)]
        if not flags & 2:
            break
        answers, cold, flags, error = wire.feed(b"")
    assert opaques == list(range(41))
    assert rounds == 9
    answers, _, _, error = wire.feed(b"\4")
    assert (answers, error) == (b"", None)


def test_frames_that_arrive_while_others_wait_come_after_them(closed_bench: Bench) -> None:
    closed_bench.open(mapped_file_size_commit_log=1 << 22, max_message_size=1 << 21)
    wire = closed_bench.connect()
    wire.ask(*(send(bytes(60_000)) for _ in range(4)))
    answers, _, flags, _ = wire.feed(*(pull(opaque=i) for i in range(8)))
    assert flags == 2
    opaques = [answer.opaque for answer in commands(answers)]
    answers, _, flags, _ = wire.feed(pull(opaque=8, queueOffset=4))
    assert flags == 0
    opaques += [answer.opaque for answer in commands(answers)]
    assert opaques == list(range(9))


def test_timestamps_do_not_matter_to_a_pull(bench: Bench) -> None:
    bench.append(born_timestamp=NOW + 10**9)
    assert bench.connect().ask(pull())[0].code == 0


def test_any_number_of_subscriptions_is_taken(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*tagged("tag-7"))
    for start in range(0, 5_000, 500):
        answers = wire.ask(*(pull(subscription=f"tag-{n}") for n in range(start, start + 500)))
        assert [answer.code for answer in answers].count(0) == (1 if start == 0 else 0)
    long = " || ".join(f"tag-{n}" for n in range(400))
    for _ in range(2):
        assert wire.ask(pull(subscription=long))[0].code == 0
