"""What pages say and actions do, on our broker and on Java's."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from functools import partial
from html import unescape
from typing import TYPE_CHECKING

import pytest

from kerolox.client import PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message
from kerolox.protocol.codes import Perm
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.console.console import Console
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

FIRST = PushConsumerSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


async def test_a_topic_is_made_described_changed_and_deleted(
    site: Console, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    admin, name = Visitor(site, "admin"), f"Made{uuid.uuid4().hex[:8]}"
    made = {"topic": name, "queues": 3, "perm": 6, "cluster": "DefaultCluster"}
    assert f"Topic {name} has 3 queues" in await admin.act("/topic/create", **made)

    async def is_listed() -> bool:
        return name in (await admin.look("/topics", q=name.lower())).text

    await until(is_listed)
    again = await admin.post("/topic/create", **made)
    assert again.status_code == 400
    assert "is there already" in again.text

    assert "is changed" in await admin.act("/topic/update", topic=name, queues=5, perm=4)
    assert "read, 5 write" in (await admin.look("/topic", name=name)).text
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["outcome"], line["account"], line["action"]) == (
        "changed",
        "admin",
        "/topic/update",
    )
    [(old, new)] = zip(line["old"].values(), line["new"].values(), strict=True)
    assert (old, new) == (
        "3 read, 3 write queues, perm 6",
        "5 read, 5 write queues, perm 4",
    )

    kept = await admin.post("/topic/delete", topic=name, again="other")
    assert kept.status_code == 400
    assert name in await site.admin.list_topics()
    assert "is deleted" in await admin.act("/topic/delete", topic=name, again=name)

    async def is_gone() -> bool:
        return name not in await site.admin.list_topics()

    await until(is_gone)
    assert (await admin.look("/topic", name=name)).status_code == 404


async def test_a_sent_message_is_found_by_place_id_key_and_filters(
    site: Console, topic: str
) -> None:
    operator = Visitor(site, "operator")
    sent = await operator.act(
        *("/topic/send",),
        **{"topic": topic, "body": '{"größe": 1}\r\nx', "tags": "sent", "keys": "mine"},
        properties="colour=blue\r\nsize = 3",
    )
    found = re.search(r"offset (\d+) of (\S+), id (\w+)", sent)
    assert found
    offset, queue, message_id = found.groups()
    for way in (
        {"queue": queue, "offset": offset},
        {"id": message_id},
    ):
        page = (await operator.look("/message", topic=topic, **way)).text
        assert "{&#34;größe&#34;: 1}\nx</pre>" in page
        assert re.search(r"<dt>colour</dt>\s*<dd class=\"long\">blue", page)
    assert (
        "00000000  7b 22 67"
        in (
            await operator.look("/message", topic=topic, queue=queue, offset=offset, view="hex")
        ).text
    )

    async def shown(**parameters: object) -> str:
        page = (await operator.look("/messages", topic=topic, **parameters)).text
        count = re.search(r"<p role=\"status\">(\d+) shown, (\d+) read", page)
        assert count, page
        return f"{count[1]} of {count[2]}"

    async def by_key() -> bool:
        return await shown(key="mine") == "1 of 1"

    await until(by_key)
    assert await shown() == "11 of 11"
    assert await shown(tags="even") == "5 of 5"
    assert await shown(sql="number > 6") == "3 of 11"
    assert await shown(text='"number": 4') == "1 of 11"
    assert await shown(**{"from": "-1"}) == "2 of 2"
    assert await shown(queue=f"{queue.split('/')[0]}/0", until="2") == "2 of 2"
    wrong = await operator.look("/messages", topic=topic, sql="number >")
    assert wrong.status_code == 400
    assert "SQL92" in wrong.text
    assert (await operator.look("/messages", topic=topic, tags="||")).status_code == 400


async def test_a_followed_topic_shows_each_new_message_once(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")

    def cursor_of(text: str) -> str:
        found = re.search(r'name="cursor" value="([^"]*)"', text)
        assert found
        return found[1]

    page = (await viewer.look("/messages/tail", topic=topic)).text
    assert "<li><span" not in page
    cursor, seen = cursor_of(page), []

    async def is_seen(count: int) -> bool:
        nonlocal cursor
        part = (await viewer.look("/messages/tail", topic=topic, cursor=cursor)).text
        seen.extend(re.findall(r"new-\d", part))
        cursor = cursor_of(part)
        return len(seen) >= count

    for number in range(3):
        await site.admin.send_message(Message(topic, f"new-{number}".encode()))
        await until(partial(is_seen, number + 1), what=f"message {number}")
    assert seen == ["new-0", "new-1", "new-2"]
    for wrong in ("x", "a/b:1", "broker-a/0:-1"):
        look = await viewer.look("/messages/tail", topic=topic, cursor=wrong)
        assert look.status_code == 400


async def test_a_message_is_sent_again_as_it_is_or_edited(site: Console, topic: str) -> None:
    operator = Visitor(site, "operator")
    [queue, *_] = [each.queue for each in (await site.admin.describe_topic(topic)).queues]
    place = {"topic": topic, "queue": f"{queue.broker_name}/0", "offset": 0}
    await operator.act("/message/resend", **place)
    await operator.act("/message/resend", **place, edited=1, body="another body")

    async def are_shown() -> bool:
        page = (await operator.look("/messages", topic=topic)).text
        return (page.count("{ &#34;number&#34;: 0 }"), page.count("another body")) == (2, 1)

    await until(are_shown, what="both once more")
    gone = await operator.post("/message/resend", **{**place, "offset": 99})
    assert gone.status_code == 404


async def test_a_message_is_sent_again_to_a_topic_that_may_not_be_read(
    site: Console, topic: str
) -> None:
    operator = Visitor(site, "operator")
    written = f"T{uuid.uuid4().hex[:12]}"
    await site.admin.create_topic(written, queues=1, perm=Perm.WRITE)
    [queue, *_] = [each.queue for each in (await site.admin.describe_topic(topic)).queues]
    place = {"topic": topic, "queue": f"{queue.broker_name}/0", "offset": 0, "to": written}
    answer = await operator.post("/message/resend", **place)
    assert answer.status_code == 303
    assert f"/message?topic={written}" in answer.headers["location"]


async def test_a_group_shows_lag_members_and_moves_when_it_is_told(
    site: Console, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, got = f"G{uuid.uuid4().hex[:12]}", []
    operator = Visitor(site, "operator")

    async def on_messages(messages: list[MessageExt]) -> None:
        got.extend(messages)

    consumer = PushConsumer(group, site.settings.name_server, settings=FIRST)
    consumer.subscribe(topic, "*", on_messages)
    async with consumer:
        await until(lambda: len(got) == 10)

        async def is_shown() -> bool:
            page = (await operator.look("/group", name=group)).text
            return consumer.client_id in page.replace("&#34;", '"') and topic in page

        await until(is_shown)
        member = await operator.look("/group/member", name=group, client=consumer.client_id)
        assert member.status_code == 200
        assert topic in member.text
    for page in ("/groups", "/topic"):

        async def is_listed(page: str = page) -> bool:
            site.cache.clear()
            return group in (await operator.look(page, name=topic, q=group)).text

        await until(is_listed)

    # Its last commit is one-way, and a Java broker stores that after it answered what came later.
    async def is_committed() -> bool:
        return (await site.admin.group_progress(group, topic=topic)).lag == 0

    await until(is_committed)
    plan = await operator.look("/group/reset", name=group, topic=topic, to="-2")
    assert "Nothing is changed yet. 4 messages would come again, 0 would be skipped" in plan.text
    assert await is_committed()

    caplog.set_level(logging.INFO, LOGGER)

    # Who is offline is not known at once to be.
    async def is_offline() -> bool:
        return "offline" in (await operator.look("/groups", q=group)).text

    await until(is_offline)
    told = await operator.act("/group/reset", name=group, topic=topic, to="-2")
    assert "4 messages come again" in told
    assert (await site.admin.group_progress(group, topic=topic)).lag == 4
    line = json.loads(caplog.records[-1].getMessage())
    assert (sorted(line["old"].values()), sorted(line["new"].values())) == ([5, 5], [3, 3])
    for wrong in ("", "x", "-"):
        look = await operator.look("/group/reset", name=group, topic=topic, to=wrong)
        assert look.status_code == 400


async def test_a_group_is_paused_resumed_and_deleted(site: Console) -> None:
    admin, group = Visitor(site, "admin"), f"P{uuid.uuid4().hex[:12]}"
    await site.admin.update_group(group)
    assert "paused on 1" in await admin.act("/group/pause", name=group)
    assert ": paused" in (await admin.look("/group", name=group)).text
    assert "resumed on 1" in await admin.act("/group/resume", name=group)
    assert ": delivers" in (await admin.look("/group", name=group)).text
    assert (await admin.post("/group/delete", name=group, again="x")).status_code == 400
    assert "is deleted" in await admin.act("/group/delete", name=group, again=group)
    assert group not in await site.admin.list_groups()


async def test_a_setting_of_a_broker_is_shown_and_changed(site: Console, cluster: Cluster) -> None:
    admin = Visitor(site, "admin")
    listed = await admin.look("/brokers")
    assert cluster.broker in listed.text
    page = await admin.look("/broker", address=cluster.broker, q="fileReserved")
    runtime = await site.admin.broker_runtime(cluster.broker)
    assert all(f">{runtime.software}<" in each.text for each in (listed, page))
    assert ("<dt>Kernel</dt>" in page.text) == (cluster.kind == "ours")
    assert re.search(r'<td>fileReservedTime</td><td class="body">72', page.text)
    await admin.act("/broker/set", address=cluster.broker, name="fileReservedTime", value="71")
    assert (await site.admin.broker_settings(cluster.broker))["fileReservedTime"] == "71"
    await admin.act("/broker/set", address=cluster.broker, name="fileReservedTime", value="72")
    unknown = await admin.post("/broker/set", address=cluster.broker, name="noSuch", value="1")
    assert unknown.status_code == 400


async def test_the_overview_has_metrics_now_and_over_time(site: Console, cluster: Cluster) -> None:
    viewer = Visitor(site, "viewer")
    page = await viewer.look("/")
    assert cluster.broker in page.text
    assert re.search(r"<dt>Topics</dt><dd><a[^>]*>\d+", page.text)
    chart = await viewer.client.get("/history.json?series=in:&series=lag:&hours=1")
    found = chart.json()
    assert len(found["times"]) == len(found["values"][0]) == len(found["values"][1]) >= 1
    assert found["end"] - found["begin"] == 3600
    many = "&".join(f"series=lag:{i}" for i in range(20))
    assert (await viewer.client.get(f"/history.json?{many}")).status_code == 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/group/pause", {}),
        ("/group/resume", {}),
        ("/group/release", {"minutes": "0", "at": "0"}),
        ("/group/reset", {"topic": "TOPIC", "to": "end"}),
        ("/group/clone", {"target": "also-nobody"}),
        ("/group/delete", {"again": "NAME"}),
    ],
)
async def test_nothing_is_done_with_a_group_that_is_not_there(
    site: Console, topic: str, path: str, fields: dict[str, str]
) -> None:
    name = f"nobody-{topic}"
    visitor = Visitor(site, "admin" if path == "/group/delete" else "operator")
    texts = {"TOPIC": topic, "NAME": name}
    given = {field: texts.get(value, value) for field, value in fields.items()}
    refused = await visitor.post(path, name=name, **given)
    assert refused.status_code == 404
    assert f"there is no group &#39;{name}&#39;" in refused.text
    assert name not in await site.admin.list_groups()


async def test_offsets_are_copied_to_a_new_group_only_where_that_is_said(
    site: Console, topic: str
) -> None:
    name, target = f"source-{topic}", f"target-{topic}"
    await site.admin.update_group(name)
    operator = Visitor(site, "operator")
    refused = await operator.post("/group/clone", name=name, target=target)
    assert refused.status_code == 404
    said = await operator.post("/group/clone", name=name, target=target, new="1")
    assert "there is no group" not in said.text


async def test_a_group_that_is_not_there_has_no_page(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")
    for path in ("/group", "/group/reset"):
        page = await viewer.look(path, name=f"nobody-{topic}", topic=topic, to="end")
        assert page.status_code == 404
        assert "there is no group" in page.text


async def test_a_paused_group_is_seen_by_viewers_too(site: Console, topic: str) -> None:
    name = f"paused-{topic}"
    await site.admin.update_group(name, consume_enable=False)
    site.cache.clear()
    viewer = Visitor(site, "viewer")
    page = (await viewer.look("/group", name=name)).text
    assert f'{name} <span class="badge bad">paused</span></h1>' in page
    assert "No member is online." in page
    assert "code 206" not in page
    listed = (await viewer.look("/groups", q=name)).text
    assert f'{name}</a></td><td><span class="badge bad">paused</span></td>' in listed
    assert re.search(r"<small>\d+ paused</small>", (await viewer.look("/")).text)
    # Where its messages pile up, too.
    await site.admin.reset_offsets(name, topic, 0)
    site.cache.clear()
    await site.sampler.take()
    for path, fields in (("/topic", {"name": topic}), ("/", {})):
        shown = (await viewer.look(path, **fields)).text
        assert f'{name}</a> <span class="badge bad">paused</span></td>' in shown


async def test_a_group_with_offsets_alone_is_listed_and_its_messages_wait(
    site: Console, topic: str
) -> None:
    name = f"offsets-{topic}"
    before = (await site.sampler.take()).lag
    await site.admin.reset_offsets(name, topic, 0)
    site.cache.clear()
    sample = await site.sampler.take()
    assert sample.groups[name].lag == 10
    assert sample.lag == before + 10
    viewer = Visitor(site, "viewer")
    row = rf'{name}</a></td><td>no settings</td><td class="n"><span class="quiet">offline</span>'

    async def is_shown() -> bool:
        return re.search(row, (await viewer.look("/groups", q=name)).text) is not None

    await until(is_shown)
    assert (await viewer.look("/group", name=name)).status_code == 200
    assert ">Delivered /s<" in (await viewer.look("/groups")).text
    assert ">Delivered /s<" in (await viewer.look("/")).text
    refused = await Visitor(site, "operator").post("/group/pause", name=name)
    assert f"no broker has settings of group &#39;{name}&#39;" in refused.text
    asked = await viewer.client.get(f"/history.json?series=lag:{name}&series=lag:")
    history = asked.json()
    values = [value for each in history["values"] for value in each if value is not None]
    assert all(isinstance(each, int) for each in values)


async def test_lags_of_a_chart_are_whole_and_what_is_missing_is_null(console: Console) -> None:
    now = int(time.time()) // 60 * 60 - 60
    await console.history.add(now, {"lag:a": 1.0, "in:": 1.0})
    await console.history.add(now + 15, {"lag:a": 2.0, "lag:b": 3.0, "in:": 2.0})
    asked = "/history.json?series=lag:a&series=lag:none&series=in:"
    found = (await Visitor(console, "viewer").client.get(asked)).json()
    lag, none, rate = found["values"]
    assert {each for each in lag if each is not None} <= {0, 1, 2}
    assert all(isinstance(each, int) for each in lag if each is not None)
    assert set(none) == {None}
    assert 1.5 in rate


async def test_what_goes_through_a_form_is_stored_as_it_was_typed(
    site: Console, topic: str
) -> None:
    operator = Visitor(site, "operator")
    typed = {
        "body": "  first\r\n\tü %2F+\u2028 \r\n\r\n",
        "properties": "note=  a=b \r\nother=y\u2028z\r\n\r\n",
        "keys": "k%2F+ü o-1",
    }
    await operator.act("/topic/send", topic=topic, **typed)

    async def found() -> str:
        return (await operator.look("/messages", topic=topic, key="k%2F+ü")).text

    await until(lambda: _has_link(found), what="the index")
    page = await found()
    [link] = re.findall(r'href="(/message\?[^"]+)"', page)
    shown = (await operator.client.get(unescape(link))).text
    messages = [each async for each in site.admin.read_messages(topic)]
    [stored] = [each for each in messages if each.keys == "k%2F+ü o-1"]
    assert stored.body == "  first\n\tü %2F+\u2028 \n\n".encode()
    own = {name: stored.properties[name] for name in ("note", "other")}
    assert own == {"note": "  a=b ", "other": "y\u2028z"}
    assert "k%2F+ü o-1" in shown
    # The form holds all of it, and what comes back unchanged is the same message.
    area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", shown, re.DOTALL)
    assert area
    place = f"{stored.broker_name}/{stored.queue_id}"
    of = {"topic": topic, "queue": place, "offset": str(stored.queue_offset), "to": topic}
    sent = unescape(area[1]).replace("\n", "\r\n")
    await operator.act("/message/resend", **of, edited="1", body=sent)
    messages = [each async for each in site.admin.read_messages(topic)]
    copies = [each for each in messages if each.keys == "k%2F+ü o-1"]
    assert [each.body for each in copies] == [stored.body] * 2


async def _has_link(page: Callable[[], Awaitable[str]]) -> bool:
    return "/message?" in await page()


async def test_a_group_is_made_to_consume_in_order_and_not_any_more(console: Console) -> None:
    admin, group = Visitor(console, "admin"), "in-order-by-page"
    told = await admin.act("/group/update", name=group, retries=1, orderly="1")
    assert told.endswith("with 1 retry, in order by gRPC.")
    shown = "Clients by gRPC get the messages of a queue in order."
    assert shown in (await admin.look("/group", name=group)).text
    # The form of another page says nothing of it.
    await admin.act("/group/update", name=group, retries=2)
    assert shown in (await admin.look("/group", name=group)).text
    await admin.act("/group/update", name=group, retries=2, was_orderly="1")
    assert shown not in (await admin.look("/group", name=group)).text


async def test_a_page_of_a_topic_says_what_its_window_of_keys_has(
    console: Console, topic_of_console: str
) -> None:
    await console.admin.update_topic(topic_of_console, attributes={"dedup.window.ms": "90000"})
    for _ in range(2):
        await console.admin.send_message(Message(topic_of_console, b"x"))
    page = (await Visitor(console, "viewer").look("/topic", name=topic_of_console)).text
    assert re.search(
        r"window of 1 min 30 s: 2 keys, \d+ bytes, the oldest [^,]+ old, 0 messages not stored",
        page,
    )
