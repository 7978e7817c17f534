"""Transactions, over the wire: half messages, their ends, the checks, and what a restart leaves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.errors import StoreError
from kerolox.message import MessageId, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from kerolox.protocol.records import decode_record
from kerolox.store.flush import CommitLogFlusher
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.broker.services.writer import NewRecord, Put
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

GROUP = "transaction-producers"
COMMIT, ROLLBACK, UNDECIDED = 8, 12, 0


def half_properties(key: str, **more: str) -> str:
    return encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key, **more})


async def prepare(peer: Peer, key: str = "U1", ahead_ms: int = -10, **more: str) -> RemotingCommand:
    text = half_properties(key, **more)
    born = time.time_ns() // 1_000_000 + ahead_ms
    answer = await peer.send("T", key.encode(), queue_id=2, properties=text, g=born)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def end_fields(half: RemotingCommand, decision: int, **changes: object) -> dict[str, object]:
    fields = half.ext_fields
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": MessageId.parse(fields["msgId"]).physical_offset,
        "commitOrRollback": decision,
        "fromTransactionCheck": False,
        "msgId": "U1",
        "transactionId": "U1",
        **changes,
    }


async def end(
    peer: Peer, half: RemotingCommand, decision: int, **changes: object
) -> RemotingCommand:
    return await peer.ask(RequestCode.END_TRANSACTION, end_fields(half, decision, **changes))


async def bodies(peer: Peer, topic: str = "T", queue_id: int = 2) -> list[bytes]:
    return [message.body for message in await peer.messages(topic, queue_id)]


async def test_a_half_message_is_not_seen_before_its_commit(any_peer: Peer) -> None:
    half = await prepare(any_peer)
    assert await bodies(any_peer) == []
    assert (await end(any_peer, half, COMMIT)).code == ResponseCode.SUCCESS
    [message] = await any_peer.messages("T", 2)
    assert message.body == b"U1"
    assert message.sys_flag & 12 == COMMIT
    physical_offset = MessageId.parse(half.ext_fields["msgId"]).physical_offset
    assert message.prepared_transaction_offset == physical_offset
    # The text stays that of the half.
    assert message.properties["TRAN_MSG"] == "true"
    assert message.properties["REAL_TOPIC"] == "T"
    assert message.properties["REAL_QID"] == "2"


async def test_the_answer_to_a_half_has_its_transaction_as_clients_of_5_need_it(
    any_peer: Peer,
) -> None:
    # The first half makes the topic of halves: the slow path; the next ones may be fast.
    told = [(await prepare(any_peer, key)).ext_fields["transactionId"] for key in ("U1", "U2")]
    assert told == ["U1", "U2"]
    text = half_properties("U" * 256)
    assert "transactionId" not in (await any_peer.send("T", properties=text)).ext_fields
    text = encode_properties({"UNIQ_KEY": "U4"})
    assert "transactionId" not in (await any_peer.send("T", properties=text)).ext_fields


async def test_an_end_waits_for_a_half_that_is_in_the_transient_pool(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A disk may pause for longer than an end waits.
    monkeypatch.setattr("kerolox.broker.requests.transaction.COMMIT_SECONDS_MAX", 30.0)
    config = small_config(tmp_path, transient_store_pool_enable=True)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        kept, dropped = await prepare(peer, "kept"), await prepare(peer, "dropped")
        assert (await end(peer, kept, COMMIT)).code == ResponseCode.SUCCESS
        assert (await end(peer, dropped, ROLLBACK)).code == ResponseCode.SUCCESS
        await until(lambda: broker.parts.store.queue_bounds("T", 2)[1] == 1)
        assert await bodies(peer) == [b"kept"]
        assert (await end(peer, kept, COMMIT, commitLogOffset=1 << 40)).code == 1


async def test_half_and_op_lie_where_rocketmq_keeps_them(any_peer: Peer) -> None:
    half = await prepare(any_peer)
    await end(any_peer, half, COMMIT)
    [stored] = await any_peer.messages(HALF_TOPIC)
    assert stored.sys_flag & 12 == 0
    assert stored.properties["REAL_TOPIC"] == "T"
    [op] = await any_peer.messages(OP_HALF_TOPIC)
    assert (op.tags, op.body) == ("d", b"0")


async def test_a_rollback_is_never_seen(any_peer: Peer) -> None:
    half = await prepare(any_peer)
    assert (await end(any_peer, half, ROLLBACK)).code == ResponseCode.SUCCESS
    assert await bodies(any_peer) == []
    assert len(await any_peer.messages(OP_HALF_TOPIC)) == 1


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"producerGroup": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
    ],
)
async def test_an_end_that_names_no_half_is_refused(
    peer: Peer, change: dict[str, object], remark: str
) -> None:
    half = await prepare(peer)
    answer = await end(peer, half, COMMIT, **change)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert await bodies(peer) == []


async def test_a_message_that_is_no_half_can_not_be_committed(peer: Peer) -> None:
    plain = await peer.send("T", b"plain", properties=encode_properties({"PGROUP": GROUP}))
    answer = await end(peer, plain, COMMIT)
    assert answer.remark == "Find prepared transaction message failed"


async def test_a_second_commit_stores_nothing_again(any_peer: Peer) -> None:
    half = await prepare(any_peer)
    for _ in range(3):
        assert (await end(any_peer, half, COMMIT)).code == ResponseCode.SUCCESS
    assert await bodies(any_peer) == [b"U1"]
    assert len(await any_peer.messages(OP_HALF_TOPIC)) == 1


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, reject_transaction_message=True)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.send("T", properties=half_properties("U1"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")


async def asked(peer: Peer) -> list[RemotingCommand]:
    return [n for n in peer.notices if n.code == RequestCode.CHECK_TRANSACTION_STATE]


async def test_an_open_half_is_asked_about_and_its_answer_counts(
    tmp_path: Path, kernel: str
) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", "", producers=[GROUP])
        half = await prepare(peer)
        await until(broker.parts.writing.transactions.check)
        await until(lambda: asked(peer))
        [question] = await asked(peer)
        message, _ = decode_record(question.body)
        assert (message.topic, message.queue_id, message.body) == ("T", 2, b"U1")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert question.ext_fields["transactionId"] == "U1"
        assert question.ext_fields["tranStateTableOffset"] == "1"
        answer = await end(
            peer,
            half,
            COMMIT,
            tranStateTableOffset=1,
            commitLogOffset=question.ext_fields["commitLogOffset"],
            fromTransactionCheck=True,
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await bodies(peer) == [b"U1"]
        # The producer's own end comes late: nothing is stored twice.
        assert (await end(peer, half, COMMIT)).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"U1"]
        await broker.parts.writing.transactions.check()
        assert broker.parts.writing.transactions.open_halves == 0
        assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 2


async def test_no_half_is_passed_for_a_copy_that_a_failed_flush_left_off_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(flusher: CommitLogFlusher, index: int) -> None:
        raise OSError("the disk failed")

    config = small_config(
        tmp_path, transaction_time_out=1, transaction_check_interval=3_600_000,
        flush_disk_type="SYNC_FLUSH",
    )  # fmt: skip
    async with Broker(config, kernel="python") as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await prepare(peer)
        offsets, transactions = broker.parts.tables.offsets, broker.parts.writing.transactions
        with monkeypatch.context() as patches:
            patches.setattr(CommitLogFlusher, "_sync_file", fail)

            async def is_copied() -> bool:
                # The half has to be older than a millisecond.
                await transactions.check()
                return broker.parts.store.queue_bounds(HALF_TOPIC, 0) == (0, 2)

            await until(is_copied, what="the copy of a half")
        assert offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) <= 0
    async with Broker(config, kernel="python") as broker:
        assert broker.parts.writing.transactions.open_halves == 2


async def test_an_undecided_end_is_not_answered_and_the_half_stays_open(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", "", producers=[GROUP])
        half = await prepare(peer)
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, end_fields(half, UNDECIDED))
        await peer.client.invoke_oneway(peer.address, command)
        await until(broker.parts.writing.transactions.check)
        assert broker.parts.writing.transactions.open_halves == 1


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ({"transactionId": "t1", "msgId": "m1"}, "transaction t1 of "),
        ({"transactionId": "", "msgId": "m1"}, "transaction m1 of "),
        ({"transactionId": "", "msgId": ""}, "transaction at offset 4711 of "),
    ],
)
async def test_an_undecided_end_is_told_with_the_id_that_there_is(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture, ids: dict[str, str], shown: str
) -> None:
    fields: dict[str, object] = {
        "producerGroup": GROUP,
        "tranStateTableOffset": 0,
        "commitLogOffset": 4711,
        "commitOrRollback": UNDECIDED,
    }
    caplog.set_level("INFO")
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, fields | ids)
    await peer.client.invoke_oneway(peer.address, command)
    await until(lambda: "is undecided" in caplog.text)
    assert shown in caplog.text


async def test_a_young_half_is_left_alone(broker: Broker, peer: Peer) -> None:
    text = half_properties("U1")
    await peer.send("T", b"x", properties=text, g=broker.parts.now_ms())
    assert await broker.parts.writing.transactions.check() == 0
    assert len(await peer.messages(HALF_TOPIC)) == 1


async def test_an_immunity_of_its_own_holds_nobody_up(tmp_path: Path) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        now = broker.parts.now_ms() - 5
        immune = half_properties("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        await peer.send("T", b"immune", properties=immune, g=now)
        await peer.send("T", b"other", properties=half_properties("U2"), g=now)
        await until(broker.parts.writing.transactions.check)
        halves = await peer.messages(HALF_TOPIC)
        again = [
            half
            for half in halves
            if "TRAN_PREPARED_QUEUE_OFFSET" in half.properties
            and "TRANSACTION_CHECK_TIMES" not in half.properties
        ]
        assert [half.body for half in again] == [b"immune"] * len(again)
        assert again[0].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        assert any(h.properties.get("TRANSACTION_CHECK_TIMES") == "1" for h in halves)


async def test_after_too_many_checks_a_half_is_set_aside_until_an_operator_resumes_it(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path, transaction_time_out=1, transaction_check_max=2)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await prepare(peer)

        async def is_set_aside() -> bool:
            await broker.parts.writing.transactions.check()
            return CHECK_MAX_TIME_TOPIC in broker.parts.tables.topics

        await until(is_set_aside)
        [message] = await peer.messages(CHECK_MAX_TIME_TOPIC)
        assert message.body == b"U1"
        assert broker.parts.writing.transactions.open_halves == 0

        named = {"msgId": MessageId("127.0.0.1", 1, message.commit_log_offset).text}
        answer = await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, named)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        halves = await peer.messages(HALF_TOPIC)
        assert halves[-1].body == b"U1"
        assert halves[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
        for text in ("", "x", MessageId("127.0.0.1", 1, message.commit_log_offset + 1).text):
            answer = await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": text})
            assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_every_state_survives_a_restart(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        halves = {key: await prepare(peer, key) for key in ("U1", "U2", "U3")}
        await end(peer, halves["U1"], COMMIT)
        await end(peer, halves["U3"], ROLLBACK)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert broker.parts.writing.transactions.open_halves == 1
        assert await bodies(peer) == [b"U1"]
        for key, decision in (("U1", COMMIT), ("U2", COMMIT), ("U3", ROLLBACK)):
            assert (await end(peer, halves[key], decision)).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"U1", b"U2"]
        assert broker.parts.writing.transactions.open_halves == 0


@pytest.mark.parametrize(
    ("producer_ahead_ms", "set_back_ms"), [(-10, 0), (60_000, 0), (-10, 3_600_000)]
)
async def test_a_commit_whose_note_a_crash_took_is_not_stored_twice(
    tmp_path: Path,
    kernel: str,
    monkeypatch: pytest.MonkeyPatch,
    producer_ahead_ms: int,
    set_back_ms: int,
) -> None:
    """Whatever the clock of the producer says, and though the broker's is set back."""
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        half = await prepare(peer, ahead_ms=producer_ahead_ms)

        def forget(_: object) -> None:
            """As when the process dies before the note."""

        monkeypatch.setattr(broker.parts.writing.transactions, "_note", forget)
        await end(peer, half, COMMIT)
        assert await bodies(peer) == [b"U1"]
    monkeypatch.undo()

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 - set_back_ms

    later = Broker(config, kernel=kernel, clock_ms=now_ms)
    async with later as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", "", producers=[GROUP])
        await end(peer, half, COMMIT)
        await broker.parts.writing.transactions.check()
        assert await bodies(peer) == [b"U1"]
        assert broker.parts.writing.transactions.open_halves == 0


