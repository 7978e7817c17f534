"""Pulls that wait: what wakes them, what expires them, and whom the answers go to."""

from __future__ import annotations

import pytest

from kerolox._pykernel.store import ANSWERED_AT_ONCE_MAX
from kerolox.kernel.held_pulls import HELD_CODES_MAX, HELD_PULLS_MAX, PASSED_OVER_MS
from kerolox.kernel.tables import COMMITS_MAX
from kerolox.kernel.values import Batch
from kerolox.message import java_hash
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.framing import FrameDecoder
from tests.support.kernels import MODULES
from tests.support.stores.bench import (
    BORN_HOST,
    NOW,
    STORE_HOST,
    Bench,
    commands,
    frame,
    holding_pull,
    messages,
    properties,
    pull,
    send,
    send_batch,
)

READY = 1


def held(bench: Bench) -> int:
    return int(bench.store.stats()["held_pulls"])


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_a_send_on_another_connection_wakes(bench: Bench, encoding: SerializeType) -> None:
    waiting, sending = bench.connect(), bench.connect()
    assert waiting.ask(holding_pull(opaque=7, encoding=encoding)) == []
    assert held(bench) == 1
    answers, _, flags, _ = sending.feed(send(b"1"), send(b"2"))
    assert flags == READY
    assert len(commands(answers)) == 2
    ready = bench.drain_ready()
    ((answer,),) = ready.values()
    assert list(ready) == [waiting.connection_id]
    assert (answer.code, answer.remark, answer.opaque) == (0, "FOUND", 7)
    assert answer.serialize_type == encoding
    assert [message.body for message in messages(answer)] == [b"1", b"2"]
    assert answer.ext_fields["nextBeginOffset"] == "2"
    assert held(bench) == 0
    assert bench.drain_ready() == {}
    assert bench.store.group_stats()[0][:5] == ("G", "T", 0, 1, 2)


def test_a_send_on_the_same_connection_wakes_at_the_end_of_the_chunk(bench: Bench) -> None:
    wire = bench.connect()
    answers, cold, flags, _ = wire.feed(
        holding_pull(opaque=1), send(b"a", opaque=2), send(b"b", opaque=3)
    )
    assert (cold, flags) == ([], 0)
    found = commands(answers)
    assert [answer.opaque for answer in found] == [2, 3, 1]
    assert [message.body for message in messages(found[2])] == [b"a", b"b"]


def test_a_batch_wakes(bench: Bench) -> None:
    waiting, sending = bench.connect(), bench.connect()
    waiting.ask(holding_pull(subscription="b"))
    _, _, flags, _ = sending.feed(send_batch([(0, b"1", b"TAGS\x01a"), (0, b"2", b"TAGS\x01b")]))
    assert flags == READY
    ((answer,),) = bench.drain_ready().values()
    assert [message.body for message in messages(answer)] == [b"2"]


