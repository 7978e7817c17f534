"""END_HALF_MESSAGES over the wire, and that a half is ended once, whoever ends it and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.half_messages import (
    ATTEMPTS_MAX,
    EndedHalves,
    HalfSelection,
    end_half_messages_request,
)
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.unit.broker.test_transactions import (
    COMMIT,
    GROUP,
    ROLLBACK,
    bodies,
    end,
    prepare,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.broker.services.writer import NewRecord, Unflushed
    from kerolox.protocol.command import RemotingCommand
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

ONE, TWO = "query/3/0/0", "query/3/1/0"


async def half_of(peer: Peer, attempt: str, key: str, **more: str) -> RemotingCommand:
    return await prepare(peer, key, KEROLOX_SINK=attempt, **more)


async def ask(
    peer: Peer,
    start: int = 0,
    stop: int = 1 << 40,
    *,
    commit: bool = True,
    group: str = GROUP,
    **selection: object,
) -> RemotingCommand:
    chosen = HalfSelection(**selection)  # type: ignore[arg-type]
    request = end_half_messages_request(group, start, stop, chosen, commit=commit)
    return await peer.ask(request.code, request.ext_fields, request.body)


async def end_range(
    peer: Peer, *attempts: str, start: int = 0, stop: int = 1 << 40, commit: bool = True
) -> EndedHalves:
    answer = await ask(peer, start, stop, commit=commit, attempts=list(attempts))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return EndedHalves.of(answer)


def refuse_puts(broker: Broker, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Records of a topic are too long for the store, and none is ended by the kernel."""
    monkeypatch.setattr(type(broker.parts.writing.bulk_ends), "_may_be_fast", False)
    put_now = broker.parts.writing.writer.put_now

    def refused(record: NewRecord) -> Unflushed:
        return put_now(replace(record, body=bytes(1 << 20)) if record.topic == topic else record)

    monkeypatch.setattr(broker.parts.writing.writer, "put_now", refused)


async def all_passed(broker: Broker) -> bool:
    """A run of the check passed all halves."""
    await broker.parts.writing.transactions.check()
    end = broker.parts.store.queue_bounds(HALF_TOPIC, 0)[1]
    return broker.parts.writing.transactions.ops.half_position == end


async def op_count(peer: Peer) -> int:
    return len(await peer.messages(OP_HALF_TOPIC))


async def test_the_halves_of_chosen_attempts_are_committed(any_peer: Peer) -> None:
    for key, attempt in (("a", ONE), ("b", TWO), ("c", "query/3/0/1"), ("d", ONE)):
        await half_of(any_peer, attempt, key)
    await prepare(any_peer, "not of a sink")
    done = await end_range(any_peer, ONE, TWO)
    assert (done.next_offset, done.max_offset, done.ended, done.ended_before) == (5, 5, 3, 0)
    assert await bodies(any_peer) == [b"a", b"b", b"d"]
    [first, *_] = await any_peer.messages("T", 2)
    assert first.sys_flag & 12 == COMMIT
    [half, *_] = await any_peer.messages(HALF_TOPIC)
    assert first.prepared_transaction_offset == half.commit_log_offset
    assert [op.body for op in await any_peer.messages(OP_HALF_TOPIC)] == [b"0", b"1", b"3"]


async def test_only_the_halves_of_the_range_are_ended(any_peer: Peer) -> None:
    for key in "abcd":
        await half_of(any_peer, ONE, key)
    done = await end_range(any_peer, ONE, start=1, stop=3)
    assert (done.next_offset, done.ended) == (3, 2)
    assert await bodies(any_peer) == [b"b", b"c"]
    assert (await end_range(any_peer, ONE, start=7, stop=9)).next_offset == 7
    assert (await end_range(any_peer, ONE, start=0, stop=0)).next_offset == 0


async def test_a_range_that_is_ended_again_stores_nothing(any_peer: Peer) -> None:
    for key in "ab":
        await half_of(any_peer, ONE, key)
    for ended, before in ((2, 0), (0, 2)):
        done = await end_range(any_peer, ONE)
        assert (done.ended, done.ended_before) == (ended, before)
    done = await end_range(any_peer, ONE, commit=False)
    assert (done.ended, done.ended_before) == (0, 2)
    assert await bodies(any_peer) == [b"a", b"b"]
    assert await op_count(any_peer) == 2


async def test_a_half_that_end_transaction_ended_is_not_ended_by_range(any_peer: Peer) -> None:
    kept, dropped = await half_of(any_peer, ONE, "kept"), await half_of(any_peer, ONE, "dropped")
    await half_of(any_peer, ONE, "open")
    await end(any_peer, kept, COMMIT)
    await end(any_peer, dropped, ROLLBACK)
    done = await end_range(any_peer, ONE)
    assert (done.ended, done.ended_before) == (1, 2)
    assert await bodies(any_peer) == [b"kept", b"open"]
    for half in (kept, dropped):
        assert (await end(any_peer, half, COMMIT)).code == ResponseCode.SUCCESS
    assert await bodies(any_peer) == [b"kept", b"open"]
    assert await op_count(any_peer) == 3


