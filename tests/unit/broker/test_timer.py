"""Messages for a moment in a broker whose clock the test turns, on each kernel."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.services.timed_puts import TimedPuts
from kerolox.broker.services.timer import TimerService
from kerolox.errors import StoreError
from kerolox.message import MessageExt, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.protocol.records import encode_batch
from kerolox.store.timer.files import TimerStore
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import SECONDS_MAX, until

pytestmark = pytest.mark.asyncio

HOUR_MS = 3_600_000
SERVED_SECONDS_MAX = 0.1
"""So long a send may take while very many messages are delivered."""


@asynccontextmanager
async def running(
    folder: Path, kernel: str, clock: Callable[[], int], **settings: Any
) -> AsyncIterator[tuple[Broker, Peer]]:
    config = small_config(folder, **settings)
    async with Broker(config, kernel=kernel, clock_ms=clock) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        yield broker, peer


def text(**properties: object) -> str:
    return encode_properties({name: str(value) for name, value in properties.items()})


async def bodies(peer: Peer, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in await peer.messages("T", queue_id)]


async def comes(peer: Peer, count: int = 1, queue_id: int = 0) -> list[MessageExt]:
    async def has_come() -> bool:
        return len(await peer.messages("T", queue_id)) >= count

    await until(has_come, what="a message for a moment")
    return await peer.messages("T", queue_id)


async def enqueued(broker: Broker, count: int) -> None:
    def are_enqueued() -> bool:
        timer = broker.parts.writing.timer.timer
        return timer is not None and timer.queue_offset >= count

    await until(are_enqueued, what="the wheel")


# -- puts -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMER_DELAY_SEC", HOUR_MS // 1_000),
        ("TIMER_DELAY_MS", HOUR_MS),
        ("TIMER_DELIVER_MS", None),
    ],
)
async def test_a_message_comes_at_its_moment_and_not_before(
    tmp_path: Path, kernel: str, name: str, value: int | None
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        due_ms = clock() + HOUR_MS
        given = text(UNIQ_KEY="k", TAGS="a", **{name: value or due_ms})
        answer = await peer.send("T", b"later", queue_id=2, properties=given)
        assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "2")
        await enqueued(broker, 1)
        clock.ahead_ms += HOUR_MS - 2_000
        await broker.parts.writing.timer.turn()
        assert await bodies(peer, 2) == []
        clock.ahead_ms += 4_000
        [message] = await comes(peer, queue_id=2)
        assert (message.body, message.tags, message.queue_id) == (b"later", "a", 2)
        assert message.properties[name] == str(value or due_ms)
        assert int(message.properties["TIMER_OUT_MS"]) // 1_000 == (due_ms - 1) // 1_000 or value
        assert message.properties["REAL_TOPIC"] == "T"
        assert message.store_timestamp <= clock() + 1_000
        # Tags of the real topic's queue are those of the message.
        answer = await peer.pull("T", 2, tags="a")
        assert answer.code == ResponseCode.SUCCESS


async def test_levels_count_more_and_what_is_over_comes_at_once(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.send("T", b"past", properties=text(TIMER_DELIVER_MS=clock() - 5))
        assert await bodies(peer) == [b"past"]
        await peer.send("T", b"level", properties=text(TIMER_DELAY_SEC=9, DELAY=18))
        bounds = broker.parts.store.queue_bounds
        assert bounds("SCHEDULE_TOPIC_XXXX", 17) == (0, 1)
        assert bounds(TIMER_TOPIC, 0) == (0, 0)
        assert TIMER_TOPIC not in broker.parts.tables.topics


@pytest.mark.parametrize(
    ("properties", "code", "words"),
    [
        ({"TIMER_DELAY_SEC": "x"}, 13, 'TIMER_DELAY_SEC is no number: "x"'),
        ({"TIMER_DELAY_SEC": 3 * 86_400 + 9}, 13, "bigger than the max delay 259200000ms"),
        ({"TIMER_DELAY_MS": 1 << 70}, 13, "timer message illegal"),
        ({"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "T+k"}, 13, "is over"),
        ({"TIMER_DELAY_SEC": 9, "TIMER_DEL_UNIQKEY": "U+k"}, 13, "another topic than T"),
    ],
)
async def test_a_moment_that_cannot_be_is_refused_with_rocketmq_s_text(
    tmp_path: Path, kernel: str, properties: dict[str, object], code: int, words: str
) -> None:
    async with running(tmp_path, kernel, Clock()) as (broker, peer):
        answer = await peer.send("T", properties=text(**properties))
        assert answer.code == code
        assert words in (answer.remark or "")
        assert answer.ext_fields["TRACE_ON"] == "true"
        assert broker.parts.store.max_physical_offset == 0


async def test_of_two_moments_that_disagree_the_delay_counts(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        over, far = clock() - HOUR_MS, clock() + HOUR_MS
        await peer.send("T", b"a", properties=text(TIMER_DELAY_SEC=60, TIMER_DELIVER_MS=over))
        await peer.send("T", b"b", properties=text(TIMER_DELAY_MS=-1, TIMER_DELIVER_MS=far))
        assert await bodies(peer) == [b"b"]
        await enqueued(broker, 1)
        clock.ahead_ms += 62_000
        assert [each.body for each in await comes(peer, 2)] == [b"b", b"a"]


async def test_a_body_as_large_as_may_be_comes_whole_also_when_it_was_stored_again(
    tmp_path: Path, kernel: str
) -> None:
    clock, size = Clock(), 4 << 20
    settings: dict[str, Any] = {
        "max_message_size": size,
        "mapped_file_size_commit_log": 32 << 20,
        "timer_roll_window_slot": 600,
    }
    async with running(tmp_path, kernel, clock, **settings) as (broker, peer):
        body = bytes(range(256)) * (size // 256)
        for number, seconds in enumerate((60, 3_600)):
            given = text(TIMER_DELAY_SEC=seconds, UNIQ_KEY=number)
            answer = await peer.send("T", body, properties=given)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        answer = await peer.send("T", body + b"x", properties=text(TIMER_DELAY_SEC=60))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        await enqueued(broker, 2)
        for _ in range(9):
            clock.ahead_ms += 601_000
            await broker.parts.writing.timer.turn()
        found = [*(await comes(peer)), *(await peer.messages("T", offset=1))]
        assert [each.body == body for each in found] == [True, True]
        assert int(found[1].properties["TIMER_ROLL_TIMES"]) >= 5


async def test_very_many_of_one_second_all_come_and_others_are_served_meanwhile(
    tmp_path: Path, kernel: str
) -> None:
    clock, packs, size = Clock(), 20, 500
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 16 << 20,
        "mapped_file_size_consume_queue": 400_000,
        "max_index_num": 100_000,
    }
    async with running(tmp_path, kernel, clock, **settings) as (broker, peer):
        given = text(TIMER_DELIVER_MS=clock() + HOUR_MS, WAIT="true")
        for pack in range(packs):
            items = [(0, b"%d" % n, b"UNIQ_KEY\x01%d-%d" % (pack, n)) for n in range(size)]
            answer = await peer.send(
                *("T", encode_batch(items)),
                properties=given,
                code=RequestCode.SEND_BATCH_MESSAGE,
                m="true",
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        await enqueued(broker, packs * size)
        clock.ahead_ms += HOUR_MS + 2_000
        bounds, waits = broker.parts.store.queue_bounds, []
        while bounds("T", 0)[1] < packs * size:
            began = time.thread_time()
            answer = await peer.send("T", b"now", queue_id=1)
            assert answer.code == ResponseCode.SUCCESS
            # Of this thread's work, whatever else the machine does.
            waits.append(time.thread_time() - began)
        assert len(waits) >= 5
        assert max(waits) < SERVED_SECONDS_MAX
        await broker.parts.writing.timer.turn()
        assert bounds("T", 0)[1] == packs * size
        assert bounds("T", 1)[1] == len(waits)


async def test_without_the_wheel_messages_for_a_moment_are_refused(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (_, peer):
        assert (await peer.send("T", properties=text(TIMER_DELAY_SEC=9))).code == 0
    async with running(tmp_path, kernel, clock, timer_wheel_enable=False) as (broker, peer):
        assert "timerWheelEnable=false: messages for a moment that wait" in caplog.text
        answer = await peer.send("T", properties=text(TIMER_DELAY_SEC=9))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable is false" in (answer.remark or "")
        clock.ahead_ms += HOUR_MS
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == []
    async with running(tmp_path, kernel, clock) as (_, peer):
        await comes(peer)


async def test_a_slot_that_is_full_refuses_more(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock, timer_congest_num_each_slot=1) as (broker, peer):
        given = text(TIMER_DELIVER_MS=clock() + HOUR_MS)
        for _ in range(2):
            assert (await peer.send("T", properties=given)).code == 0
        await enqueued(broker, 2)
        answer = await peer.send("T", properties=given)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "under flow control, max num limit is 2" in (answer.remark or "")


async def test_a_batch_for_a_moment_waits_as_a_whole(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        items = encode_batch([(0, b"one", b"UNIQ_KEY\x011"), (0, b"two", b"UNIQ_KEY\x012")])
        given = text(TIMER_DELAY_SEC=9, WAIT="true")
        answer = await peer.send(
            "T", items, queue_id=1, properties=given, code=RequestCode.SEND_BATCH_MESSAGE, m="true"
        )
        assert answer.code == ResponseCode.SUCCESS
        assert len(answer.ext_fields["msgId"].split(",")) == 2
        await enqueued(broker, 2)
        assert await bodies(peer, 1) == []
        clock.ahead_ms += 12_000
        found = await comes(peer, 2, queue_id=1)
        assert [(each.body, each.unique_key) for each in found] == [(b"one", "1"), (b"two", "2")]


async def test_clients_cannot_put_messages_into_the_timer_s_topic(
    tmp_path: Path, kernel: str
) -> None:
    async with running(tmp_path, kernel, Clock()) as (_, peer):
        await peer.send("T", properties=text(TIMER_DELAY_SEC=9))
        stray = text(TIMER_OUT_MS=5, REAL_TOPIC="T", REAL_QID=0)
        answer = await peer.send(TIMER_TOPIC, b"stray", properties=stray)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_the_first_record_of_a_log_is_taken_for_no_copy_of_itself(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    config = small_config(tmp_path, timer_roll_window_slot=2)
    async with Broker(config, kernel=kernel, clock_ms=clock) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"first", properties=text(TIMER_DELAY_SEC=60, UNIQ_KEY="k"))
        assert broker.parts.store.queue_entry(TIMER_TOPIC, 0, 0)[0] == 0
        await enqueued(broker, 1)
        timer = broker.parts.writing.timer.timer
        assert timer is not None
        timer.doubt(commit_end=broker.parts.store.max_physical_offset)
        for _ in range(62):
            clock.ahead_ms += 1_000
            await broker.parts.writing.timer.turn()
        [message] = await peer.messages("T")
        assert int(message.properties["TIMER_ROLL_TIMES"]) > 9


# -- restarts -------------------------------------------------------------------------------------
@pytest.mark.parametrize("lost", [(), ("timerwheel",), ("timerlog",), ("timerwheel", "timerlog"),
                                  ("timerwheel", "timerlog", "config/timercheck")])  # fmt: skip
async def test_a_restart_keeps_all_that_waits_whatever_index_is_lost(
    tmp_path: Path, kernel: str, lost: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        for number in range(20):
            due_ms = clock() + 5_000 + number * 60_000
            given = text(TIMER_DELIVER_MS=due_ms, UNIQ_KEY=number)
            await peer.send("T", b"%d" % number, properties=given)
        await enqueued(broker, 20)
        clock.ahead_ms += 9_000
        assert await comes(peer) != []
    for name in lost:
        path = tmp_path / "store" / name
        assert path.exists()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    caplog.clear()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await enqueued(broker, 20)
        timer = broker.parts.writing.timer.timer
        assert timer is not None
        assert timer.waiting == {"T": 19}
        clock.ahead_ms += HOUR_MS
        found = await comes(peer, 20)
        await broker.parts.writing.timer.turn()
        found = await peer.messages("T")
        assert sorted(int(each.body) for each in found) == list(range(20))
        assert timer.waiting == {}
        assert ("the timer's wheel was built again in" in caplog.text) is bool(lost)


@pytest.mark.parametrize("has_check_point", [False, True])
async def test_a_stop_that_wrote_no_check_point_has_nothing_come_twice(
    tmp_path: Path, kernel: str, has_check_point: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    async def send(peer: Peer, key: str) -> None:
        given = text(TIMER_DELIVER_MS=clock() + 5_000, UNIQ_KEY=key)
        await peer.send("T", key.encode(), properties=given)

    if has_check_point:
        async with running(tmp_path, kernel, clock) as (broker, peer):
            await send(peer, "first")
            await enqueued(broker, 1)
    with monkeypatch.context() as patched:

        def fails(*given: object) -> None:
            raise OSError(ENOSPC, "the disk is full")

        async with running(tmp_path, kernel, clock) as (broker, peer):
            patched.setattr(TimerStore, "write_checkpoint", fails)
            await send(peer, "second")
            await enqueued(broker, 1 + has_check_point)
            clock.ahead_ms += 9_000
            came = [message.body for message in await comes(peer, 1 + has_check_point)]
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await send(peer, "last")
        clock.ahead_ms += 9_000
        await comes(peer, len(came) + 1)
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [*came, b"last"]


async def test_the_files_are_rocketmq_s_and_made_with_the_first_message(
    tmp_path: Path, kernel: str
) -> None:
    store = tmp_path / "store"
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.send("T")
        await broker.parts.writing.timer.turn()
        await broker.parts.writing.timer.flush()
    names = ("timerwheel", "timerlog", "config/timercheck", "config/timermetrics")
    assert [name for name in names if (store / name).exists()] == []
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.send("T", properties=text(TIMER_DELAY_SEC=9))
        await enqueued(broker, 1)
    assert (store / "timerwheel").stat().st_size == 38_707_200
    assert (store / "timerlog" / "0".zfill(20)).stat().st_size == 100 << 20
    assert (store / "config" / "timercheck").stat().st_size == 4_096
    assert '"timingCount":{"T":{"count":1,' in (store / "config" / "timermetrics").read_text()
    blocks = sum(each.stat().st_blocks for each in (store / "timerlog").iterdir())
    assert (blocks + (store / "timerwheel").stat().st_blocks) * 512 < 100_000


async def test_a_timer_log_of_another_length_stops_the_start_and_says_why(
    tmp_path: Path, kernel: str
) -> None:
    async with running(tmp_path, kernel, Clock()) as (broker, peer):
        await peer.send("T", properties=text(TIMER_DELAY_SEC=9))
        await enqueued(broker, 1)
    with pytest.raises(StoreError, match="mappedFileSizeTimerLog"):
        async with running(tmp_path, kernel, Clock(), mapped_file_size_timer_log=1 << 20):
            pass


async def waits_in_steps(folder: Path, kernel: str, clock: Clock, precision_ms: int) -> list[int]:
    """Twenty messages that wait in a wheel with such steps, some have come; their moments."""
    moments = [clock() + 3_000 + number * 730 for number in range(20)]
    settings = {"timer_precision_ms": precision_ms}
    async with running(folder, kernel, clock, **settings) as (broker, peer):
        for number, due_ms in enumerate(moments):
            given = text(TIMER_DELIVER_MS=due_ms, UNIQ_KEY=number)
            await peer.send("T", b"%d" % number, properties=given)
        await enqueued(broker, 20)
        clock.ahead_ms += 5_000
        await comes(peer, 2)
    return moments


@pytest.mark.parametrize("is_wheel_lost", [False, True])
async def test_longer_steps_have_the_wheel_built_again(
    tmp_path: Path, kernel: str, is_wheel_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    moments = await waits_in_steps(tmp_path, kernel, clock, 200)
    if is_wheel_lost:
        (tmp_path / "store" / "timerwheel").unlink()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        for _ in range(25):
            clock.ahead_ms += 1_000
            await broker.parts.writing.timer.turn()
        found = await peer.messages("T")
        assert sorted(int(each.body) for each in found) == list(range(20))
        for each in found:
            assert int(each.properties["TIMER_DEQUEUE_MS"]) >= moments[int(each.body)]
        told = "steps were shorter" if is_wheel_lost else "steps had 200 ms"
        assert f"since its {told} (timerPrecisionMs)" in caplog.text


async def test_shorter_steps_are_refused_while_messages_wait_and_why_is_said(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    await waits_in_steps(tmp_path, kernel, clock, 1_000)
    words = r"timerPrecisionMs is 200, and 1\d messages wait in steps of 1000 ms: .* 800 ms early"
    with pytest.raises(StoreError, match=words):
        async with running(tmp_path, kernel, clock, timer_precision_ms=200):
            pass
    clock.ahead_ms += HOUR_MS
    async with running(tmp_path, kernel, clock) as (_, peer):
        await comes(peer, 20)
    async with running(tmp_path, kernel, clock, timer_precision_ms=200) as (_, peer):
        await peer.send("T", b"soon", properties=text(TIMER_DELAY_MS=300))
        assert (await comes(peer, 21))[-1].body == b"soon"


async def test_a_clock_that_jumps_loses_and_doubles_nothing_and_is_told(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.send("T", b"a", properties=text(TIMER_DELAY_SEC=60))
        await enqueued(broker, 1)
        clock.ahead_ms += HOUR_MS
        await comes(peer, 1)
        clock.ahead_ms = 0
        await peer.send("T", b"b", properties=text(TIMER_DELAY_SEC=60))
        await enqueued(broker, 2)
        clock.ahead_ms += 30_000
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a"]
        clock.ahead_ms += 40_000
        await comes(peer, 2)
        clock.ahead_ms += HOUR_MS
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == [b"a", b"b"]
    told = [each for each in caplog.messages if each.startswith("the clock jumped")]
    assert told[0].startswith("the clock jumped ahead by 1 h; of messages for a moment what was")
    assert told[1].startswith("the clock jumped back by 1 h; of messages for a moment what waits")


async def test_a_transaction_s_delay_counts_from_its_commit(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        given = text(TIMER_DELAY_SEC=60, TRAN_MSG="true", PGROUP="g", UNIQ_KEY="k")
        half = await peer.send("T", b"x", properties=given, a="g", f=4)
        assert half.code == ResponseCode.SUCCESS
        clock.ahead_ms += 50_000
        fields = {
            "producerGroup": "g",
            "tranStateTableOffset": half.ext_fields["queueOffset"],
            "commitLogOffset": int(half.ext_fields["msgId"][-16:], 16),
            "commitOrRollback": 8,
            "msgId": "k",
        }
        assert (await peer.ask(RequestCode.END_TRANSACTION, fields)).code == ResponseCode.SUCCESS
        await enqueued(broker, 1)
        clock.ahead_ms += 50_000
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == []
        clock.ahead_ms += 15_000
        [message] = await comes(peer)
        assert message.body == b"x"


async def test_what_is_due_waits_while_nothing_can_be_stored(tmp_path: Path, kernel: str) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await peer.send("T", b"a", properties=text(TIMER_DELAY_SEC=60))
        await enqueued(broker, 1)
        broker.parts.writing.gate.set_writable(False)
        clock.ahead_ms += HOUR_MS
        await until(lambda: _is_holding(broker), what="a put that is tried again")
        assert await bodies(peer) == []
        broker.parts.writing.gate.set_writable(True)
        await comes(peer)


def _is_holding(broker: Broker) -> bool:
    timer = broker.parts.writing.timer.timer
    return timer is not None and timer.lag_ms > 0


async def test_a_stop_of_its_work_by_settings_holds_messages_back(
    tmp_path: Path, kernel: str
) -> None:
    clock = Clock()
    async with running(tmp_path, kernel, clock, timer_stop_dequeue=True) as (broker, peer):
        await peer.send("T", b"a", properties=text(TIMER_DELAY_SEC=60))
        await enqueued(broker, 1)
        clock.ahead_ms += HOUR_MS
        await broker.parts.writing.timer.turn()
        assert await bodies(peer) == []
        body = b"timerStopDequeue=false"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        await comes(peer)


async def test_the_kernel_stores_a_send_for_a_moment_as_the_handler_does(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = 0
    real = TimedPuts.place

    def place(self: TimedPuts, record: Any) -> Any:
        nonlocal placed
        placed += 1
        return real(self, record)

    monkeypatch.setattr(TimedPuts, "place", place)
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        given = text(UNIQ_KEY="k", TAGS="a", TIMER_DELAY_SEC=HOUR_MS // 1_000, WAIT="true")
        answers = [await peer.send("T", b"1", queue_id=2, properties=given) for _ in range(2)]
        assert placed == 1, "the first one makes the topic"
        shown = [each.ext_fields | {"msgId": "", "queueOffset": ""} for each in answers]
        assert shown[0].keys() == shown[1].keys() >= {"recallHandle", "queueId"}
        one, two = await peer.messages(TIMER_TOPIC)
        assert list(one.properties) == list(two.properties)
        assert one.properties["CLUSTER"] == two.properties["CLUSTER"]
        for name in ("born_host", "store_host", "sys_flag", "flag", "tags", "body"):
            assert getattr(one, name) == getattr(two, name)
        limit = b"timerCongestNumEachSlot=5"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=limit)).code == 0
        await peer.send("T", b"1", queue_id=2, properties=given)
        assert placed == 2, "the handler knows how full a slot is"
        await enqueued(broker, 3)


# -- rest -----------------------------------------------------------------------------------------
async def test_the_timer_rests_until_a_message_comes_or_a_step_is_over(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    real = TimerService.turn

    async def turn(self: TimerService) -> None:
        nonlocal turns
        turns += 1
        await real(self)

    monkeypatch.setattr(TimerService, "turn", turn)
    clock = Clock()
    async with running(tmp_path, kernel, clock) as (broker, peer):
        await until(lambda: turns == 1, what="the first look")
        service = broker.parts.writing.timer
        rest = asyncio.ensure_future(service.pause())
        await peer.send("T", b"plain")
        assert not rest.done()
        await peer.send("T", b"later", properties=text(TIMER_DELAY_MS=HOUR_MS))
        await asyncio.wait_for(rest, SECONDS_MAX)
        await enqueued(broker, 1)
        before = turns
        clock.ahead_ms += HOUR_MS + 1_000
        await comes(peer)
        timer = service.timer
        assert timer is not None
        await until(lambda: timer.is_empty, what="the end of the slot")
        assert turns - before <= 4
        end = turns
        await peer.send("T", b"plain")
        assert turns <= end + 1


async def test_files_that_cannot_be_opened_are_told_once_and_tried_again(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, kernel, Clock()) as (broker, peer):
        strange = tmp_path / "store" / "timerlog" / "00000000000000000000"
        strange.parent.mkdir()
        strange.write_bytes(b"short")
        await peer.send("T", b"later", properties=text(TIMER_DELAY_MS=1_000))
        for _ in range(3):
            await broker.parts.writing.timer.turn()
        assert sum("can't be written or read" in line for line in caplog.messages) == 1
        assert not any("background work" in line for line in caplog.messages)
        strange.unlink()
        await broker.parts.writing.timer.turn()
        assert "can be written or read again" in caplog.messages[-1]