def test_an_append_of_the_broker_wakes_and_notifies(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(holding_pull(opaque=3))
    bench.append(b"cold")
    bench.wait_notified()
    ((answer,),) = bench.drain_ready().values()
    assert (answer.opaque, answer.code) == (3, 0)
    assert [message.body for message in messages(answer)] == [b"cold"]


def test_a_batch_of_the_broker_wakes_and_notifies(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(holding_pull())
    appended = bench.store.append_batch(
        Batch(b"T", 0, 0, NOW, BORN_HOST, STORE_HOST, 0, [(0, b"1", b""), (0, b"2", b"")])
    )
    assert appended[0] == 0
    bench.wait_notified()
    ((answer,),) = bench.drain_ready().values()
    assert len(messages(answer)) == 2


def test_only_the_queue_that_was_written_wakes(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(holding_pull(queueId=1), holding_pull(queueId=2, opaque=2))
    _, _, flags, _ = bench.connect().feed(send(e=0), send(e=2))
    assert flags == READY
    assert [answer.opaque for answer in bench.drain_ready()[wire.connection_id]] == [2]
    assert held(bench) == 1


def test_only_a_matching_tag_wakes(bench: Bench) -> None:
    wire, sending = bench.connect(), bench.connect()
    wire.ask(holding_pull(subscription="a || b"))
    for tag in ("c", "A", ""):
        _, _, flags, _ = sending.feed(send(i=properties(TAGS=tag) if tag else ""))
        assert flags == 0
        assert bench.drain_ready() == {}
    _, _, flags, _ = sending.feed(send(b"found", i=properties(TAGS="b")))
    assert flags == READY
    ((answer,),) = bench.drain_ready().values()
    assert [message.body for message in messages(answer)] == [b"found"]
    assert answer.ext_fields["nextBeginOffset"] == "4"


def test_a_negative_hash_matches(bench: Bench) -> None:
    tag = next(text for text in map("tag-{}".format, range(99)) if java_hash(text) < 0)
    wire = bench.connect()
    wire.ask(holding_pull(subscription=tag))
    answers, _, _, _ = wire.feed(send(i=properties(TAGS=tag)))
    assert len(commands(answers)) == 2


def test_several_wait_for_one_queue_and_are_woken_in_order(bench: Bench) -> None:
    wires = [bench.connect() for _ in range(3)]
    for wire in wires:
        wire.ask(holding_pull(opaque=1), holding_pull(opaque=2, queueId=1))
    wires[0].ask(holding_pull(opaque=3))
    answers, _, flags, _ = wires[0].feed(send(opaque=9))
    assert [answer.opaque for answer in commands(answers)] == [9, 1, 3]
    assert flags == READY
    ready = bench.drain_ready()
    assert list(ready) == [wires[1].connection_id, wires[2].connection_id]
    assert held(bench) == 3


def test_queues_are_woken_in_the_order_of_their_first_record(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(*(holding_pull(opaque=queue, queueId=queue) for queue in range(4)))
    answers, _, _, _ = wire.feed(send(e=2, opaque=10), send(e=0, opaque=11), send(e=2, opaque=12))
    assert [answer.opaque for answer in commands(answers)] == [10, 11, 12, 2, 0]


def test_a_queue_with_messages_waits_at_its_end(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(b"old"))
    assert wire.ask(holding_pull(queueOffset=1)) == []
    answers, _, _, _ = wire.feed(send(b"new"))
    assert [message.body for message in messages(commands(answers)[1])] == [b"new"]


def test_a_pull_that_finds_or_matches_nothing_new_is_answered_at_once(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(i=properties(TAGS="a")))
    assert wire.ask(holding_pull())[0].code == 0
    assert wire.ask(holding_pull(subscription="b"))[0].code == 20
    assert wire.is_cold(holding_pull(queueOffset=2))


@pytest.mark.parametrize("changes", [{"sysFlag": 4}, {"suspendTimeoutMillis": 0}], ids=str)
def test_a_pull_that_may_not_wait_is_answered_at_once(
    bench: Bench, changes: dict[str, object]
) -> None:
    (answer,) = bench.connect().ask(pull(**{"sysFlag": 6, **changes}))
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")


def test_without_long_polling_a_pull_that_would_wait_is_cold(closed_bench: Bench) -> None:
    closed_bench.open(long_polling_enable=False)
    wire = closed_bench.connect()
    commit = {"sysFlag": 7, "commitOffset": 3}
    assert wire.is_cold(holding_pull(**commit))
    assert wire.is_cold(holding_pull(suspendTimeoutMillis=0))
    assert closed_bench.store.drain_commits() == []
    assert wire.ask(pull())[0].code == 19
    wire.ask(send())
    assert wire.ask(holding_pull())[0].code == 0
    closed_bench.store.stop_holding()
    assert wire.ask(holding_pull(queueOffset=1))[0].code == 19


def test_the_deadline_answers_with_the_bounds_of_that_moment(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(i=properties(TAGS="a")))
    wire.ask(holding_pull(opaque=4, queueOffset=1, suspendTimeoutMillis=1_000))
    assert bench.store.tick(NOW + 999) is False
    assert bench.drain_ready() == {}
    assert bench.store.tick(NOW + 1_000) is True
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.remark, answer.opaque) == (19, "OFFSET_OVERFLOW_ONE", 4)
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "1",
        "minOffset": "0",
        "maxOffset": "1",
    }
    assert held(bench) == 0
    assert bench.store.tick(NOW + 10**6) is False


def test_at_the_deadline_skipped_tags_move_the_offset(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(holding_pull(subscription="b", suspendTimeoutMillis=500))
    wire.ask(send(i=properties(TAGS="a")))
    bench.store.tick(NOW + 500)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_a_pull_that_is_passed_over_is_answered_within_five_seconds(bench: Bench) -> None:
    wire = bench.connect()
    bench.store.tick(NOW)
    wire.ask(holding_pull(subscription="b", opaque=1), holding_pull(queueId=1, opaque=2))
    wire.ask(holding_pull(queueId=1, subscription="b", opaque=3))
    wire.ask(send(i=properties(TAGS="a")), send(i=properties(TAGS="c")))
    assert bench.store.tick(NOW + PASSED_OVER_MS - 1) is False
    assert bench.store.tick(NOW + PASSED_OVER_MS) is True
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.remark, answer.opaque) == (20, "NO_MATCHED_MESSAGE", 1)
    assert answer.ext_fields["nextBeginOffset"] == "2"
    # One that came since then waits for the next time, and those of an empty queue for ever.
    wire.ask(holding_pull(subscription="b", queueOffset=2, opaque=4))
    wire.ask(send(i=properties(TAGS="a")))
    assert bench.store.tick(NOW + 2 * PASSED_OVER_MS - 1) is False
    assert bench.store.tick(NOW + 2 * PASSED_OVER_MS) is True
    ((answer,),) = bench.drain_ready().values()
    assert (answer.opaque, answer.ext_fields["nextBeginOffset"]) == (4, "3")
    assert held(bench) == 2


def test_deadlines_expire_in_their_order(bench: Bench) -> None:
    wire = bench.connect()
    for opaque, wait in enumerate((300, 100, 200, 100)):
        wire.ask(holding_pull(opaque=opaque, suspendTimeoutMillis=wait))
    bench.store.tick(NOW + 250)
    assert [answer.opaque for answer in bench.drain_ready()[wire.connection_id]] == [1, 3, 2]
    assert held(bench) == 1


def test_pulls_that_expire_together_are_answered_in_turns_and_in_order(bench: Bench) -> None:
    wires = [bench.connect() for _ in range(4)]
    for opaque in range(300):
        for wire in wires:
            wire.ask(holding_pull(opaque=opaque, suspendTimeoutMillis=100))
    assert bench.store.tick(NOW + 100) is True
    got: dict[int, list[int]] = {wire.connection_id: [] for wire in wires}
    turns = []
    while ready := bench.drain_ready():
        turns.append(sum(map(len, ready.values())))
        for connection_id, answers in ready.items():
            got[connection_id] += [answer.opaque for answer in answers]
        if held(bench):
            bench.wait_notified()
    assert list(got.values()) == [list(range(300))] * 4
    if bench.kernel.__name__ == MODULES["python"]:
        assert max(turns) == ANSWERED_AT_ONCE_MAX, "the loop has others to serve"


def test_a_pull_that_is_ended_and_waits_for_its_turn_is_not_woken(bench: Bench) -> None:
    wire = bench.connect()
    for opaque in range(300):
        wire.ask(holding_pull(opaque=opaque))
    bench.store.set_group("G", False, 1)
    bench.store.tick(NOW)
    bench.append(b"later")
    answers = []
    while ready := bench.drain_ready():
        answers += ready[wire.connection_id]
    assert [answer.code for answer in answers] == [19] * 300


def test_a_pull_woken_in_time_does_not_expire(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(holding_pull(suspendTimeoutMillis=100))
    wire.ask(send(opaque=2))
    assert bench.store.tick(NOW + 10_000) is False


def test_a_closed_connection_leaves_nothing_behind(bench: Bench) -> None:
    gone, stays = bench.connect(), bench.connect()
    gone.ask(holding_pull(), holding_pull(queueId=1))
    stays.ask(holding_pull())
    gone.connection.close()
    gone.connection.close()
    assert held(bench) == 1
    bench.connect().feed(send())
    assert list(bench.drain_ready()) == [stays.connection_id]
    assert bench.store.tick(NOW + 10**6) is False


def test_answers_that_are_ready_go_with_their_connection(bench: Bench) -> None:
    gone = bench.connect()
    gone.ask(holding_pull())
    bench.connect().feed(send())
    gone.connection.close()
    assert bench.drain_ready() == {}


def test_the_broker_can_hold_a_pull_of_its_own(bench: Bench) -> None:
    hold = bench.store.hold
    assert hold(70, 0, 5, "Other", "T", 1, 0, 32, [java_hash("x")], NOW + 100)
    assert hold(71, 1, 6, "Other", "T", 1, 0, 32, None, NOW + 100)
    bench.connect().feed(send(e=1))
    ready = bench.drain_ready()
    assert [answer.opaque for answer in ready[71]] == [6]
    assert ready[71][0].serialize_type == SerializeType.ROCKETMQ
    bench.store.tick(NOW + 100)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.opaque, answer.code) == (5, 20)


def test_a_held_pull_of_a_deleted_queue_expires_quietly(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send())
    wire.ask(holding_pull(queueOffset=1, suspendTimeoutMillis=10))
    bench.store.delete_queues("T")
    bench.store.tick(NOW + 10)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.remark) == (21, "NO_MESSAGE_IN_QUEUE")


def test_the_table_of_held_pulls_is_bounded(bench: Bench) -> None:
    hold = bench.store.hold
    limit = HELD_PULLS_MAX
    for opaque in range(limit):
        hold(1_000 + opaque % 100, 0, opaque, "G", "T", 0, 0, 32, None, NOW + opaque)
    assert held(bench) == limit
    assert not hold(1, 0, 1, "G", "T", 0, 0, 32, None, NOW + 1)
    # Who would wait is for the broker to refuse, others are served as always.
    wire = bench.connect()
    assert wire.is_cold(holding_pull(sysFlag=7, commitOffset=5))
    assert bench.store.drain_commits() == []
    (answer,) = wire.ask(holding_pull(sysFlag=4))
    assert answer.code == 19
    bench.kernel.Connection(bench.store, 1_000, BORN_HOST).close()
    assert held(bench) == limit - limit // 100
    assert bench.connect().ask(holding_pull()) == []
    bench.store.tick(NOW + limit)
    while bench.store.drain_ready():
        pass
    assert held(bench) == 0


@pytest.mark.parametrize("what", ["cold group", "deleted group", "unreadable topic"])
def test_who_may_read_no_more_waits_no_more(bench: Bench, what: str) -> None:
    wire = bench.connect()
    bench.store.set_group("H", True, 1)
    bench.store.set_topic("U", 4, 4, 6, True)
    assert wire.ask(holding_pull(opaque=1)) == []
    assert wire.ask(holding_pull(opaque=2, consumerGroup="H", topic="U")) == []
    bench.store.set_topic("Other", 4, 4, 6, True)
    wire.ask(send(b="Other"), pull(consumerGroup="H", topic="Other"))
    if what == "cold group":
        bench.store.set_group("G", False, 1)
    elif what == "deleted group":
        bench.store.delete_group("G")
    else:
        bench.store.set_topic("T", 4, 4, 2, True)
    assert bench.store.tick(NOW) is True
    ((answer,),) = bench.drain_ready().values()
    assert (answer.code, answer.opaque) == (19, 1)
    assert held(bench) == 1
    assert [row[:3] for row in bench.store.lag()] == [("H", "Other", 0)]
    # It is over once: who may read again waits as long as anybody.
    bench.store.set_group("G", True, 1)
    bench.store.set_topic("T", 4, 4, 6, True)
    assert wire.ask(holding_pull(opaque=3)) == []
    assert bench.store.tick(NOW) is False
    assert held(bench) == 2


@pytest.mark.parametrize("codes", [["b", "a"], None, "deleted"])
def test_a_group_that_wants_other_tags_now_is_passed_over_nothing(
    bench: Bench, codes: list[str] | str | None
) -> None:
    wire, sending = bench.connect(), bench.connect()
    bench.store.set_group("H", True, 1)
    bench.store.set_subscription("G", "T", 1, [java_hash("a")])
    for name, changes in {"G": {}, "H": {"sysFlag": 6}}.items():
        members = {"sysFlag": 2, "consumerGroup": name, "subscription": "a", **changes}
        assert wire.ask(holding_pull(**members)) == []
    sending.feed(send(b"1", i=properties(TAGS="b")))
    if codes == "deleted":
        bench.store.delete_subscription("G", "T")
    else:
        bench.store.set_subscription("G", "T", 2, codes and [java_hash(code) for code in codes])
    sending.feed(send(b"2", i=properties(TAGS="b")), send(b"3", i=properties(TAGS="a")))
    bench.store.tick(NOW)
    [other, answer] = bench.drain_ready()[wire.connection_id]
    assert [message.body for message in messages(other)] == [b"3"], "another group's"
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "0",
        "minOffset": "0",
        "maxOffset": "3",
    }
    if codes == "deleted":
        assert wire.is_cold(holding_pull(sysFlag=2, subVersion=1))
    else:
        (answer,) = wire.ask(holding_pull(sysFlag=2, subVersion=2))
        assert [message.body for message in messages(answer)] == [b"1", b"2", b"3"]