@pytest.mark.parametrize("is_checked", [False, True])
async def test_a_rolled_back_half_can_not_be_committed_after_a_restart(
    tmp_path: Path, kernel: str, is_checked: bool
) -> None:
    config = small_config(tmp_path, message_index_enable=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        halves = [await half_of(peer, ONE, key) for key in "abc"]
        await end(peer, halves[0], ROLLBACK)
        await end(peer, halves[1], COMMIT)
        if is_checked:
            await broker.parts.writing.transactions.check()
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        for half in halves[:2]:
            await end(peer, half, COMMIT)
        assert await bodies(peer) == [b"b"]
        done = await end_range(peer, ONE)
        assert (done.ended, done.ended_before) == (1, 2)
        assert await bodies(peer) == [b"b", b"c"]
        assert await op_count(peer) == 3


async def test_copies_that_the_check_made_are_one_with_their_half(
    tmp_path: Path, kernel: str
) -> None:
    # Without an index nothing but the copies themselves tells whose they are.
    config = small_config(tmp_path, transaction_time_out=1, message_index_enable=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        transactions = broker.parts.writing.transactions
        for key in "ab":
            await half_of(peer, ONE, key)

        async def are_copied_twice() -> bool:
            await transactions.check()
            return len(await peer.messages(HALF_TOPIC)) >= 6

        await until(are_copied_twice)
        done = await end_range(peer, ONE, stop=2)
        assert (done.ended, done.ended_before) == (2, 0)
        # A range over originals and copies has each half once.
        done = await end_range(peer, ONE)
        assert (done.ended, done.ended_before) == (0, 2)
        count = len(await peer.messages(HALF_TOPIC))
        await until(lambda: all_passed(broker))
        assert len(await peer.messages(HALF_TOPIC)) == count, "an ended half is asked about"
        assert await bodies(peer) == [b"a", b"b"]


async def test_an_end_of_a_copy_is_that_of_its_half(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, transaction_time_out=1, message_index_enable=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        half = await half_of(peer, ONE, "a")
        await until(broker.parts.writing.transactions.check)
        copy = (await peer.messages(HALF_TOPIC))[1]
        assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        place = {"tranStateTableOffset": 1, "commitLogOffset": copy.commit_log_offset}
        assert (await end(peer, half, COMMIT, **place)).code == ResponseCode.SUCCESS
        assert [op.body for op in await peer.messages(OP_HALF_TOPIC)] == [b"0", b"1"]
        done = await end_range(peer, ONE)
        assert (done.ended, done.ended_before) == (0, 1)
        await end(peer, half, COMMIT)
        assert await bodies(peer) == [b"a"]
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await end(peer, half, COMMIT)
        assert (await end_range(peer, ONE)).ended == 0
        assert await bodies(peer) == [b"a"]


async def test_a_half_that_was_set_aside_is_committed_once(tmp_path: Path, kernel: str) -> None:
    config = small_config(
        tmp_path, transaction_time_out=1, transaction_check_max=1, message_index_enable=False
    )
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        half = await half_of(peer, ONE, "a")

        async def is_set_aside() -> bool:
            await broker.parts.writing.transactions.check()
            return CHECK_MAX_TIME_TOPIC in broker.parts.tables.topics

        await until(is_set_aside)
        assert (await end_range(peer, ONE, stop=1)).ended == 1
        assert (await end_range(peer, ONE)).ended == 0
        await end(peer, half, COMMIT)
        assert await bodies(peer) == [b"a"]


async def test_a_producer_can_not_say_that_its_half_is_that_of_another(any_peer: Peer) -> None:
    victim = await half_of(any_peer, ONE, "victim")
    liar = await half_of(any_peer, TWO, "liar", TRAN_PREPARED_QUEUE_OFFSET="0")
    await end(any_peer, liar, COMMIT)
    await end(any_peer, victim, COMMIT)
    assert await bodies(any_peer) == [b"liar", b"victim"]


async def test_a_query_is_rolled_back_up_to_a_batch_but_for_what_is_kept(any_peer: Peer) -> None:
    for number, attempt in enumerate(("q/1/0/0", "q/2/0/0", "q/2/0/1", "q/3/0/0", "p/1/0/0", "q")):
        await half_of(any_peer, attempt, str(number))
    answer = await ask(any_peer, commit=False, query="q", last_batch=2, keep=["q/2/0/1"])
    assert EndedHalves.of(answer).ended == 2
    assert [op.body for op in await any_peer.messages(OP_HALF_TOPIC)] == [b"0", b"1"]


async def test_halves_of_another_group_are_left_alone(any_peer: Peer) -> None:
    await half_of(any_peer, ONE, "a")
    answer = await ask(any_peer, group="others", attempts=[ONE])
    assert EndedHalves.of(answer).ended == 0
    assert await op_count(any_peer) == 0


@pytest.mark.parametrize(
    ("change", "body", "remark"),
    [
        ({"commitOrRollback": 0}, b"", "commitOrRollback is 0"),
        ({"fromOffset": -1}, b"", "fromOffset is -1"),
        ({}, b'{"attempts":[', "HalfSelection"),
        ({}, b'{"attempts":["' + b"x" * 256 + b'"]}', "256 bytes"),
        ({}, b'{"query":"q","lastBatch":1}', "rolled back only"),
        ({"commitOrRollback": 12}, b'{"query":"q","attempts":["a"]}', "without attempts"),
        ({}, b'{"keep":["a"]}', "go with a query"),
        ({}, b'{"attempts":[%s]}' % b",".join([b'"a"'] * (ATTEMPTS_MAX + 1)), "at most 10000"),
        ({}, b" " * (1 << 20) + b"{}", "at most"),
        ({"toOffset": None}, b"", "toOffset"),
        ({"producerGroup": "g" * 256}, b"", "producerGroup"),
    ],
)
async def test_a_request_that_means_nothing_is_refused(
    peer: Peer, change: dict[str, object], body: bytes, remark: str
) -> None:
    fields: dict[str, object] = {
        "producerGroup": GROUP,
        "fromOffset": 0,
        "toOffset": 10,
        "commitOrRollback": COMMIT,
        **change,
    }
    answer = await peer.ask(RequestCode.END_HALF_MESSAGES, fields, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


@pytest.mark.parametrize("bound", ["REQUEST_HALVES_MAX", "SLICE_BYTES", "SLICE_HALVES"])
async def test_one_request_does_so_much_and_tells_how_far_it_came(
    any_peer: Peer, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    for number in range(5):
        await half_of(any_peer, ONE, str(number))
    monkeypatch.setattr(f"kerolox.broker.services.bulk_ends.{bound}", 2 if "HALVES" in bound else 1)
    done = await end_range(any_peer, ONE)
    assert done.next_offset == (2 if bound == "REQUEST_HALVES_MAX" else 5)
    assert done.ended == done.next_offset
    assert done.max_offset == 5


async def test_a_put_that_fails_leaves_its_half_open(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "ab":
        await half_of(peer, ONE, key)
    refuse_puts(broker, monkeypatch, "T")
    answer = await ask(peer, attempts=[ONE])
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "at half message 0" in (answer.remark or "")
    monkeypatch.undo()
    assert (await end_range(peer, ONE)).ended == 2
    assert await bodies(peer) == [b"a", b"b"]


async def test_a_note_that_can_not_be_stored_is_written_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        half = await half_of(peer, ONE, "a")
        refuse_puts(broker, monkeypatch, OP_HALF_TOPIC)
        assert (await end_range(peer, ONE)).ended == 1
        monkeypatch.undo()
        await end(peer, half, COMMIT)
        assert await bodies(peer) == [b"a"]
        assert await op_count(peer) == 0
        await until(lambda: all_passed(broker))
        assert await op_count(peer) == 1


async def test_halves_in_the_transient_pool_are_waited_for(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.requests.transaction.COMMIT_SECONDS_MAX", 30.0)
    config = small_config(tmp_path, transient_store_pool_enable=True)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for key in "ab":
            await half_of(peer, ONE, key)
        assert (await end_range(peer, ONE)).ended == 2
        await until(lambda: broker.parts.store.queue_bounds("T", 2)[1] == 2)
        assert await bodies(peer) == [b"a", b"b"]


async def test_under_sync_flush_the_answer_comes_when_all_is_on_disk(
    tmp_path: Path, kernel: str
) -> None:
    config = small_config(tmp_path, flush_disk_type="SYNC_FLUSH")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await half_of(peer, ONE, "a")
        assert (await end_range(peer, ONE)).ended == 1
        assert broker.parts.store.flushed_offset == broker.parts.store.max_physical_offset


@pytest.mark.parametrize("is_range", [False, True])
async def test_a_note_that_a_crash_took_is_there_before_anybody_is_served(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch, is_range: bool
) -> None:
    config = small_config(tmp_path, message_index_enable=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        half = await half_of(peer, ONE, "a")
        await half_of(peer, TWO, "b")
        monkeypatch.setattr(broker.parts.writing.transactions, "_note", lambda half: None)
        await (end_range(peer, ONE) if is_range else end(peer, half, COMMIT))
        assert await bodies(peer) == [b"a"]
    monkeypatch.undo()
    (tmp_path / "store" / "abort").touch()
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert [op.body for op in await peer.messages(OP_HALF_TOPIC)] == [b"0"]
        assert broker.parts.writing.transactions.open_halves == 1
        await end(peer, half, COMMIT)
        done = await end_range(peer, ONE, TWO)
        assert (done.ended, done.ended_before) == (1, 1)
        assert await bodies(peer) == [b"a", b"b"]
