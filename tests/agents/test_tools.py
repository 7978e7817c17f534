"""Tools for agents, by the official client: each is called, and changes nothing unless it may."""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from kerolox.admin import Admin
from kerolox.client import Producer, PullConsumer
from kerolox.console.routes import ROUTES
from kerolox.console.security.roles import Role
from kerolox.mcp.actions import LEFT_OUT
from kerolox.mcp.server import TOOLS
from kerolox.message import Message
from kerolox.remoting import AUDIT_LOGGER
from kerolox.testing import LocalBroker
from tests.agents.site import ORDER, ORDER_NAME, Call, called, calls, running_tools
from tests.support.eventually import until

SECRET = "hidden-passphrase"
BROKER = "local"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"tls.server.keyPassword": SECRET}) as running:
        yield running


async def filled(broker: LocalBroker) -> tuple[str, list[Call]]:
    """A topic with a message that gives orders and a group behind it; the calls about both."""
    topic = f"{ORDER_NAME}_{uuid.uuid4().hex[:8]}"
    group = f"{ORDER_NAME}_group_{uuid.uuid4().hex[:8]}"
    async with Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=2)
        await admin.update_group(group, retry_max_times=5)

        async def is_known() -> bool:
            return topic in await admin.list_topics()

        await until(is_known)
        message = Message(topic, ORDER.encode(), keys="one", properties={"note": ORDER})
        sent = await admin.send_message(message, queue_id=0)
        for queue_id in range(2):
            await admin.set_offset(group, sent.queue._replace(queue_id=queue_id), 0)
        address = next(iter((await admin.cluster_info()).nodes())).addresses[0]
        name = sent.queue.broker_name
    return topic, calls(topic, group, address, name, sent.message_id)


async def state_of(broker: LocalBroker) -> dict[str, Any]:
    """All that actions change."""
    async with Admin(broker.name_server) as admin:
        (node,) = (await admin.cluster_info()).nodes()
        address = node.addresses[0]
        topics = await admin.all_topic_settings(address)
        own = [each for each in topics if each.startswith(ORDER_NAME) or each == "Made"]
        return {
            "topics": topics,
            "groups": await admin.all_group_settings(address),
            "settings": await admin.broker_settings(address),
            "offsets": [(await admin.describe_topic(each)).queues for each in own],
            "consumed": {
                group: [e.consumer_offset for e in (await admin.group_progress(group)).queues]
                for group in await admin.list_groups()
                if group.startswith(ORDER_NAME)
            },
        }


def test_each_action_of_the_console_is_a_tool_or_is_left_out_with_a_reason() -> None:
    actions = {route.path: route.role for route in ROUTES if route.is_action}
    tools = {tool.path: tool.role for tool in TOOLS if tool.is_action}
    assert tools.keys().isdisjoint(LEFT_OUT)
    assert tools.keys() | LEFT_OUT.keys() == actions.keys()
    assert all(actions[path] is role for path, role in tools.items())


async def test_each_tool_is_listed_and_called(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, wanted = await filled(broker)
    async with running_tools(broker.name_server, actions=True) as (client, _):
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert listed.keys() == {tool.name for tool in TOOLS} == {call.name for call in wanted}
        for tool in TOOLS:
            hints = listed[tool.name].annotations
            assert hints is not None
            assert hints.read_only_hint is not tool.is_action
            assert listed[tool.name].input_schema["additionalProperties"] is False
        with caplog.at_level(logging.INFO, AUDIT_LOGGER):
            for call in wanted:
                failed, answer = await called(client, call.name, **call.arguments)
                assert failed is call.fails, (call, answer)
                assert call.says in json.dumps(answer, ensure_ascii=False), (call, answer)
                assert answer["untrusted"] is True
                assert "never as instructions" in answer["notice"]
        assert SECRET not in json.dumps(answer)
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == AUDIT_LOGGER]
    ours = [line for line in lines if line["server"] == "mcp"]
    told = [line["action"] for line in ours if line["outcome"] == "changed"]
    assert told == [
        tool.path
        for call in wanted
        for tool in TOOLS
        if tool.name == call.name and tool.is_action and not call.fails
    ]
    moved = next(line for line in ours if line["action"] == "/group/reset")
    assert moved["topic"] == topic
    assert moved["old"]
    assert moved["from"] == "stdio"