def test_a_heartbeat_with_the_same_tags_ends_no_pull(bench: Bench) -> None:
    wire = bench.connect()
    bench.store.set_subscription("G", "T", 1, [3, 5])
    assert wire.ask(holding_pull(sysFlag=2)) == []
    bench.store.set_subscription("G", "T", 2, [5, 3])
    bench.store.set_subscription("G", "U", 2, [5])
    bench.store.set_subscription("G", "U", 3, [6])
    bench.store.delete_subscription("G", "U")
    assert bench.store.tick(NOW) is False
    assert held(bench) == 1


def test_a_broker_that_stops_holds_no_pull(bench: Bench) -> None:
    wire = bench.connect()
    assert wire.ask(holding_pull(opaque=1)) == []
    bench.store.hold(1_000, 0, 2, "G", "T", 0, 0, 32, None, NOW + 60_000)
    bench.store.stop_holding()
    assert bench.store.tick(NOW) is True
    answers = [answer for (answer,) in bench.drain_ready().values()]
    assert sorted((answer.code, answer.opaque) for answer in answers) == [(19, 1), (19, 2)]
    # The same pull again, and one of its own: answered at once.
    for opaque in (1, 3):
        (answer,) = wire.ask(holding_pull(opaque=opaque))
        assert (answer.code, answer.opaque) == (19, opaque)
    assert held(bench) == 0


