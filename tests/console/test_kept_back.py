"""Dead letters, delayed messages, open transactions, traces: on our broker and on Java's."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

from kerolox.client import (
    ConsumeStatus,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.message import ConsumeFromWhere, Message
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.console.console import Console
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

GIVES_UP = PushConsumerSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=0
)


async def test_dead_letters_are_chosen_edited_sent_again_and_exported(
    site: Console, topic: str
) -> None:
    group, got = f"D{uuid.uuid4().hex[:12]}", []
    operator, is_well = Visitor(site, "operator"), False

    async def on_messages(messages: list[MessageExt]) -> ConsumeStatus:
        got.extend(messages)
        return ConsumeStatus.CONSUME_SUCCESS if is_well else ConsumeStatus.RECONSUME_LATER

    consumer = PushConsumer(group, site.settings.name_server, settings=GIVES_UP)
    consumer.subscribe(topic, "even", on_messages)
    async with consumer:

        async def has_letters() -> bool:
            site.cache.clear()
            page = (await operator.look("/dead-letters")).text
            return bool(re.search(rf"{group}</a></td><td class=\"n\">5<", page))

        await until(has_letters)
        page = (await operator.look("/dead-letter", group=group)).text
        places = re.findall(r'name="place" value="([^"]+)"', page)
        assert len(places) == 5
        is_well = True
        got.clear()
        told = await operator.act("/dead-letter/resend", group=group, place=places[:2])
        assert ": sent, SEND_OK" in told
        await until(lambda: len(got) == 2)
        edited = {"group": group, "place": places[2], "edited": "1", "body": "mended"}
        await operator.act("/dead-letter/resend", **edited)
        await until(lambda: len(got) == 3)
        assert got[2].body == b"mended"
    found = await operator.look("/dead-letter", group=group, text='"number": 4')
    assert "1 shown, 5 read" in found.text
    assert "2 of 5 wait." in found.text
    broker = places[0].split(":")[0]
    one = await operator.look(
        "/message", topic=f"%DLQ%{group}", queue=broker, offset=places[0].split(":")[1]
    )
    assert "Give it to its group again" in one.text
    partly = await operator.act(
        "/dead-letter/resend", group=group, place=[f"{broker}:99", places[0]]
    )
    assert "not sent" in partly
    queues = await site.admin.dead_letter_queues(group)
    assert sum(each.waiting for each in queues) == 2
    once_more = {"group": group, "place": places[0], "again": "1"}
    assert ": left out: it was sent again before" in await operator.act(
        "/dead-letter/resend", group=group, place=places[0]
    )
    assert ": sent, SEND_OK" in await operator.act("/dead-letter/resend", **once_more)
    exported = await operator.look("/dead-letter/export", group=group)
    lines = [json.loads(line) for line in exported.text.splitlines()]
    assert sorted(json.loads(line["body"])["number"] for line in lines) == [0, 2, 4, 6, 8]
    for wrong in ([], ["x"], ["a/b:c"], [f"{broker}:{i}" for i in range(60)]):
        refused = await operator.post("/dead-letter/resend", group=group, place=wrong)
        assert refused.status_code == 400


async def test_delayed_messages_are_shown_until_they_are_due(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")
    await site.admin.send_message(Message(topic, b"much later", delay_level=18))

    async def waits() -> re.Match[str] | None:
        page = (await viewer.look("/delayed")).text
        return re.search(r"broker=([\w-]+)&amp;level=18\">18</a></td><td class=\"n\">2 h<", page)

    await until(waits)
    found = await waits()
    assert found
    page = (await viewer.look("/delayed", broker=found[1], level=18)).text
    assert "much later" in page
    assert re.search(rf"1 h 5\d min</td><td>{topic}<", page)


async def test_a_transaction_is_open_until_its_producer_ends_it(
    site: Console, topic: str, cluster: Cluster
) -> None:
    viewer, answer = Visitor(site, "viewer"), TransactionState.UNKNOWN

    async def check(_: MessageExt) -> TransactionState:
        return answer

    async def execute(_: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    producer = TransactionProducer(f"PG{topic}", cluster.name_server, check=check)
    async with producer as made:
        sent = await made.send_in_transaction(Message(topic, b"half done"), execute)

        async def is_open() -> bool:
            return sent.transaction_id in (await viewer.look("/transactions")).text

        await until(is_open)
        page = (await viewer.look("/transactions")).text
        assert f"<td>PG{topic}</td>" in page
        answer = TransactionState.COMMIT

        async def is_ended() -> bool:
            return not await is_open()

        await until(is_ended)


async def test_a_trace_is_a_timeline_of_send_and_deliveries(
    site: Console, topic: str, cluster: Cluster
) -> None:
    viewer, got = Visitor(site, "viewer"), []

    async def on_messages(messages: list[MessageExt]) -> None:
        got.extend(messages)

    settings = PushConsumerSettings(enable_trace=True)
    consumer = PushConsumer(f"CG{topic}", cluster.name_server, settings=settings)
    consumer.subscribe(topic, "traced", on_messages)
    tracing = ProducerSettings(enable_trace=True)
    producer = Producer(f"TG{topic}", cluster.name_server, settings=tracing)
    async with consumer, producer:
        sent = await producer.send(Message(topic, b"x", tags="traced"))

        async def is_traced() -> bool:
            page = (await viewer.look("/trace", id=sent.message_id)).text
            return f"TG{topic}" in page and f"CG{topic}" in page and "SUCCESS" in page

        await until(is_traced)
    page = (await viewer.look("/trace", id=sent.message_id)).text
    assert re.search(r"send</span>.*consume</span>", page, re.DOTALL)
    assert "first delivery" in page
    unknown = await viewer.look("/trace", id="0" * 32)
    assert "No trace of it" in unknown.text


async def test_the_page_about_access_control_has_no_secrets(
    site: Console, cluster: Cluster
) -> None:
    page = await Visitor(site, "viewer").look("/acl")
    assert page.status_code == 200
    assert "does not tell its accounts" in page.text
