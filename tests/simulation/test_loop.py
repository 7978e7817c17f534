"""The loop and the network of simulations, by themselves."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Coroutine, Iterator

import pytest

from tests.simulation import clocks
from tests.simulation.loop import START_SECONDS, SimulatedLoop, StuckError
from tests.simulation.patches import Patches
from tests.simulation.process import Process


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop(1)
    with Patches() as patches:
        clocks.install(patches)
        yield loop
        loop.dismantle()


async def _pass(seconds: float) -> None:
    """Virtual time passes."""
    await asyncio.sleep(seconds)


def _process(loop: SimulatedLoop, number: int) -> Process:
    process = Process(f"p{number}", f"10.0.0.{number}", loop.time, number)
    loop.adopt(process)
    return process


def _listen(loop: SimulatedLoop, process: Process, port: int, seen: list[object]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                seen.append(data)
            seen.append("end")
        except OSError as error:
            seen.append(type(error).__name__)
        writer.close()

    async def start() -> None:
        sock = loop.network.listen(process, port)
        await asyncio.start_server(serve, sock=sock)  # type: ignore[arg-type]

    loop.run_until_complete(loop.create_task(start(), context=process.context.copy()))


def test_an_hour_of_sleep_takes_no_time(loop: SimulatedLoop) -> None:
    loop.run_until_complete(_pass(3_600))

    assert loop.time() == START_SECONDS + 3_600


def test_a_loop_with_nothing_to_come_says_so(loop: SimulatedLoop) -> None:
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())


def test_each_process_has_its_own_wall_clock(loop: SimulatedLoop) -> None:
    one, two = _process(loop, 1), _process(loop, 2)
    two.clock.offset_seconds = 5.0

    assert two.run(time.time) - one.run(time.time) == pytest.approx(5.0)
    assert two.run(time.monotonic) == one.run(time.monotonic) == loop.time()


def test_a_paused_process_does_later_what_was_due(loop: SimulatedLoop) -> None:
    process = _process(loop, 1)
    seen: list[float] = []
    loop.call_later(1, lambda: seen.append(loop.time()), context=process.context.copy())
    process.pause()
    loop.run_until_complete(_pass(3))
    assert not seen

    process.resume()
    loop.run_until_complete(_pass(1))

    assert seen == [START_SECONDS + 3]


def test_a_blocking_sleep_lets_the_process_alone_stand_still(loop: SimulatedLoop) -> None:
    one, two = _process(loop, 1), _process(loop, 2)
    seen: list[tuple[str, float]] = []

    async def work(name: str, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it is what is tried
        await _pass(0.5)
        seen.append((name, loop.time() - START_SECONDS))

    for process, seconds in ((one, 2.0), (two, 0.0)):
        loop.create_task(work(process.name, seconds), context=process.context.copy())
    loop.run_until_complete(_pass(5))

    assert seen == [("p2", 0.5), ("p1", 2.0)]


def test_nothing_of_a_dead_process_runs_not_even_its_finally(loop: SimulatedLoop) -> None:
    process = _process(loop, 1)
    seen: list[str] = []

    async def work() -> None:
        try:
            await _pass(1)
        finally:
            seen.append("finally")

    loop.create_task(work(), context=process.context.copy())
    loop.run_until_complete(_pass(0.5))
    process.kill()
    loop.run_until_complete(_pass(5))

    assert not seen


def _talk(loop: SimulatedLoop, seen: list[object]) -> tuple[Process, Process, asyncio.StreamWriter]:
    server, client = _process(loop, 1), _process(loop, 2)
    _listen(loop, server, 80, seen)

    async def connect() -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(server.host, 80)
        return writer

    task = loop.create_task(connect(), context=client.context.copy())
    return server, client, loop.run_until_complete(task)


def test_bytes_arrive_in_order_whatever_the_link_does(loop: SimulatedLoop) -> None:
    loop.network.jitter_seconds = 1.0
    loop.network.cut_probability = 0.8
    seen: list[object] = []
    _, _, writer = _talk(loop, seen)
    for number in range(50):
        writer.write(b"%d " % number)
    writer.close()
    loop.run_until_complete(_pass(60))

    assert seen.pop() == "end"
    parts = [part for part in seen if isinstance(part, bytes)]
    assert b"".join(parts) == b"".join(b"%d " % number for number in range(50))


def test_a_partition_holds_bytes_until_it_heals(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    loop.network.partition(server.host, client.host)
    writer.write(b"held")
    loop.run_until_complete(_pass(2))
    assert not seen

    loop.network.heal(server.host, client.host)
    loop.run_until_complete(_pass(2))

    assert seen == [b"held"]


def test_what_a_healed_partition_held_may_meet_another_one(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    for _ in range(2):
        loop.network.partition(server.host, client.host)
        writer.write(b"held ")
        loop.run_until_complete(_pass(2))
        loop.network.heal(server.host, client.host)
    loop.network.partition(server.host, client.host)
    loop.run_until_complete(_pass(2))
    assert not seen

    loop.network.heal(server.host, client.host)
    loop.run_until_complete(_pass(2))

    assert seen == [b"held held "]


def test_what_a_healed_partition_held_may_find_no_host(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    loop.network.partition(server.host, client.host)
    writer.write(b"held")
    loop.run_until_complete(_pass(2))
    loop.network.power_off(server.host)
    server.kill()
    loop.network.heal(server.host, client.host)
    loop.run_until_complete(_pass(30))

    assert writer.transport.is_closing()
    assert not seen


def test_a_partition_without_end_breaks_the_connection(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    loop.network.partition(server.host, client.host)
    writer.write(b"lost")
    loop.run_until_complete(_pass(30))

    assert writer.transport.is_closing()
    assert not seen


def test_a_killed_process_closes_its_connections(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    _, client, writer = _talk(loop, seen)
    writer.write(b"last words")
    client.kill()
    loop.run_until_complete(_pass(1))

    assert seen == [b"last words", "end"]


def test_a_host_without_power_says_nothing_until_it_is_back(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    loop.network.power_off(client.host)
    client.kill()
    loop.run_until_complete(_pass(1))

    assert not seen
    assert not loop.network.transports_of(client)
    assert loop.network.transports_of(server)
    assert writer is not None


def test_a_reset_reaches_both_ends(loop: SimulatedLoop) -> None:
    seen: list[object] = []
    server, client, writer = _talk(loop, seen)
    loop.run_until_complete(_pass(1))
    assert loop.network.reset(server.host, client.host) == 2
    loop.run_until_complete(_pass(1))

    assert seen == ["ConnectionResetError"]
    assert writer.transport.is_closing()


def test_a_connection_is_made_before_it_is_lost(loop: SimulatedLoop) -> None:
    server, client = _process(loop, 1), _process(loop, 2)
    calls: list[str] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            calls.append("made")

        def connection_lost(self, exc: Exception | None) -> None:
            calls.append("lost")

    async def serve() -> None:
        listening = loop.network.listen(server, 80)
        await loop.create_server(Noting, sock=listening)

    async def connect() -> None:
        await loop.create_connection(asyncio.Protocol, server.host, 80)
        loop.network.reset(server.host, client.host)

    for work, process in ((serve(), server), (connect(), client)):
        loop.run_until_complete(loop.create_task(work, context=process.context.copy()))
    loop.run_until_complete(_pass(1))

    assert calls == ["made", "lost"]


def test_who_reads_nothing_makes_the_writer_wait(loop: SimulatedLoop) -> None:
    loop.network.window_bytes = 1_000
    server, client = _process(loop, 1), _process(loop, 2)

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]

    async def start() -> None:
        sock = loop.network.listen(server, 80)
        await asyncio.start_server(serve, sock=sock)  # type: ignore[arg-type]

    async def fill() -> None:
        _, writer = await asyncio.open_connection(server.host, 80)
        writer.write(bytes(500_000))
        await writer.drain()

    loop.run_until_complete(loop.create_task(start(), context=server.context.copy()))
    task = loop.create_task(fill(), context=client.context.copy())
    loop.run_until_complete(_pass(10))

    assert not task.done()
    task.cancel()


def test_what_a_task_begins_at_its_end_is_dropped_with_it() -> None:
    loop = SimulatedLoop(1)
    begun: list[asyncio.Task[None]] = []

    async def ends() -> None:
        try:
            await loop.create_future()
        finally:
            begun.append(loop.create_task(_pass(1)))

    loop.run_until_complete(_pass(1))
    loop.create_task(ends(), context=_process(loop, 1).context.copy())
    loop.run_until_complete(_pass(1))
    loop.dismantle()

    [task] = begun
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
