"""``kerolox send`` and ``kerolox tail``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND, Server, kerolox, start


@pytest.fixture
def topic(request: pytest.FixtureRequest, name_server: str) -> str:
    name = f"T{abs(hash(request.node.name)) % 10**9}"
    assert kerolox("topic", "create", name, "--queues", 2, "-n", name_server).returncode == 0
    return name


def tailed(topic: str, name_server: str, count: int, *options: str) -> list[dict[str, object]]:
    arguments = ["tail", topic, "--from-start", "--count", count, "-o", "json", *options]
    done = kerolox(*arguments, "-n", name_server)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_message_is_sent_with_all_that_is_given(topic: str, name_server: str) -> None:
    sent = kerolox(
        "send", topic, "grüße", "--tags", "a", "--keys", "k1 k2", "--property", "x=y=z",
        "-n", name_server,
    )  # fmt: skip
    line = re.fullmatch(
        r"SEND_OK msgId=([0-9A-F]{32}) queue=broker-a/([01]) offset=0\n", sent.stdout
    )
    assert line is not None, sent.stderr
    [message] = tailed(topic, name_server, 1)
    assert (message["body"], message["tags"], message["keys"]) == ("grüße", "a", "k1 k2")
    assert message["msgId"] == line[1]
    assert message["queueId"] == int(line[2])
    properties = message["properties"]
    assert isinstance(properties, dict)
    assert properties["x"] == "y=z"


def test_a_body_comes_from_stdin_or_from_a_file(
    topic: str, name_server: str, tmp_path: Path
) -> None:
    assert kerolox("send", topic, "-n", name_server, stdin=b"a\nb\n").returncode == 0
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00")
    assert kerolox("send", topic, "--file", path, "-n", name_server).returncode == 0
    messages = tailed(topic, name_server, 2)
    assert sorted(str(m.get("body", m.get("bodyBase64"))) for m in messages) == ["/wA=", "a\nb\n"]


def test_each_line_becomes_a_message(topic: str, name_server: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"line {i}\n" for i in range(600)) + "\n")
    done = kerolox("send", topic, "--file", path, "--lines", "-n", name_server)
    assert done.stdout.startswith("sent 600 messages in "), done.stderr
    more = kerolox("send", topic, "--lines", "-n", name_server, stdin=b"x\r\ny")
    assert more.stdout.startswith("sent 2 messages in "), more.stderr
    bodies = {str(m["body"]) for m in tailed(topic, name_server, 602)}
    assert bodies == {f"line {i}" for i in range(600)} | {"x", "y"}


def test_tail_follows_from_the_end_and_filters_by_tag(topic: str, name_server: str) -> None:
    kerolox("send", topic, "old", "--tags", "a", "-n", name_server)
    following = start(
        "tail", topic, "--tags", "a || c", "--count", 2, "-n", name_server, "--ready-line"
    )
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == f"following {topic}\n"
        for body, tag in (("one", "a"), ("two", "b"), ("three", "c")):
            kerolox("send", topic, body, "--tags", tag, "-n", name_server)
        said, _ = following.communicate(timeout=SECONDS_MAX)
    finally:
        following.kill()
        following.wait()
    assert following.returncode == 0
    assert sorted(line.split("  ")[-1] for line in said.splitlines()) == ["one", "three"]
    assert re.search(r"^\d{4}-\d\d-\d\d [\d:.]+  broker-a/\d@\d+  tags=a  one$", said, re.MULTILINE)


def test_tail_ends_quietly_when_it_is_interrupted(topic: str, name_server: str) -> None:
    with start("tail", topic, "-n", name_server, "--ready-line") as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.send_signal(signal.SIGINT)
        try:
            said, _ = following.communicate(timeout=SECONDS_MAX)
        finally:
            following.kill()
    assert (following.returncode, said.strip()) == (130, "")


def test_tail_ends_quietly_when_nobody_reads_it(topic: str, name_server: str) -> None:
    lines = b"".join(b"%d\n" % i for i in range(2000))
    kerolox("send", topic, "--lines", "-n", name_server, stdin=lines)
    following = start("tail", topic, "--from-start", "-n", name_server)
    assert following.stdout is not None
    following.stdout.readline()
    following.stdout.close()
    assert following.wait(60) == 0


def test_tail_leaves_no_group_behind(topic: str, name_server: str, cluster) -> None:
    kerolox("send", topic, "x", "-n", name_server)
    tailed(topic, name_server, 1)
    topics = kerolox("topic", "list", "--all", "-n", name_server).stdout
    assert "%RETRY%" not in topics


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["send", "T", "body", "--file", "/etc/hostname"], "together"),
        (["send", "T", "body", "--lines"], "together"),
        (["send", "T", "body", "--property", "x"], "'x' is no property; write NAME=VALUE"),
        (["tail", "T", "--tags", "||"], "names no tag"),
        (["tail", "T", "--count", "0"], "count"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], reason: str, name_server: str) -> None:
    done: subprocess.CompletedProcess[str] = kerolox(*arguments, "-n", name_server)
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tail", "Nothing"], "kerolox topic create Nothing"),
        (["send", "no/such", "x"], "no/such"),
        (["send", "T", ""], "body"),
        (["send", "T", "x", "--property", "TAGS=a"], "'TAGS' is reserved"),
    ],
)
def test_errors_are_one_line_and_say_what_is_wrong(
    arguments: list[str], reason: str, name_server: str
) -> None:
    done = kerolox(*arguments, "-n", name_server)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("kerolox: error: ")
    assert reason in line


def test_a_failed_line_says_how_many_were_sent(name_server: str) -> None:
    done = kerolox("send", "no/such", "--lines", "-n", name_server, stdin=b"a\nb\n")
    assert done.returncode == 1
    assert "0 messages sent, then: " in done.stderr


def test_tail_prints_no_more_than_was_asked_for_though_both_queues_have_some(
    topic: str, name_server: str
) -> None:
    lines = b"".join(b"%d\n" % i for i in range(20))
    assert kerolox("send", topic, "--lines", "-n", name_server, stdin=lines).returncode == 0
    assert len(tailed(topic, name_server, 3)) == 3


@pytest.mark.parametrize("options", [["body"], ["--lines"]])
def test_a_send_that_makes_its_topic_says_so(
    name_server: str, options: list[str], cluster: Server
) -> None:
    name = f"Misspelt{len(options[0])}"
    at = ("-n", name_server)
    first = kerolox("send", name, *options, *at, stdin=b"a\nb\n")
    assert first.returncode == 0
    assert first.stderr == f"kerolox: created topic {name} (4 queues on broker-a)\n"
    again = kerolox("send", name, *options, *at, stdin=b"a\n")
    assert (again.returncode, again.stderr) == (0, "")
    assert name in kerolox("topic", "list", *at).stdout.split()


def test_templates_are_filled_anew_for_each_message(topic: str, name_server: str) -> None:
    body = '{"n": {{n}}, "padded": "{{n:04}}", "die": {{number:1:6}}, "x": {"at": {{ms}}}}'
    done = kerolox(
        "send", topic, body, "--template", "--count", 3, "--rate", 1000, "--keys", "k{{n}}",
        "--property", "id={{uuid}}", "--tags", "t{{n}}", "-o", "ndjson", "-n", name_server,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in results] == ["SEND_OK"] * 3, done.stderr
    messages = {str(each["msgId"]): each for each in tailed(topic, name_server, 3)}
    assert messages.keys() == {row["msgId"] for row in results}
    bodies = sorted((json.loads(str(m["body"])) for m in messages.values()), key=lambda b: b["n"])
    assert [(b["n"], b["padded"]) for b in bodies] == [(1, "0001"), (2, "0002"), (3, "0003")]
    assert all(1 <= b["die"] <= 6 and b["x"]["at"] > 0 for b in bodies)
    assert {m["keys"] for m in messages.values()} == {"k1", "k2", "k3"}
    assert {m["tags"] for m in messages.values()} == {"t1", "t2", "t3"}
    ids = {dict(m["properties"])["id"] for m in messages.values()}  # type: ignore[call-overload]
    assert len(ids) == 3
    wrong = kerolox("send", topic, "{{nothing}}", "--template", "-n", name_server)
    assert wrong.returncode == 2
    assert "there is no {{nothing}}; there are: n, " in wrong.stderr


def test_what_came_of_each_message_is_one_text_for_json(
    topic: str, name_server: str, tmp_path: Path
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text(file.name)
    at = ("-o", "json", "-n", name_server)
    both = kerolox("send", topic, "-f", files[0], "-f", files[1], "--queue", "broker-a/1", *at)
    assert [row["queueId"] for row in json.loads(both.stdout)] == [1, 1], both.stderr
    one = json.loads(kerolox("send", topic, "x", "--count", 1, *at).stdout)
    assert one["topic"] == topic
    refused = kerolox("send", "no/such", "x", *at)
    assert refused.returncode == 1
    assert "no/such" in json.loads(refused.stderr)["error"]["message"]


def test_a_line_of_a_pipe_is_sent_when_it_comes(topic: str, name_server: str) -> None:
    sending = subprocess.Popen(
        [*COMMAND, "send", topic, "--lines", "--count", "2", "-o", "ndjson", "-n", name_server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert sending.stdin is not None
        assert sending.stdout is not None
        sending.stdin.write("first\n")
        sending.stdin.flush()
        assert json.loads(sending.stdout.readline())["status"] == "SEND_OK"
        sending.stdin.write("second\nthird\n")  # the pipe stays open
        sending.stdin.flush()
        assert sending.wait(SECONDS_MAX) == 0
    finally:
        sending.kill()
        sending.communicate()
    assert sorted(str(m["body"]) for m in tailed(topic, name_server, 2)) == ["first", "second"]


def test_a_delayed_message_comes_later(topic: str, name_server: str) -> None:
    done = kerolox("send", topic, "late", "--delay", "1s", "-n", name_server)
    assert done.returncode == 0, done.stderr
    [message] = tailed(topic, name_server, 1)
    delay = dict(message["properties"])["TIMER_DELAY_MS"]  # type: ignore[call-overload]
    assert (message["body"], delay) == ("late", "1000")
