"""Receives and acknowledgements that the native kernel takes: as the handlers in Python answer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.test_calls import message, resource, sent
from tests.unit.broker.grpc.test_clients import subscribing
from tests.unit.broker.grpc.test_receives import GROUP, answer_of, changed, receive

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import receiving, records, renewals
from kerolox.broker.pop.leases import QueueKey
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.pop import PopReceipt

pytestmark = pytest.mark.skipif("native" not in KERNELS, reason="the native kernel does it")


class Seen:
    """How many receives and acknowledgements Python saw."""

    count = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    counted = Seen()
    for name in ("receive_message", "ack_message"):
        serve = getattr(receiving, name)

        async def counting(*arguments: Any, _serve: Any = serve) -> Any:
            counted.count += 1
            return await _serve(*arguments)

        monkeypatch.setattr(receiving, name, counting)
    return counted


@pytest_asyncio.fixture
async def broker(tmp_path: Path, seen: Seen) -> AsyncIterator[Broker]:
    config = small_config(
        tmp_path, grpc_server_port=free_port(), max_requests_per_second_per_address=0
    )
    async with Broker(config, kernel="native") as started:
        topic = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
        started.parts.tables.topics.put(topic)
        yield started


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[GrpcPeer]:
    async with grpc_peer(broker.config.grpc_server_port) as peer:
        yield peer


async def filled(client: GrpcPeer, count: int) -> None:
    for number in range(count):
        made = message(body=b"%d" % number, message_id=f"id-{number}", tag="tag", born_host="h")
        await sent(client, made)


async def acked(client: GrpcPeer, *found: Any, group: str = GROUP) -> list[int]:
    request = pb.AckMessageRequest(group=resource(group), topic=resource("T"))
    for each in found:
        request.entries.add(receipt_handle=each.system_properties.receipt_handle)
    [answer] = await client.call("AckMessage", request).messages()
    return [entry.status.code for entry in answer.entries]


def lent(broker: Broker) -> list[QueueKey]:
    return sorted(broker.parts.tables.pops.state.queues._lending.reserved)


async def begun(broker: Broker, client: GrpcPeer, queues: int = 2) -> None:
    """The group has offsets in all queues, and the kernel has these then."""
    offsets = broker.parts.tables.offsets
    for queue_id in range(queues):
        offsets.commit(GROUP, "T", queue_id, 0, "test")
    code, found = await answer_of(receive(client, batch=1))
    assert code == pb.OK
    assert await acked(client, *found) == [pb.OK]
    broker.parts.tables.pops.state.queues.take_back_all()
    fast = broker._ports.grpc._service._fast
    place = fast._place("T", GROUP)
    fast._lend(place, [(key, offsets.query(*key)) for key in place.keys])
    assert lent(broker) == place.keys


def table_of(broker: Broker) -> Any:
    return broker._ports.grpc._service.renewals


async def test_the_kernel_answers_what_is_there(
    broker: Broker, client: GrpcPeer, seen: Seen
) -> None:
    await filled(client, 60)
    await begun(broker, client)
    seen.count, told = 0, set()
    for _ in range(6):
        code, found = await answer_of(receive(client, batch=6))
        assert code == pb.OK
        told |= {each.system_properties.message_id for each in found}
        assert await acked(client, *found) == [pb.OK] * len(found)
    assert (seen.count, len(told)) == (0, 36)
    assert not any(table_of(broker)._queues.has_out(key) for key in lent(broker))


async def test_what_is_done_twice_is_answered_alike(
    client: GrpcPeer, broker: Broker, seen: Seen
) -> None:
    await filled(client, 20)
    await begun(broker, client)
    _, found = await answer_of(receive(client, batch=4))
    seen.count = 0
    assert await acked(client, *found, found[0]) == [pb.OK] * 5
    assert seen.count == 0
    assert await acked(client, *found) == [pb.OK] * 4
    assert seen.count == 1


async def test_a_group_in_order_is_never_the_kernels(
    broker: Broker, client: GrpcPeer, seen: Seen
) -> None:
    await filled(client, 60)
    await begun(broker, client)
    ordered = SubscriptionGroupConfig(group_name=GROUP, consume_message_orderly=True)
    broker.parts.tables.groups.put(ordered)
    assert lent(broker) == []
    seen.count = 0
    for _ in range(2):
        code, found = await answer_of(receive(client, batch=1))
        assert code == pb.OK
        assert PopReceipt.parse(found[0].system_properties.receipt_handle).is_order
    assert (seen.count, lent(broker)) == (2, [])


async def test_the_broker_renews_what_the_kernel_gave_out(
    broker: Broker, client: GrpcPeer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.settled(**subscribing())
    await filled(client, 20)
    await begun(broker, client)
    seen.count = 0
    _, found = await answer_of(receive(client, batch=6, invisible_seconds=None, auto_renew=True))
    assert await acked(client, found[0]) == [pb.OK]
    assert seen.count == 0
    table = table_of(broker)
    assert (len(table), table._all) == (len(found) - 1, {})
    await table.run()
    assert lent(broker) != [], "nothing is due"
    monkeypatch.setattr(renewals, "AHEAD_MS", 61_000)
    monkeypatch.setattr(renewals, "STEPS_MS", (180_000,))
    await table.run()
    assert len(table) == len(table._all) == len(found) - 1
    assert {entry.times for entry in table._all.values()} == {1}
    assert (await changed(client, found[1], 30)).status.code == pb.OK
    answer = await client.ask(
        "ForwardMessageToDeadLetterQueue",
        group=resource(GROUP),
        topic=resource("T"),
        receipt_handle=found[2].system_properties.receipt_handle,
        message_id=found[2].system_properties.message_id,
    )
    assert answer.status.code == pb.OK
    assert await acked(client, *found[3:]) == [pb.OK] * (len(found) - 3)
    assert len(table) == 0


async def test_messages_of_the_kernel_come_again_when_their_client_leaves(
    broker: Broker, client: GrpcPeer, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    monkeypatch.setattr(renewals, "GIVEN_BACK_MS", 1)
    await client.settled(**subscribing())
    await filled(client, 40)
    await begun(broker, client)
    seen.count, told = 0, set()
    for _ in range(2):
        stream = receive(client, batch=3, invisible_seconds=None, auto_renew=True)
        told |= {each.system_properties.message_id for each in (await answer_of(stream))[1]}
    assert seen.count == 0
    again: set[str] = set()
    async with grpc_peer(broker.config.grpc_server_port, "other") as other:
        await client.ask("NotifyClientTermination", group=resource(GROUP))
        while again < told:
            code, found = await answer_of(receive(other))
            assert code == pb.OK
            again |= {
                each.system_properties.message_id
                for each in found
                if each.system_properties.delivery_attempt == 2
            }


async def test_a_random_day_ends_alike_with_and_without_the_kernel(
    broker: Broker, client: GrpcPeer, seen: Seen
) -> None:
    await filled(client, 200)
    ends: list[Any] = []
    for group in ("lent", "kept"):
        dice, held, told = random.Random(5), [], []
        table = broker.parts.tables.pops.state.queues
        table.take_back_all()
        table._lending._kernel = broker.parts.store if group == "lent" else None
        seen.count = 0
        for _ in range(120):
            choice = dice.random()
            if choice < 0.4:
                count = dice.randrange(1, 6)
                code, found = await answer_of(receive(client, batch=count, group=group))
                assert (code, len(found)) == (pb.OK, count)
                held += found
                told += found
            elif choice < 0.9:
                some = [held.pop(dice.randrange(len(held))) for _ in held[: dice.randrange(6)]]
                codes = await acked(client, *some, group=group) if some else []
                assert codes == [pb.OK] * len(some)
            elif held:
                each = held[dice.randrange(len(held))]
                request = pb.ChangeInvisibleDurationRequest(
                    group=resource(group), topic=resource("T")
                )
                request.receipt_handle = each.system_properties.receipt_handle
                request.invisible_duration.seconds = 600
                [answer] = await client.call("ChangeInvisibleDuration", request).messages()
                assert answer.status.code == pb.OK
        ids = {each.system_properties.message_id: each for each in told}
        assert len(ids) == len(told), "a message came twice"
        for each in ids.values():
            each.system_properties.ClearField("receipt_handle")
        out = {
            (queue_id, offset)
            for queue_id in (0, 1)
            if (queue := table.queue(QueueKey(group, "T", queue_id))) is not None
            for offset, _ in queue.offsets()
        }
        assert len(out) == len(held)
        ends.append((ids, seen.count))
    lent_ids, kept_ids = ends[0][0], ends[1][0]
    assert ends[0][1] < ends[1][1]
    common = lent_ids.keys() & kept_ids.keys()
    assert len(common) > 50
    assert all(lent_ids[each] == kept_ids[each] for each in common)


TAGGED = 240


async def tagged(client: GrpcPeer) -> list[str]:
    """Messages with the tags a to e, rare ones too, and without any: the tag of each."""
    dice = random.Random(7)
    tags = [dice.choice("aaaaabbbcd") if dice.random() < 0.9 else "" for _ in range(TAGGED)]
    tags[100] = tags[TAGGED - 60] = "e"
    for number, tag in enumerate(tags):
        await sent(client, message(message_id=f"id-{number}", tag=tag, born_host="h"))
    return tags


@pytest.mark.parametrize("expression", ["a", " b || d", "c||d||e||nobody", "e", "nobody"])
async def test_messages_with_tags_are_those_that_python_finds(
    broker: Broker, client: GrpcPeer, seen: Seen, expression: str
) -> None:
    tags = await tagged(client)
    wanted = {each.strip() for each in expression.split("||")}
    ids = {f"id-{number}" for number, tag in enumerate(tags) if tag in wanted}
    ends: list[dict[str, Any]] = []
    table, offsets = broker.parts.tables.pops.state.queues, broker.parts.tables.offsets
    for group in ("lent", "kept"):
        table.take_back_all()
        table._lending._kernel = broker.parts.store if group == "lent" else None
        dice, told, seen.count = random.Random(3), {}, 0
        for queue_id in (0, 1):
            offsets.commit(group, "T", queue_id, 0, "test")
        while len(told) < len(ids):
            count = dice.randrange(1, 8)
            stream = receive(client, batch=count, group=group, tag=expression)
            code, found = await answer_of(stream)
            assert code == pb.OK
            assert 0 < len(found) <= count
            assert told.keys().isdisjoint(each.system_properties.message_id for each in found)
            told |= {each.system_properties.message_id: each for each in found}
            assert await acked(client, *found, group=group) == [pb.OK] * len(found)
            for each in found:
                each.system_properties.ClearField("receipt_handle")
        assert told.keys() == ids
        # One more passes what nobody wants, and waits.
        waits = receive(client, group=group, tag=expression)
        queue_ends = [broker.parts.store.queue_bounds("T", queue_id)[1] for queue_id in (0, 1)]
        assert sum(queue_ends) == TAGGED

        def is_passed(group: str = group, ends: list[int] = queue_ends) -> bool:
            return [offsets.query(group, "T", queue_id) for queue_id in (0, 1)] == ends

        await until(is_passed, what="what is not wanted is passed")
        waits.cancel()
        assert not any(table.has_out(QueueKey(group, "T", queue_id)) for queue_id in (0, 1))
        ends.append(told)
        if group == "lent":
            # The group begins, its queues are lent, and the last receive waits.
            assert seen.count <= 4, "Python made what the kernel makes"
    assert ends[0] == ends[1]


async def test_a_receive_of_tags_waits_for_a_message_that_has_one(
    broker: Broker, client: GrpcPeer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(client, 4)
    await begun(broker, client)
    made = message_of_calls(monkeypatch)
    waits = [receive(client, batch=2, tag="rare || other") for _ in range(2)]
    held = broker.parts.popping.held
    await until(lambda: len(held) == 2)
    await filled(client, 5)
    assert len(held) == 2
    for name in ("x", "y"):
        await sent(client, message(message_id=name, tag="rare", born_host="h"))
    answers = [await answer_of(each) for each in waits]
    found = [each for _, some in answers for each in some]
    assert sorted(system_of(each).message_id for each in found) == ["x", "y"]
    assert made.count == 0, "Python made what the kernel makes"
    assert await acked(client, *found) == [pb.OK] * 2


async def test_what_has_other_tags_does_not_come_again_when_its_client_leaves(
    broker: Broker, client: GrpcPeer
) -> None:
    await client.settled(**subscribing())
    await tagged(client)
    await begun(broker, client)
    more: dict[str, Any] = {"invisible_seconds": None, "auto_renew": True, "tag": "c || d"}
    _, first = await answer_of(receive(client, batch=8, **more))
    table = broker.parts.tables.pops.state.queues
    assert table.out == len(first)
    await client.ask("NotifyClientTermination", group=resource(GROUP))
    again: set[str] = set()
    async with grpc_peer(broker.config.grpc_server_port, "other") as other:
        await other.settled(**subscribing())
        while len(again) < len(first):
            _, found = await answer_of(receive(other, **more))
            again |= {
                system_of(each).message_id
                for each in found
                if system_of(each).delivery_attempt == 2
            }
    assert again == {system_of(each).message_id for each in first}


async def test_a_queue_that_was_never_used_holds_up_no_receive(
    broker: Broker, client: GrpcPeer, seen: Seen
) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=1)
    broker.parts.tables.topics.put(topic)
    await filled(client, 100)
    await begun(broker, client, 8)
    seen.count = 0
    for _ in range(5):
        assert len((await answer_of(receive(client, batch=2)))[1]) == 2
    assert seen.count == 0


async def test_receives_that_wait_are_answered_by_the_kernel(
    broker: Broker, client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.settled(**subscribing())
    await filled(client, 20)
    await begun(broker, client)
    table = broker.parts.tables.pops.state.queues
    async with grpc_peer(broker.config.grpc_server_port, "other") as other:
        while (await answer_of(receive(other, batch=32)))[1] and not is_read(broker):
            pass
        table.take_back_all()
        made = message_of_calls(monkeypatch)
        more = {"batch": 1, "invisible_seconds": None, "auto_renew": True}
        waits = [receive(peer, **more) for peer in (client, other) for _ in range(20)]
        held = broker.parts.popping.held
        await until(lambda: len(held) == 40)
        gone = waits.pop(3)
        gone.cancel()
        await until(lambda: len(held) == 39)
        before = table.out
        await filled(other, 39)
        answers = [await answer_of(each) for each in waits]
    ids = [system_of(found).message_id for _, [found] in answers]
    assert sorted(ids) == sorted(f"id-{number}" for number in range(39))
    assert made.count <= 2, "Python made what the kernel makes"
    assert table.out == before + 39
    assert len(held) == 0
    assert len(table_of(broker)) >= 19
    calls = broker._ports.grpc.stats.calls
    assert sum(calls["receive_message", "ok", "success"].get()[0]) >= 39
    assert broker._ports.grpc.stats.waiting_receives == 0


async def test_limits_of_requests_count_receives(
    broker: Broker, client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(client, 10)
    await begun(broker, client)
    limits, asked = type(broker.parts.guards.limits), list[int]()
    monkeypatch.setattr(limits, "is_on", property(lambda self: True))
    monkeypatch.setattr(limits, "refuse_address", lambda self, each, *_: asked.append(each.code))
    code, _ = await answer_of(receive(client))
    assert (code, asked) == (pb.OK, [RequestCode.POP_MESSAGE])


def is_read(broker: Broker) -> bool:
    """Whether all that is there was given out."""
    table, store = broker.parts.tables.pops.state.queues, broker.parts.store
    queues = [table.queue(QueueKey(GROUP, "T", queue_id)) for queue_id in (0, 1)]
    ends = [store.queue_bounds("T", queue_id)[1] for queue_id in (0, 1)]
    return all(
        queue is None or queue.next_offset == end for queue, end in zip(queues, ends, strict=True)
    )


def system_of(found: Any) -> Any:
    return found.system_properties


def message_of_calls(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """How many messages Python makes from now on."""
    counted, made_of = Seen(), records.message_of

    def counting(*arguments: Any) -> Any:
        counted.count += 1
        return made_of(*arguments)

    monkeypatch.setattr(receiving, "message_of", counting)
    return counted
