"""Half messages in the kernel: fast sends, runs of an attempt, op messages, and ends in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kerolox.kernel.append import HALF_RUNS_MAX, OP_PROPERTIES
from kerolox.kernel.values import HalfRun, HalvesEnded
from kerolox.message import decode_properties
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC
from tests.support.stores.bench import (
    BORN_HOST,
    NOW,
    STORE_HOST,
    Bench,
    assert_same_as_reference,
    commands,
    holding_pull,
    messages,
    properties,
    send,
    send_batch,
)

if TYPE_CHECKING:
    from pathlib import Path

HALF = {"TRAN_MSG": "true", "PGROUP": "g", "KEROLOX_SINK": "q/1/0/0"}
TEXT = properties(**HALF)
ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)


@pytest.fixture
def halves(bench: Bench) -> Bench:
    """A store whose half messages are fast."""
    return with_halves(bench)


def with_halves(bench: Bench) -> Bench:
    bench.store.set_topic(HALF_TOPIC, 1, 1, 6, False)
    bench.store.set_topic(OP_HALF_TOPIC, 1, 1, 6, False)
    bench.store.set_halves(True)
    return bench


def records(bench: Bench, topic: str, queue_id: int = 0) -> list[Any]:
    found: list[Any] = []
    while (read := bench.store.read(topic, queue_id, len(found), 32, None))[0] == 0:
        found += messages_of(read[6])
    return found


def messages_of(data: bytes) -> list[Any]:
    class Answer:
        body = data

    return messages(Answer())  # type: ignore[arg-type]


def fill(bench: Bench, *texts: str, queue_id: int = 1) -> None:
    """Store a half for each property text, its body the number."""
    wire = bench.connect()
    for number, text in enumerate(texts):
        (answer,) = wire.ask(send(b"%d" % number, f=4, e=queue_id, i=text))
        assert answer.code == 0


@ENCODINGS
def test_a_half_is_stored_where_halves_are_and_answered_with_its_own_queue(
    halves: Bench, encoding: SerializeType
) -> None:
    text = properties(TAGS="t", **HALF, WAIT="true") + "\x02"
    (answer,) = halves.connect().ask(send(b"one", f=5, e=3, i=text, encoding=encoding))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "3")
    (half,) = records(halves, HALF_TOPIC)
    assert (half.sys_flag, half.body) == (1, b"one")
    wanted = {"CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert list(half.properties.items()) == [*decode_properties(text).items(), *wanted.items()]
    assert answer.ext_fields["queueOffset"] == "0"
    assert halves.store.queue_bounds("T", 3) == (0, 0)
    (entry,) = [halves.store.queue_entry(HALF_TOPIC, 0, 0)]
    assert entry[2] == 116, "Java's hash of the tag"


@ENCODINGS
@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("7F000001ABCD", "7F000001ABCD"),
        ('a"}, \\ä\t', 'a"}, \\ä\t'),
        ("k" * 255, "k" * 255),
        ("k" * 256, None),
        (None, None),
    ],
    ids=["id", "odd", "longest", "too long", "none"],
)
def test_the_answer_to_a_half_names_its_transaction(
    halves: Bench, encoding: SerializeType, key: str | None, told: str | None
) -> None:
    given = {} if key is None else {"UNIQ_KEY": key}
    text = properties(**given, **HALF)
    (answer,) = halves.connect().ask(send(b"one", f=4, i=text, encoding=encoding))
    assert (answer.code, answer.ext_fields.get("transactionId")) == (0, told)
    assert answer.ext_fields["queueOffset"] == "0"


@ENCODINGS
def test_the_answer_to_what_is_no_half_names_no_transaction(
    halves: Bench, encoding: SerializeType
) -> None:
    wire = halves.connect()
    text = properties(UNIQ_KEY="u")
    (plain,) = wire.ask(send(b"one", i=text, encoding=encoding))
    items = [(0, b"one", text.encode())]
    (batch,) = wire.ask(send_batch(items, f=4, i=TEXT, encoding=encoding))
    assert "transactionId" not in plain.ext_fields | batch.ext_fields


@ENCODINGS
def test_a_batch_of_halves_is_stored_where_halves_are(
    halves: Bench, encoding: SerializeType
) -> None:
    items = [(7, b"one", properties(TAGS="t").encode()), (8, b"two", b"")]
    (answer,) = halves.connect().ask(send_batch(items, f=4, e=2, i=TEXT, encoding=encoding))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    one, two = records(halves, HALF_TOPIC)
    assert (one.flag, one.sys_flag, one.body, two.body) == (7, 0, b"one", b"two")
    wanted = {**HALF, "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert one.properties == {"TAGS": "t", **wanted}
    assert two.properties == wanted


SLOW = {
    "not prepared": {"f": 0, "i": TEXT},
    "committed": {"f": 8, "i": TEXT},
    "prepared and no half": {"f": 4, "i": properties(TAGS="t")},
    "without properties": {"f": 4, "i": None},
    "in capitals": {"f": 4, "i": properties(TRAN_MSG="TRUE")},
    "no transaction": {"f": 4, "i": properties(TRAN_MSG="false")},
    "delayed": {"f": 4, "i": properties(**HALF, DELAY="1")},
    "says where it goes": {"f": 4, "i": properties(**HALF, REAL_TOPIC="T")},
    "says which queue": {"f": 4, "i": properties(**HALF, REAL_QID="1")},
    "given back": {"f": 4, "i": TEXT, "j": 1},
    "twice": {"f": 4, "i": TEXT + "\x02" + TEXT},
    "queue too high": {"f": 4, "i": TEXT, "e": 4},
    "unknown topic": {"f": 4, "i": TEXT, "b": "Unknown"},
    "too long with its target": {"f": 4, "i": properties(**HALF, a="x" * 32_680)},
}


@ENCODINGS
@pytest.mark.parametrize("changes", SLOW.values(), ids=SLOW)
def test_an_unusual_half_is_slow_and_stores_nothing(
    halves: Bench, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    end = halves.store.max_physical_offset
    assert halves.connect().is_cold(send(encoding=encoding, **changes))
    assert halves.store.max_physical_offset == end


@ENCODINGS
@pytest.mark.parametrize("name", sorted(SLOW))
def test_an_unusual_batch_of_halves_is_slow(
    halves: Bench, encoding: SerializeType, name: str
) -> None:
    end = halves.store.max_physical_offset
    assert halves.connect().is_cold(send_batch([(0, b"b", b"")], encoding=encoding, **SLOW[name]))
    assert halves.store.max_physical_offset == end


def test_halves_are_slow_until_their_topic_is_there_and_when_they_are_refused(
    bench: Bench,
) -> None:
    wire = bench.connect()
    half = send(f=4, i=TEXT)
    assert wire.is_cold(half)
    with_halves(bench)
    assert wire.ask(half)[0].code == 0
    bench.store.set_halves(False)
    assert wire.is_cold(half)


def test_runs_are_halves_of_one_attempt_that_follow_each_other(halves: Bench) -> None:
    other = properties(**{**HALF, "KEROLOX_SINK": "q/1/1/0"})
    copy = properties(**HALF, TRANSACTION_CHECK_TIMES="1")
    stranger = properties(**{**HALF, "PGROUP": "h"})
    plain = properties(TRAN_MSG="true", PGROUP="g")
    fill(halves, TEXT, TEXT, other, TEXT, copy, stranger, plain, TEXT)
    runs = [
        HalfRun("q/1/0/0", 0, 2, True),
        HalfRun("q/1/1/0", 2, 1, True),
        HalfRun("q/1/0/0", 3, 1, True),
        HalfRun("q/1/0/0", 4, 1, False),
        HalfRun("q/1/0/0", 7, 1, True),
    ]
    assert halves.store.half_runs("g", 0, 8, 1 << 20) == (8, runs)
    assert halves.store.half_runs("g", 1, 3, 1 << 20)[1] == [
        HalfRun("q/1/0/0", 1, 1, True),
        runs[1],
    ]
    assert halves.store.half_runs("h", 0, 8, 1 << 20)[1] == [HalfRun("q/1/0/0", 5, 1, True)]
    assert halves.store.half_runs("g", 0, 8, 1)[0] == 1, "one record has all the bytes"
    assert halves.store.half_runs("g", 8, 12, 1 << 20) == (12, [])


def test_one_call_gives_so_many_runs(halves: Bench) -> None:
    texts = [properties(**{**HALF, "KEROLOX_SINK": f"q/{n}/0/0"}) for n in range(HALF_RUNS_MAX + 1)]
    fill(halves, *texts)
    next_offset, runs = halves.store.half_runs("g", 0, len(texts), 1 << 30)
    assert (next_offset, len(runs)) == (HALF_RUNS_MAX, HALF_RUNS_MAX)


def test_an_end_stores_the_final_message_and_the_note_in_turn(halves: Bench) -> None:
    fill(halves, TEXT, properties(TAGS="t", KEYS="k", **HALF))
    assert halves.store.end_halves(0, 2, True, NOW + 5, STORE_HOST) == HalvesEnded(2, 0, False)
    half_records = records(halves, HALF_TOPIC)
    finals = records(halves, "T", 1)
    notes = records(halves, OP_HALF_TOPIC)
    for half, final in zip(half_records, finals, strict=True):
        assert final.sys_flag & 12 == 8
        assert final.prepared_transaction_offset == half.commit_log_offset
        for name in ("body", "properties", "born_timestamp", "born_host", "store_host", "flag"):
            assert getattr(final, name) == getattr(half, name)
    assert [note.body for note in notes] == [b"0", b"1"]
    assert all(note.born_timestamp == NOW + 5 for note in notes)
    assert notes[0].properties == decode_properties(OP_PROPERTIES)
    places = [each.commit_log_offset for pair in zip(finals, notes, strict=True) for each in pair]
    assert places == sorted(places), "a note follows its final message"
    assert halves.store.half_ops(0, 3) == [0, 1, -1]
    assert halves.store.queue_entry("T", 1, 1)[2] == 116


def test_a_rollback_stores_notes_alone(halves: Bench) -> None:
    fill(halves, TEXT, TEXT)
    assert halves.store.end_halves(1, 1, False, NOW, STORE_HOST) == HalvesEnded(1, 0, False)
    assert halves.store.half_ops(0, 1) == [1]
    assert halves.store.queue_bounds("T", 1) == (0, 0)


@pytest.mark.parametrize("text", [TEXT.replace("q/1", "é"), TEXT], ids=["text", "plain"])
def test_an_end_stops_at_a_half_that_is_not_plain(halves: Bench, text: str) -> None:
    fill(halves, text, properties(**HALF, TRAN_PREPARED_QUEUE_OFFSET="0"), text)
    assert halves.store.end_halves(0, 3, True, NOW, STORE_HOST) == HalvesEnded(1, 0, False)
    assert halves.bodies(1) == [b"0"]
    assert halves.store.end_halves(3, 3, True, NOW, STORE_HOST).count == 0


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_an_end_stops_at_a_half_whose_message_is_for_a_moment(halves: Bench, name: str) -> None:
    fill(halves, TEXT)
    text = properties(**HALF, CLUSTER="c", REAL_TOPIC="T", REAL_QID="1", **{name: "1"})
    halves.append(b"1", text, topic=HALF_TOPIC.encode())
    assert halves.store.end_halves(0, 2, True, NOW, STORE_HOST).count == 1
    assert [run.is_plain for run in halves.store.half_runs("g", 0, 2, 1 << 20)[1]] == [True, False]


def test_an_end_stops_when_the_store_refuses(halves: Bench) -> None:
    fill(halves, TEXT, TEXT)
    halves.store.set_max_message_size(0)
    assert halves.store.end_halves(0, 2, True, NOW, STORE_HOST) == HalvesEnded(0, 0, False)
    halves.store.set_max_message_size(1 << 20)
    assert halves.store.end_halves(0, 2, True, NOW, STORE_HOST).count == 2


def test_op_messages_that_end_nothing_are_none(halves: Bench) -> None:
    for body, text in (
        (b"7", OP_PROPERTIES),
        (b"x", OP_PROPERTIES),
        (b"", OP_PROPERTIES),
        (b"1" * 20, OP_PROPERTIES),
        (b"5", properties(TAGS="e")),
        (b"9", OP_PROPERTIES),
    ):
        halves.append(body, text, topic=OP_HALF_TOPIC.encode())
    assert halves.store.half_ops(0, 8) == [7, -1, -1, -1, -1, 9, -1, -1]


@pytest.mark.parametrize(
    ("topic", "read_queues", "ended"), [("T", 4, 3), ("T", 2, 0), ("T", 3, 3), ("other", 4, 0)]
)
def test_no_message_is_committed_to_a_queue_that_nobody_reads(
    halves: Bench, topic: str, read_queues: int, ended: int
) -> None:
    fill(halves, TEXT, TEXT, TEXT, queue_id=2)
    halves.store.delete_topic("T")
    halves.store.set_topic(topic, read_queues, 4, 6, False)
    assert halves.store.end_halves(0, 3, True, NOW, STORE_HOST) == HalvesEnded(ended, 0)
    assert halves.store.queue_bounds("T", 2) == (0, ended)
    assert halves.store.end_halves(ended, 3, False, NOW, STORE_HOST) == HalvesEnded(3 - ended, 0)


def test_final_messages_wake_the_pulls_that_wait_for_them(halves: Bench) -> None:
    fill(halves, TEXT)
    wire = halves.connect()
    pull = holding_pull(queueId=1, queueOffset=0, suspendTimeoutMillis=5_000)
    assert wire.feed(pull)[:2] == (b"", [])
    halves.store.end_halves(0, 1, True, NOW, STORE_HOST)
    halves.wait_notified()
    (answer,) = halves.drain_ready()[wire.connection_id]
    assert [message.body for message in messages(answer)] == [b"0"]


def test_every_kernel_writes_the_same_bytes(tmp_path: Path, kernel: Any) -> None:
    def play(bench: Bench) -> list[object]:
        with_halves(bench)
        wire = bench.connect(BORN_HOST)
        seen: list[object] = []
        for number in range(40):
            text = properties(**{**HALF, "KEROLOX_SINK": f"q/{number // 7}/0/0", "TAGS": "ä"})
            text += "\x02" if number % 3 == 0 else ""
            frames = [send(b"%d" % number * number, f=4 + number % 2, e=number % 4, i=text)]
            items = [(n, b"item", properties(KEYS=f"k{n}").encode()) for n in range(3)]
            frames.append(send_batch(items, f=4, e=number % 4, i=text))
            answers = wire.feed(*[f for f in frames if number or f])[0]
            seen.append([(a.code, a.ext_fields) for a in commands(answers)])
        end = bench.store.queue_bounds(HALF_TOPIC, 0)[1]
        seen.append(bench.store.half_runs("g", 0, end, 1 << 20))
        seen.append(bench.store.end_halves(3, 50, True, NOW + 1, STORE_HOST))
        seen.append(bench.store.end_halves(60, 20, False, NOW + 2, STORE_HOST))
        seen.append(bench.store.half_ops(0, 100))
        return seen

    assert_same_as_reference(kernel, play, tmp_path)