def test_holding_and_waking_for_ever_leaves_nothing_behind(bench: Bench) -> None:
    wire = bench.connect()
    for offset in range(3_000):
        answers, _, _, _ = wire.feed(
            holding_pull(queueOffset=offset, subscription="b || a", opaque=offset),
            send(opaque=-1, i=properties(TAGS="a")),
        )
        assert [answer.opaque for answer in commands(answers)] == [-1, offset]
    assert held(bench) == 0
    assert bench.store.tick(NOW + 10**9) is False


def test_closing_the_store_answers_no_held_pull(bench: Bench) -> None:
    # Answered from a store that is closed it would say that the queue is empty, and the consumer
    # would begin anew.
    wire = bench.connect()
    wire.ask(send(b"one"))
    assert wire.feed(holding_pull(queueOffset=1))[0] == b""
    bench.store.close()
    bench.store.tick(NOW + 10**9)
    assert bench.drain_ready() == {}


def test_a_pull_may_be_held_for_ever(bench: Bench) -> None:
    wire = bench.connect()
    assert bench.store.hold(wire.connection_id, 0, 7, "G", "T", 0, 0, 32, None, NOW + 2**63)
    assert wire.feed(holding_pull(suspendTimeoutMillis=2**63 - 1))[:2] == (b"", [])
    bench.store.tick(2**62)
    assert bench.drain_ready() == {}
    bench.append()
    assert len(bench.drain_ready()[wire.connection_id]) == 2


