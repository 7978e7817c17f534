"""Dead letters, delayed messages, open transactions, traces: on our broker and on Java's."""

from __future__ import annotations

import json
import logging
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import TimedMessage
from kerolox.client import (
    ConsumeStatus,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.console.pages import dead_letters
from kerolox.console.pages.delayed import slots_of
from kerolox.message import ConsumeFromWhere, Message
from kerolox.protocol.recall_handles import RecallHandle
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    import httpx

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
    for wrong in ([], ["x"], ["a/b:c"], [f"{broker}:{i}" for i in range(201)]):
        refused = await operator.post("/dead-letter/resend", group=group, place=wrong)
        assert refused.status_code == 400


async def letters_of(console: Console, group: str, count: int) -> None:
    """A group that was online at some time, and has given up so many messages."""
    for topic in (f"%DLQ%{group}", f"%RETRY%{group}"):
        await console.admin.create_topic(topic, queues=1)
    for number in range(count):
        await console.admin.send_message(Message(f"%DLQ%{group}", b"%d" % number))

    async def are_there() -> bool:
        return sum(e.waiting for e in await console.admin.dead_letter_queues(group)) == count

    await until(are_there)


async def test_sending_all_again_goes_on_by_itself_on_the_page_that_began_it(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, operator = f"D{uuid.uuid4().hex[:12]}", Visitor(console, "operator")
    await letters_of(console, group, 3)
    monkeypatch.setattr(dead_letters, "RESENT_SECONDS_MAX", -1)

    async def goes_on(page: httpx.Response) -> tuple[str, str] | None:
        found = re.search(r'<progress id="sent" max="(\d+)" value="(\d+)">', page.text)
        assert (found is None) == ("data-goes-on" not in page.text)
        return (found[2], found[1]) if found else None

    done = await operator.post("/dead-letter/resend-all", group=group)
    location = done.headers["location"]
    # Neither another page of the group, nor a part of it, nor a link that somebody made.
    assert await goes_on(await operator.look("/dead-letter", group=group)) is None
    done = await operator.post("/dead-letter/resend-all", group=group, begun="3")
    refresh = {"kerolox-refresh": "1"}
    part = await operator.client.get(done.headers["location"], headers=refresh)
    assert await goes_on(part) is None
    assert await goes_on(await operator.client.get(location)) is None
    # It was begun before that, so what waits is the third of three.
    monkeypatch.setattr(dead_letters, "RESENT_SECONDS_MAX", 60)
    assert "1 dead letter was sent again." in await operator.act(
        "/dead-letter/resend-all", group=group
    )
    await letters_of(console, f"{group}-b", 3)
    monkeypatch.setattr(dead_letters, "RESENT_SECONDS_MAX", -1)
    done = await operator.post("/dead-letter/resend-all", group=f"{group}-b")
    page = await operator.client.get(done.headers["location"])
    assert await goes_on(page) == ("1", "3")
    assert '<input type="hidden" name="begun" value="3">' in page.text
    done = await operator.post("/dead-letter/resend-all", group=f"{group}-b", begun="3")
    assert await goes_on(await operator.client.get(done.headers["location"])) == ("2", "3")
    done = await operator.post("/dead-letter/resend-all", group=f"{group}-b", begun="3")
    assert await goes_on(await operator.client.get(done.headers["location"])) is None


async def test_the_newest_dead_letters_are_shown_and_all_of_them_searched(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, viewer = f"D{uuid.uuid4().hex[:12]}", Visitor(console, "viewer")
    await letters_of(console, group, 5)
    monkeypatch.setattr(dead_letters, "NEWEST_SHOWN", 2)

    async def shown(**asked: str) -> str:
        page = (await viewer.look("/dead-letter", group=group, **asked)).text
        found = re.search(r"(5 of 5 wait. \d shown, \d read)", page)
        assert found
        return found[1]

    page = (await viewer.look("/group", name=group)).text
    assert f'<a href="/dead-letter?group={group}">5</a><small>waiting</small>' in page
    assert await shown() == "5 of 5 wait. 2 shown, 2 read"
    assert await shown(text="0") == "5 of 5 wait. 1 shown, 5 read"
    assert await shown(**{"from": "beginning"}) == "5 of 5 wait. 5 shown, 5 read"


async def test_a_page_of_dead_letters_reads_them_again_only_once_they_changed(
    console: Console,
) -> None:
    group, operator = f"D{uuid.uuid4().hex[:12]}", Visitor(console, "operator")
    await letters_of(console, group, 2)

    async def asked(version: str) -> httpx.Response:
        headers = {"kerolox-refresh": "1", "if-none-match": version}
        return await operator.client.get(f"/dead-letter?group={group}", headers=headers)

    def version_of(page: httpx.Response) -> str:
        found = re.search(r'data-version="(\w+)"', page.text)
        assert found
        return found[1]

    first = version_of(await operator.look("/dead-letter", group=group))
    assert (await asked(first)).status_code == 304
    assert (await asked("another")).status_code == 200
    await console.admin.send_message(Message(f"%DLQ%{group}", b"more"))
    console.cache.clear()
    second = version_of(await asked(first))
    assert second != first
    await operator.act("/dead-letter/purge", group=group, again=group)
    assert version_of(await asked(second)) != second


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


async def timed(console: Console, topic: str, seconds: int, count: int = 1) -> None:
    """Messages for one moment, in the wheel."""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
    async with Producer(f"TP{topic}", console.settings.name_server) as producer:
        for number in range(count):
            message = Message(topic, b"timed %d" % number, keys=f"k{number}")
            await producer.send(message, deliver_at=due)

    async def waits() -> bool:
        found, _ = await console.cluster.ask_masters(console.admin.timed_messages)
        return sum(each.waiting.get(topic, 0) for each in found.values()) >= count

    await until(waits, what="the wheel")


async def test_what_waits_for_a_moment_is_counted_by_slot_and_taken_back_by_a_click(
    console: Console, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    viewer, operator = Visitor(console, "viewer"), Visitor(console, "operator")
    await timed(console, topic, 7_500, 3)
    page = (await viewer.look("/delayed")).text
    assert re.search(rf'<a href="/topic\?name={topic}">{topic}</a> 3', page)
    assert re.search(rf'<td class="n">2 h \d+ min</td><td class="n">3</td><td>{topic}</td>', page)
    assert "/delayed/recall" not in page
    own = rf'<td>{topic}</td><td class="long">.*?name="handle" value="([^"]+)"'
    handles = re.findall(own, (await operator.look("/delayed")).text)
    assert len(handles) == 3
    assert (await viewer.post("/delayed/recall", handle=handles[0])).status_code == 403
    told = await operator.act("/delayed/recall", handle=handles[0])
    assert re.search(rf"Taken back: \w+ will not come to {topic}\.", told)
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["action"], line["topic"], line["old"], line["new"]) == (
        *("/delayed/recall", topic, "waiting", "taken back"),
    )
    assert line["msgId"]
    left = re.findall(own, (await operator.look("/delayed")).text)
    assert left == handles[1:]
    for wrong, status in (("x", 400), (RecallHandle(topic, "no", 9, "k").encode(), 404)):
        assert (await operator.post("/delayed/recall", handle=wrong)).status_code == status
    wrong = RecallHandle(topic, line["brokerName"], 9, "k").encode()
    refused = await operator.post("/delayed/recall", handle=wrong)
    assert "its moment is over" in refused.text
    assert json.loads(caplog.records[-1].getMessage())["msgId"] == "k"


def test_a_slot_is_a_second_and_names_the_topics_with_the_most_messages() -> None:
    message = Message("rmq_sys_wheel_timer", b"")
    due = {9_000: "a", 9_001: "b", 10_000: "b", 10_001: "b"}
    found = slots_of(
        TimedMessage(message, topic, due_ms, "")  # type: ignore[arg-type]
        for due_ms, topic in due.items()
    )
    assert [(each.until_ms, each.count, each.topics) for each in found] == [
        (9_000, 1, (("a", 1),)),
        (10_000, 2, (("b", 2),)),
        (11_000, 1, (("b", 1),)),
    ]


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


async def open_half(site: Console, topic: str, name_server: str) -> tuple[str, str]:
    """A half message whose producer is gone: the broker's name, and the message's id."""

    async def undecided(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    producer = TransactionProducer(f"PG{topic}", name_server, check=undecided)
    async with producer as made:
        sent = await made.send_in_transaction(Message(topic, b"undecided"), undecided)
    viewer, broker = Visitor(site, "viewer"), sent.send.queue.broker_name

    async def is_open() -> bool:
        page = await viewer.look("/transaction", broker=broker, id=sent.transaction_id)
        return page.status_code == 200

    await until(is_open)
    return broker, sent.transaction_id


async def stored(site: Console, topic: str) -> list[bytes]:
    """Bodies of all messages but those that the fixture has sent."""
    found = [each.body async for each in site.admin.read_messages(topic, max_messages=100)]
    return [body for body in found if not body.startswith(b"{")]


async def is_ended(site: Console, broker: str, key: str) -> bool:
    page = await Visitor(site, "viewer").look("/transaction", broker=broker, id=key)
    return page.status_code == 404


async def test_an_administrator_commits_a_transaction_whose_producer_is_gone(
    site: Console, topic: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    broker, key = await open_half(site, topic, cluster.name_server)
    admin, asked = Visitor(site, "admin"), {"broker": broker, "id": key}
    for role in ("viewer", "operator"):
        visitor = Visitor(site, role)
        page = await visitor.look("/transaction", **asked)
        assert "undecided" in page.text
        assert "Commit it" not in page.text
        for path in ("/transaction/commit", "/transaction/rollback"):
            assert (await visitor.post(path, **asked, again=key)).status_code == 403
    assert await stored(site, topic) == []
    assert f"Committed: {key}" in await admin.act("/transaction/commit", **asked)

    async def is_there() -> bool:
        return await stored(site, topic) == [b"undecided"]

    await until(is_there)
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["action"], line["msgId"], line["new"]) == ("/transaction/commit", key, "committed")
    assert (line["topic"], line["producerGroup"]) == (topic, f"PG{topic}")
    await until(lambda: is_ended(site, broker, key))
    again = await admin.post("/transaction/commit", **asked)
    assert again.status_code == 404
    assert "may be ended by now" in again.text
    assert await stored(site, topic) == [b"undecided"]


async def test_an_administrator_rolls_a_transaction_back_after_its_id_is_typed(
    site: Console, topic: str, cluster: Cluster
) -> None:
    broker, key = await open_half(site, topic, cluster.name_server)
    admin, asked = Visitor(site, "admin"), {"broker": broker, "id": key}
    assert (await admin.post("/transaction/rollback", **asked, again="x")).status_code == 400
    elsewhere = asked | {"broker": "nowhere"}
    assert (await admin.post("/transaction/commit", **elsewhere)).status_code == 404
    assert not await is_ended(site, broker, key)
    told = await admin.act("/transaction/rollback", **asked, again=key)
    assert f"Rolled back: {key}" in told
    await until(lambda: is_ended(site, broker, key))
    assert key not in (await admin.look("/transactions")).text
    assert await stored(site, topic) == []


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
