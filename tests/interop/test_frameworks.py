"""Frameworks of Java that bring a client of RocketMQ, with ``KEROLOX_SOFTWARE=all``.

Apache Camel's component ``camel-rocketmq`` 4.8.0 (client 5.3.0), and the binder of RocketMQ for
Spring Cloud Stream, 2023.0.1.2 (client 5.1.4), run against our broker and against the Java 4.9
broker, which says what is the framework's own way.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from tests.support.eventually import wait_until
from tests.support.programs import build_frameworks, java_of
from tests.support.servers.software import RUN_SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.software import Servers

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("frameworks"),
]

MESSAGES = 20
CAMEL, STREAM = "Camel", "Stream"
"""What the names of topics and groups begin with."""

CAMEL_TOPICS = "Plain Request Reply".split()
STREAM_TOPICS = "Plain Orderly Failing Dead Transaction Delayed".split()

PLAIN = [f"m{n}" for n in range(MESSAGES)]
ODD = PLAIN[1::2]
SELECTED = PLAIN[3::5]
DELAY_MS = 1_000
"""That of each level, in the settings of the servers."""

GIVEN = {
    "plain": MESSAGES,
    "tagged": len(ODD),
    "selected": len(SELECTED),
    "orderly": MESSAGES,
    "failing": 3,
    "dead": 1,
    "transaction": 2,
    "delayed": 1,
}
"""How often each function of the binder is given a message."""


def rows_of(
    program: str, servers: Servers, home: Path, main_class: str, *arguments: str
) -> list[list[str]]:
    """What a program printed, line by line: its words."""
    command = java_of(
        build_frameworks(program),
        main_class,
        servers.namesrv,
        *arguments,
        options=(f"-Duser.home={home}",),
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env={**os.environ, "HOME": str(home)},
    )
    print(done.stdout, done.stderr)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert rows[-1] == ["ended"]
    return rows


def make_topics(servers: Servers, prefix: str, names: list[str]) -> None:
    with Admin(servers.namesrv) as admin:
        for name in names:
            admin.create_topic(f"{prefix}-{name}", queues=4)


def seen(rows: list[list[str]], by: str) -> list[list[str]]:
    """What a route or a function was given, in its order, without its name."""
    return [row[2:] for row in rows if row[:2] == ["seen", by]]


@pytest.fixture(scope="module")
def camel(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What routes of Camel did."""
    make_topics(servers, CAMEL, CAMEL_TOPICS)
    home = tmp_path_factory.mktemp("camel")
    return rows_of("camel", servers, home, "camel.Routes", CAMEL, str(MESSAGES))


@pytest.fixture(scope="module")
def stream(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What an application with the binder did."""
    make_topics(servers, STREAM, STREAM_TOPICS)
    home = tmp_path_factory.mktemp("stream")
    arguments = (STREAM, str(MESSAGES), str(sum(GIVEN.values())))
    return rows_of("stream", servers, home, "stream.App", *arguments)


def test_a_camel_route_consumes_each_message_that_another_sent(camel: list[list[str]]) -> None:
    sent = [[f"m{n}", ("even", "odd")[n % 2], f"k{n}"] for n in range(MESSAGES)]
    assert sorted(seen(camel, "all")) == sorted(sent)


def test_what_a_camel_route_sent_is_stored_once(servers: Servers, camel: list[list[str]]) -> None:
    assert camel
    with Admin(servers.namesrv) as admin:
        stored = list(admin.read_messages(f"{CAMEL}-Plain"))
    assert sorted(bytes(each.body).decode() for each in stored) == sorted(PLAIN)
    assert {each.properties["KEYS"] for each in stored} == {f"k{n}" for n in range(MESSAGES)}


def test_a_camel_route_with_a_tag_consumes_its_messages_alone(camel: list[list[str]]) -> None:
    assert sorted(body for body, _, _ in seen(camel, "odd")) == sorted(ODD)


def test_each_request_of_a_camel_route_has_its_reply(camel: list[list[str]]) -> None:
    replies = [row[1:] for row in camel if row[0] == "reply"]
    assert replies == [[f"q{n}", f"heard q{n}"] for n in range(MESSAGES)]


def test_a_binding_is_given_each_message_that_another_sent(stream: list[list[str]]) -> None:
    assert sorted(body for body, *_ in seen(stream, "plain")) == sorted(PLAIN)


def test_a_binding_with_a_tag_or_sql92_is_given_what_matches(stream: list[list[str]]) -> None:
    assert sorted(body for body, *_ in seen(stream, "tagged")) == sorted(ODD)
    assert sorted(body for body, *_ in seen(stream, "selected")) == sorted(SELECTED)


def test_an_orderly_binding_is_given_each_queue_in_its_order(stream: list[list[str]]) -> None:
    given = seen(stream, "orderly")
    for shard in range(2):
        bodies = [f"o{n}" for n in range(shard, MESSAGES, 2)]
        assert [body for body, queue, _ in given if queue == str(shard)] == bodies
    assert len(given) == MESSAGES


def test_what_a_function_fails_at_comes_again_until_it_succeeds(stream: list[list[str]]) -> None:
    assert [body for body, *_ in seen(stream, "failing")] == ["comes again"] * 3


def test_what_a_binding_does_not_try_again_becomes_a_dead_letter(
    servers: Servers, stream: list[list[str]]
) -> None:
    assert [body for body, *_ in seen(stream, "dead")] == ["dies"]
    topic, letters = f"%DLQ%{STREAM}-dead", list[bytes]()

    def is_dead() -> bool:
        with Admin(servers.namesrv) as admin:
            if topic in admin.list_topics():
                letters[:] = [bytes(each.body) for each in admin.read_messages(topic)]
        return bool(letters)

    wait_until(is_dead, what="the dead letter")
    assert letters == [b'"dies"']


def test_transactions_of_a_binding_are_ended_and_checked(stream: list[list[str]]) -> None:
    assert Counter(body for body, *_ in seen(stream, "transaction")) == {"commit": 1, "later": 1}
    assert ["checked", "later"] in stream


def test_a_binding_is_given_a_delayed_message_when_it_is_due(stream: list[list[str]]) -> None:
    [sent_ms] = [int(row[2]) for row in stream if row[:2] == ["sent", "delayed"]]
    [[body, _, given_ms]] = seen(stream, "delayed")
    assert body == "delayed"
    assert int(given_ms) - sent_ms >= DELAY_MS