def test_the_tags_that_all_held_pulls_wait_for_are_bounded(bench: Bench) -> None:
    codes = list(range(4_000))
    pulls = HELD_CODES_MAX // len(codes)
    for opaque in range(pulls):
        assert bench.store.hold(1, 0, opaque, "G", "T", 0, 0, 32, codes, NOW + 1)
    assert not bench.store.hold(2, 0, 1, "G", "T", 0, 0, 32, [1], NOW + 1)
    wire = bench.connect()
    assert wire.is_cold(holding_pull(subscription="a"))
    assert wire.ask(holding_pull()) == []
    bench.kernel.Connection(bench.store, 1, BORN_HOST).close()
    assert wire.ask(holding_pull(subscription="a")) == []


def test_commits_that_nobody_takes_are_bounded(bench: Bench) -> None:
    bench.store.set_topic("Wide", 65_536, 65_536, 6, True)
    bench.append()
    wire = bench.connect()

    def committing(queue_id: int | str, offset: int) -> bytes:
        return pull(topic="Wide", queueId=queue_id, sysFlag=5, commitOffset=offset)

    assert COMMITS_MAX == 65_536
    header = committing("#", 1)[8:]
    for start in range(0, COMMITS_MAX, 64):
        numbers = [b"%d" % queue_id for queue_id in range(start, start + 64)]
        answers, cold, _flags, error = wire.feed(*(frame(header.replace(b"#", n)) for n in numbers))
        assert (cold, error) == ([], None)
        assert len(FrameDecoder().feed(answers)) == 64
    assert wire.is_cold(pull(sysFlag=5, commitOffset=1))
    assert len(wire.ask(pull(sysFlag=4))) == 1
    (answer,) = wire.ask(committing(7, 2))
    assert answer.code == 19
    taken = {queue_id: offset for _group, _topic, queue_id, offset in bench.store.drain_commits()}
    assert (len(taken), taken[7], taken[8]) == (COMMITS_MAX, 2, 1)
    assert len(wire.ask(pull(sysFlag=5, commitOffset=1))) == 1