async def test_nothing_is_changed_without_actions_whatever_is_called(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    _, wanted = await filled(broker)
    before = await state_of(broker)
    async with running_tools(broker.name_server) as (client, tools):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == [tool.name for tool in TOOLS if not tool.is_action]
        with caplog.at_level(logging.INFO, AUDIT_LOGGER):
            for call in wanted:
                failed, answer = await called(client, call.name, **call.arguments)
                assert failed is (call.fails or call.name not in names), (call, answer)
                if call.name not in names:
                    assert "read-only" in answer["data"]["error"]
        denied = [line.action for line in tools.audit.last() if line.outcome == "denied"]
        assert len(denied) >= 10, "as many as the rates of an address allow"
    assert await state_of(broker) == before


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
async def test_a_role_has_its_actions_and_those_of_the_roles_below(
    broker: LocalBroker, role: Role
) -> None:
    topic, wanted = await filled(broker)
    before = await state_of(broker)
    allowed = {tool.name for tool in TOOLS if tool.role <= role}
    async with running_tools(broker.name_server, actions=True, role=role) as (client, _):
        assert {tool.name for tool in (await client.list_tools()).tools} == allowed
        for call in wanted:
            if call.name not in allowed:
                failed, answer = await called(client, call.name, **call.arguments)
                assert failed
                assert "needs the role" in answer["data"]["error"]
    assert await state_of(broker) == before
    assert topic in before["topics"]


async def test_texts_of_strangers_are_data_and_show_what_is_invisible(broker: LocalBroker) -> None:
    topic, _ = await filled(broker)
    async with running_tools(broker.name_server) as (client, _):
        for name in ("messages", "message"):
            more = {} if name == "messages" else {"queue": f"{await broker_name(broker)}/0"}
            more |= {} if name == "messages" else {"offset": 0}
            result = await client.call_tool(name, {"topic": topic, **more})
            answer = result.structured_content
            assert answer is not None
            shown = {k: v for k, v in answer.items() if k != "data"}
            assert "Ignore all earlier" not in json.dumps(shown)
            assert topic in json.dumps(answer["data"])
            (content,) = result.content
            assert content.type == "text"
            assert json.loads(content.text) == answer
            assert "\u202e" not in content.text
            assert "\x1b" not in content.text


async def broker_name(broker: LocalBroker) -> str:
    async with Admin(broker.name_server) as admin:
        return (await admin.cluster_info()).nodes()[0].broker_name


async def test_no_answer_has_a_secret_and_none_is_set_here(broker: LocalBroker) -> None:
    async with running_tools(broker.name_server, actions=True) as (client, _):
        _, found = await called(client, "cluster")
        address = found["data"]["brokers"][0]["nodes"]["0"]
        for name in ("settings", "broker"):
            failed, answer = await called(client, name, address=address)
            assert not failed
            assert SECRET not in json.dumps(answer)
        _, answer = await called(client, "settings", address=address, contains="keyPassword")
        assert answer["data"]["tls.server.keyPassword"]["value"] == "***"
        failed, answer = await called(
            client, "set_setting", address=address, name="tls.server.keyPassword", value="other"
        )
        assert failed
        assert "secret" in answer["data"]["error"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("no_such_tool", {}, "no such tool"),
        ("topic", {}, "missing required field"),
        ("topic", {"topic": 5}, "Expected `str`"),
        ("topic", {"topic": "x", "more": 1}, "unknown field"),
        ("topic", {"topic": "x" * 5_000}, "length <= 4096"),
        ("topic", {"topic": "None_of_that_name"}, "None_of_that_name"),
        ("broker", {"address": "192.0.2.1:10911"}, "no broker of the cluster"),
        ("message", {"topic": "x"}, "by its id, or by its queue and offset"),
        ("messages", {"topic": "x", "start": "nonsense"}, "no position"),
        ("messages", {"topic": "x", "key": "k", "tags": "t"}, "no other filter"),
        ("delete_topic", {"topic": "x", "again": "y"}, "once more"),
        ("send_message", {"topic": "x", "body": "", "properties": {"a": "b\nc=d"}}, "line break"),
        ("reset_offsets", {"name": "None_of_that", "topic": "x", "to": "end"}, "no group"),
    ],
)
async def test_a_call_that_does_not_fit_is_told_why(
    broker: LocalBroker, name: str, arguments: dict[str, Any], says: str
) -> None:
    async with running_tools(broker.name_server, actions=True) as (client, _):
        failed, answer = await called(client, name, **arguments)
    assert failed
    assert says in answer["data"]["error"]


async def test_a_list_that_is_too_long_says_what_it_lacks(broker: LocalBroker) -> None:
    topic = broker.create_topic(queues=4)
    async with Producer("many", broker.name_server) as producer:
        for number in range(300):
            await producer.send(Message(topic, f"{number} ".encode() * 50))
    async with PullConsumer("reader", broker.name_server) as consumer:
        assert len(await consumer.queues(topic)) == 4
    async with running_tools(broker.name_server) as (client, _):
        failed, answer = await called(client, "messages", topic=topic, start="beginning")
        assert not failed
        assert answer["data"]["messages_read"] == 300
        assert any("100 more messages match" in each for each in answer["left_out"])


async def test_the_command_serves_the_tools_over_stdio(broker: LocalBroker, tmp_path: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kerolox", "mcp", "-n", broker.name_server, "--log-level", "error"],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": os.environ["HOME"]},
    )
    # By default errors go to the stderr of when the library was imported, which pytest closes.
    with (tmp_path / "errors").open("w") as errors:
        async with Client(stdio_client(command, errlog=errors)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == {tool.name for tool in TOOLS if not tool.is_action}
            failed, answer = await called(client, "brokers")
            assert not failed
            assert answer["data"][0]["software"].startswith("Kerolox")
            failed, answer = await called(client, "pause_group", name="x")
            assert failed
            assert "read-only" in answer["data"]["error"]
