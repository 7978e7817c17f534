"""Requests and replies with the command line, on our broker and on the Java broker."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

from tests.contract.command_line.shell import Shell
from tests.support.servers.command import start

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster


async def test_a_request_gets_what_the_other_side_replies(
    cluster: Cluster, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    replying = start(
        *("reply", topic, "--group", group, "--command", "tr a-z A-Z; printf ' {{n}}'"),
        *("--template", "-H", "from=a-shell", "--ready-line", "-n", cluster.name_server),
    )
    try:
        assert replying.stdout is not None
        line = await asyncio.to_thread(replying.stdout.readline)
        assert line == f"following {topic}\n"
        ask = ("request", topic, "--timeout", 60)
        reply = await shell.json(*ask, "hello")
        assert reply["body"] == "HELLO 1"
        assert reply["properties"]["from"] == "a-shell"
        assert await shell.text(*ask, "more", "-o", "raw") == "MORE 2\n"
    finally:
        replying.send_signal(signal.SIGINT)
        await asyncio.to_thread(replying.wait, 60)
        replying.communicate()
    failing = start(
        *("reply", topic, "--group", group, "--command", "exit 3", "--count", 1),
        *("--ready-line", "-n", cluster.name_server),
    )
    assert failing.stdout is not None
    await asyncio.to_thread(failing.stdout.readline)
    refused = await shell.run("request", topic, "x", "--timeout", 60, "-o", "json", code=1)
    assert json.loads(refused.stderr)["error"]["type"] == "ReplyError"
    assert "was answered with an error: the command ended with exit code 3" in refused.stderr
    assert await asyncio.to_thread(failing.wait, 60) == 0
    failing.communicate()
    late = await shell.run("request", topic, "x", "--timeout", 0.3, "-o", "json", code=1)
    assert json.loads(late.stderr)["error"]["type"] == "RequestTimeoutError"
