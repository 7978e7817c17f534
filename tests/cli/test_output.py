"""What commands print: nothing of a stranger's is obeyed by a terminal, but with ``-o raw``."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.cli.output import one_line
from kerolox.cli.values import json_text
from kerolox.remoting.server import RemotingServer
from tests.support.servers.command import kerolox

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SOURCES = Path(__file__).resolve().parents[2] / "src" / "kerolox" / "cli"
EVIL = "a\x1b[2J\x9b31m\u202eb\nc\x07"
SHOWN = r"a\x1b[2J\x9b31m\u202eb\nc\x07"


def test_nothing_but_the_output_module_prints() -> None:
    pattern = re.compile(r"click\.echo|click\.secho|\bprint\(|std(?:out|err)\.(?:buffer\.)?write")
    allowed = {"output.py", "logs.py"}
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(SOURCES.glob("*.py"))
        if path.name not in allowed
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    # Progress is figures of our own, written over in one line.
    assert all(line.startswith('store.py: click.echo(f"\\r') for line in found)


@pytest.mark.parametrize("text", [EVIL, "\ud800", "\U000e0001", "grüße", "\x7f", 'x"\\'])
def test_json_is_escaped_and_still_says_the_same(text: str) -> None:
    written = json_text({"name": text})
    assert written.isprintable()
    assert json.loads(written) == {"name": text}


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert one_line(f"no topic {EVIL}") == r"no topic a\x1b[2J\x9b31m\u202eb c\x07"
    assert len(one_line("y" * 100_000)) < 2100


def test_messages_are_shown_escaped_and_raw_only_when_asked_for(name_server: str) -> None:
    at = ("-n", name_server)
    assert kerolox("topic", "create", "Evil", "--queues", 1, *at).returncode == 0
    sent = kerolox("send", "Evil", "--tags", "t\x1b", "--keys", "k\x9b", *at, stdin=EVIL.encode())
    assert sent.returncode == 0, sent.stderr
    tail = ("tail", "Evil", "--from-start", "--count", 1, *at)
    text = kerolox(*tail).stdout
    assert text.endswith(f"  tags=t\\x1b  keys=k\\x9b  {SHOWN}\n")
    assert text[:-1].isprintable()
    as_json = kerolox(*tail, "-o", "json").stdout
    assert as_json[:-1].isprintable()
    message = json.loads(as_json)
    assert (message["body"], message["tags"], message["keys"]) == (EVIL, "t\x1b", "k\x9b")
    raw = kerolox(*tail, "-o", "raw").stdout
    assert raw.endswith(f"\tt\x1b\tk\x9b\t{EVIL}\n")


def test_a_long_body_is_cut_but_with_raw_and_json(name_server: str) -> None:
    at = ("-n", name_server)
    assert kerolox("topic", "create", "Long", "--queues", 1, *at).returncode == 0
    assert kerolox("send", "Long", *at, stdin=b"y" * 100_000).returncode == 0
    tail = ("tail", "Long", "--from-start", "--count", 1, *at)
    text = kerolox(*tail).stdout
    assert text.endswith("y… (100000 characters)\n")
    assert len(text) < 10_000
    assert kerolox(*tail, "-o", "raw").stdout.endswith("\t" + "y" * 100_000 + "\n")
    assert json.loads(kerolox(*tail, "-o", "json").stdout)["body"] == "y" * 100_000


async def test_names_and_errors_of_a_name_server_are_escaped() -> None:
    async def handle(command: RemotingCommand, _: object) -> RemotingCommand:
        if command.code == 206:
            return command.response(body=topics)
        return command.response(1, EVIL)

    topics = json.dumps({"topicList": [EVIL]}).encode()
    server = RemotingServer(handle, host="127.0.0.1", port=0)
    await server.start()
    try:
        at = ("-n", f"127.0.0.1:{server.port}")
        listed = await asyncio.to_thread(kerolox, "topic", "list", "--all", "--names", *at)
        raw = await asyncio.to_thread(
            kerolox, "topic", "list", "--all", "--names", "-o", "raw", *at
        )
        refused = await asyncio.to_thread(kerolox, "topic", "describe", EVIL, *at)
    finally:
        await server.stop()
    assert (listed.stdout, raw.stdout) == (f"TOPIC\n{SHOWN}\n", EVIL + "\n")
    [line] = refused.stderr.splitlines()
    assert refused.returncode == 1
    assert line.isprintable()
    assert r"a\x1b[2J\x9b31m" in line


def test_what_was_typed_is_escaped_in_errors_of_usage() -> None:
    for arguments in (["to\x1b[2Jpic"], ["send", "T", "x", "--property", "a\nError: b\x9b"]):
        done = kerolox(*arguments)
        assert done.returncode == 2
        lines = done.stderr.splitlines()
        assert all(line.isprintable() for line in lines)
        assert sum(line.startswith("Error: ") for line in lines) == 1


def test_wrong_usage_is_an_object_where_output_is_json() -> None:
    for arguments in (["--kind", "x", "-o", "json"], ["-o", "ndjson", "--kind", "x"]):
        done = kerolox("topic", "list", *arguments)
        assert done.returncode == 2
        error = json.loads(done.stderr)["error"]
        assert error["type"] == "BadParameter"
        assert "'x' is not one of 'normal'" in error["message"]


def test_dead_letters_of_a_cluster_that_is_not_there_are_an_error_and_no_count() -> None:
    done = kerolox("dlq", "resend", "g", "--yes", "-n", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "no dead letter" not in done.stderr
