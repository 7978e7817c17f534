"""Sending traces in the background: never in the way, bounded, flushed at the end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.client import Producer, ProducerSettings
from kerolox.client.aio.producers import tracing
from kerolox.client.core.tracing.trace import PubTrace, TraceRecord, decode_traces
from kerolox.message import Message, decode_properties
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
TRACES = "RMQ_SYS_TRACE_TOPIC"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = made.routes[TRACES] = route_body({"a": made.address}, queues=1)
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that closes waits for its traces however slow the machine is."""
    monkeypatch.setattr(tracing, "FLUSH_SECONDS_MAX", 30.0)


def traces(broker: FakeBroker, topic: str = TRACES) -> list[TraceRecord]:
    """What arrived; large bodies travel compressed, these do not."""
    bodies = [command.body for command in broker.seen[SEND] if command.ext_fields["b"] == topic]
    return [trace for body in bodies for trace in decode_traces(body.decode())]


async def test_each_message_that_is_stored_gives_a_trace(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All in one message, however long the sends take.
    monkeypatch.setattr("kerolox.client.core.tracing.trace.TRACE_WAIT_MS", 60_000)
    given = ProducerSettings(enable_trace=True)
    async with Producer("G", broker.address, settings=given) as producer:
        results = [await producer.send(Message("T", b"x" * 9, keys=f"k{n}")) for n in range(5)]
        await producer.send_oneway(Message("T", b"y"))
    found = traces(broker)
    assert [trace.message_id for trace in found] == [result.message_id for result in results]
    [first, *_] = found
    assert isinstance(first, PubTrace)
    assert (first.group, first.topic, first.keys, first.body_bytes) == ("G", "T", "k0", 9)
    assert first.store_host == broker.address
    assert first.offset_message_id == results[0].offset_message_id
    [sent] = [c for c in broker.seen[SEND] if c.ext_fields["b"] == TRACES]
    assert sent.ext_fields["a"].startswith("_INNER_TRACE_PRODUCER-G-PRODUCE-")
    keys = decode_properties(sent.ext_fields["i"])["KEYS"].split(" ")
    assert set(keys) == {*(r.message_id for r in results), *(f"k{n}" for n in range(5))}


async def test_a_trace_comes_without_closing_within_about_half_a_second(
    broker: FakeBroker,
) -> None:
    given = ProducerSettings(enable_trace=True)
    async with Producer("G", broker.address, settings=given) as producer:
        result = await producer.send(Message("T", b"x"))
        await until(lambda: traces(broker))
        assert [trace.message_id for trace in traces(broker)] == [result.message_id]


async def test_traces_go_to_a_topic_of_one_s_own(broker: FakeBroker) -> None:
    broker.routes["Mine"] = broker.routes["T"]
    given = ProducerSettings(enable_trace=True, trace_topic="Mine")
    async with Producer("G", broker.address, settings=given) as producer:
        await producer.send(Message("T", b"x"))
    assert len(traces(broker, "Mine")) == 1
    assert not traces(broker)


async def test_a_broker_that_wants_no_traces_gets_none(broker: FakeBroker) -> None:
    async def untraced(command: RemotingCommand) -> RemotingCommand:
        response = broker.stored(command)
        response.ext_fields["TRACE_ON"] = "false"
        return response

    broker.answers[SEND] = untraced
    given = ProducerSettings(enable_trace=True)
    async with Producer("G", broker.address, settings=given) as producer:
        assert not (await producer.send(Message("T", b"x"))).is_traced
    assert not traces(broker)


async def test_a_broker_that_does_not_answer_traces_holds_up_no_send(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "TRACE_BATCHES_MAX", 2)
    monkeypatch.setattr(tracing, "TRACE_SENDS_MAX", 1)
    monkeypatch.setattr(tracing, "FLUSH_SECONDS_MAX", 0.05)

    async def answer(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["b"] == TRACES:
            await asyncio.Event().wait()
        return broker.stored(command)

    broker.answers[SEND] = answer
    given = ProducerSettings(enable_trace=True)
    with caplog.at_level(logging.WARNING):
        async with Producer("G", broker.address, settings=given) as producer:
            for _ in range(20):
                await asyncio.gather(
                    *(producer.send(Message("T", b"x", keys="k" * 900)) for _ in range(50))
                )
            assert producer._tracing is not None
            assert producer._tracing.dropped > 0
    assert "trace messages wait" in caplog.text
    assert "were not sent within" in caplog.text


async def test_a_missing_trace_topic_is_told_once_and_hurts_nobody(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    del broker.routes[TRACES]
    given = ProducerSettings(enable_trace=True)
    with caplog.at_level(logging.WARNING, logger="kerolox.client.aio.producers.tracing"):
        async with Producer("G", broker.address, settings=given) as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok
            assert producer._tracing is not None
            await until(lambda: producer._tracing is not None and producer._tracing.dropped == 1)
            await producer.send(Message("T", b"x"))
    assert caplog.text.count("are not sent") == 1