async def test_a_half_that_was_ended_while_it_was_immune_is_not_asked_about(
    tmp_path: Path, kernel: str
) -> None:
    # Without an index nothing else would tell that it was committed.
    config = small_config(tmp_path, transaction_time_out=1, message_index_enable=False)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", "", producers=[GROUP])
        half = await prepare(peer, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        end_of_immunity = broker.parts.now_ms() + 1000

        async def is_put_again() -> bool:
            await broker.parts.writing.transactions.check()
            return len(await peer.messages(HALF_TOPIC)) > 1

        await until(is_put_again)
        # Its producer knows it by the place where it was first.
        await end(peer, half, COMMIT)
        await until(lambda: broker.parts.now_ms() > end_of_immunity)
        assert await broker.parts.writing.transactions.check() == 0
        assert broker.parts.writing.transactions.open_halves == 0
        assert await bodies(peer) == [b"U1"]


async def test_an_immunity_that_is_no_number_is_the_time_out_of_the_broker(
    broker: Broker, peer: Peer
) -> None:
    text = half_properties("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    await peer.send("T", b"x", properties=text, g=broker.parts.now_ms())
    stored_ms = (await peer.messages(HALF_TOPIC))[0].store_timestamp
    await until(lambda: broker.parts.now_ms() > stored_ms)
    assert await broker.parts.writing.transactions.check() == 0
    assert broker.parts.writing.transactions.open_halves == 1


async def test_the_immunity_of_a_producer_whose_clock_is_ahead_counts_from_its_time(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path, transaction_time_out=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        born = broker.parts.now_ms() + 60_000
        for key, more in (("U1", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}), ("U2", {})):
            await peer.send("T", key.encode(), properties=half_properties(key, **more), g=born)
        stored_ms = (await peer.messages(HALF_TOPIC))[1].store_timestamp
        await until(lambda: broker.parts.now_ms() > stored_ms)
        assert await broker.parts.writing.transactions.check() == 1
        checked = {
            half.body: half.properties.get("TRANSACTION_CHECK_TIMES")
            for half in await peer.messages(HALF_TOPIC)
        }
        assert checked == {b"U1": None, b"U2": "1"}


async def test_a_half_that_can_not_be_set_aside_stays_a_half(tmp_path: Path) -> None:
    config = small_config(tmp_path, transaction_time_out=1, transaction_check_max=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await prepare(peer)
        await until(broker.parts.writing.transactions.check)
        stored_ms = (await peer.messages(HALF_TOPIC))[1].store_timestamp
        await until(lambda: broker.parts.now_ms() > stored_ms)
        broker.parts.writing.gate.set_writable(False)
        with pytest.raises(StoreError, match=r"half message 1 is not set aside: SERVICE_NOT"):
            await broker.parts.writing.transactions.check()
        assert broker.parts.writing.transactions.open_halves == 1
        broker.parts.writing.gate.set_writable(True)
        assert await broker.parts.writing.transactions.check() == 0
        assert broker.parts.writing.transactions.open_halves == 0
        assert [m.body for m in await peer.messages(CHECK_MAX_TIME_TOPIC)] == [b"U1"]


async def test_a_half_is_asked_about_once_even_when_no_check_is_allowed(tmp_path: Path) -> None:
    config = small_config(tmp_path, transaction_time_out=1, transaction_check_max=0)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", "", producers=[GROUP])
        await prepare(peer)
        await until(broker.parts.writing.transactions.check)
        await until(lambda: asked(peer))


async def test_a_half_older_than_the_log_s_files_is_set_aside_unasked(tmp_path: Path) -> None:
    config = small_config(tmp_path, transaction_time_out=1, file_reserved_time=1)
    async with Broker(config) as broker, peer_of(broker) as peer:
        born = broker.parts.now_ms() - 3_600_001
        await peer.send("T", b"old", properties=half_properties("U1"), g=born)

        async def is_set_aside() -> bool:
            assert await broker.parts.writing.transactions.check() == 0
            return CHECK_MAX_TIME_TOPIC in broker.parts.tables.topics

        await until(is_set_aside)
        assert [m.body for m in await peer.messages(CHECK_MAX_TIME_TOPIC)] == [b"old"]


async def test_a_half_that_is_ended_while_it_is_put_again_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, transaction_time_out=1, message_index_enable=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        half = await prepare(peer, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        end_of_immunity = broker.parts.now_ms() + 1000
        put = broker.parts.writing.writer.put

        async def ended_meanwhile(record: NewRecord) -> Put:
            monkeypatch.undo()
            done = await put(record)
            await end(peer, half, ROLLBACK)
            return done

        stored_ms = (await peer.messages(HALF_TOPIC))[0].store_timestamp
        await until(lambda: broker.parts.now_ms() > stored_ms)
        monkeypatch.setattr(broker.parts.writing.writer, "put", ended_meanwhile)
        await broker.parts.writing.transactions.check()
        assert len(await peer.messages(HALF_TOPIC)) == 2
        await until(lambda: broker.parts.now_ms() > end_of_immunity)
        assert await broker.parts.writing.transactions.check() == 0
        assert broker.parts.writing.transactions.open_halves == 0
        # Both notes are passed, that of the half and that of its copy.
        assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) == 2


def kept_numbers(broker: Broker) -> int:
    """How much the transactions of a broker remember."""
    values = vars(broker.parts.writing.transactions.ops).values()
    return sum(len(value) for value in values if isinstance(value, (set, dict, list)))


async def test_op_messages_behind_one_that_waits_for_its_half_take_no_room(tmp_path: Path) -> None:
    count = 100_000
    async with Broker(small_config(tmp_path)) as broker:
        ops = broker.parts.writing.transactions.ops
        assert broker.parts.writing.transactions.open_halves == 0
        ops.know(count, 0)
        most = 0
        for half in range(count):
            # It comes before its position does.
            ops.know(half + 1 if half % 2 == 0 else half - 1, half + 1)
            most = max(most, kept_numbers(broker)) if half % 1_000 == 0 else most
        ops.keep_positions(ops.positions())
        assert most < 12_000
        assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == count + 1
        assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) == count + 1


async def test_runs_of_ended_halves_behind_an_open_one_take_no_room(tmp_path: Path) -> None:
    async with Broker(small_config(tmp_path)) as broker:
        ops = broker.parts.writing.transactions.ops
        assert broker.parts.writing.transactions.open_halves == 0
        for run in range(100):
            ops.know_run(1 + 1_000 * run, 1_000, 1_000 * run)
        assert kept_numbers(broker) < 200
        ops.keep_positions(ops.positions())
        assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) in (-1, 0)
        ops.know(0, 100_000)
        ops.keep_positions(ops.positions())
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            assert broker.parts.tables.offsets.query(TRANSACTION_GROUP, topic, 0) == 100_001


async def test_the_op_position_waits_for_notes_on_their_way_but_not_for_all(tmp_path: Path) -> None:
    async with Broker(small_config(tmp_path)) as broker:
        ops = broker.parts.writing.transactions.ops
        assert broker.parts.writing.transactions.open_halves == 0

        def position() -> int:
            ops.keep_positions(ops.positions())
            return broker.parts.tables.offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0)

        ops.know(0, 0)
        ops.know(1, 2)
        assert position() == 1, "the note before the last is not known"
        ops.know(2, 1)
        assert position() == 3
        # Notes that never become known, one after each that does.
        for half in range(3, 30_003):
            ops.know(half, 2 * half)
        assert kept_numbers(broker) < 25_000
        assert position() > 2 * 10_000
