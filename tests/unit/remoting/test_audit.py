"""Audit lines: what stands in them, what never does, and how many there are."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from kerolox.cli.process.logs import LINE_CHARACTERS_MAX as CHARACTERS_OF_LOG_LINES
from kerolox.cli.process.logs import LogLimit
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting import AUDIT_LOGGER, audit
from kerolox.remoting.audit import LINE_CHARACTERS_MAX, Audit

FORGED = 'x"}\n{"outcome":"changed"}\u202e\x1b[2J\ud800\\'


@dataclass
class Client:
    remote_address: str = "10.0.0.1:40000"
    peer: tuple[str, int] = ("10.0.0.1", 40000)
    certificate_subject: str | None = None
    audited: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    command: RemotingCommand = field(
        default_factory=lambda: RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC)
    )
    connection: Client = field(default_factory=Client)
    account: str = ""


def from_host(host: str) -> Client:
    return Client(f"{host}:1", (host, 1))


class Lines:
    """The audit lines so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def texts(self) -> list[str]:
        return [each.getMessage() for each in self._caplog.records if each.name == AUDIT_LOGGER]

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    return Lines(caplog)


def test_a_change_says_who_did_what_from_where_with_old_and_new(lines: Lines) -> None:
    asked = Asked(connection=Client(certificate_subject="CN=ops"), account="operator")
    old = TopicConfig(topic_name="T", write_queue_nums=4)
    Audit("broker").changed(asked, "topic", "T", old, TopicConfig(topic_name="T", perm=2))
    [line] = lines.all
    assert line.pop("time").endswith("Z")
    assert line == {
        "outcome": "changed",
        "server": "broker",
        "account": "operator",
        "subject": "CN=ops",
        "from": "10.0.0.1:40000",
        "request": "UPDATE_AND_CREATE_TOPIC",
        "code": 17,
        "opaque": asked.command.opaque,
        "topic": "T",
        "old": {"perm": 6, "writeQueueNums": 4},
        "new": {"perm": 2, "writeQueueNums": 16},
    }


def test_what_stays_as_it_was_is_no_change(lines: Lines) -> None:
    told = Audit("broker")
    told.changed(Asked(), "settings", "a", {"a": "1"}, {"a": "1"})
    assert lines.all == []
    told.changed(Asked(), "expiredLogFiles", "deleted")
    assert [(line["old"], line["new"]) for line in lines.all] == [(None, None)]


def test_texts_of_strangers_make_no_line_and_no_member_of_their_own(lines: Lines) -> None:
    told = Audit("broker")
    asked = Asked(RemotingCommand.request(17, {"AccessKey": FORGED, "topic": FORGED}))
    told.changed(asked, FORGED, FORGED, FORGED, {FORGED: [FORGED], "more": {FORGED: FORGED}})
    told.denied(asked.command, asked.connection, FORGED)
    told.refused(asked, 1, FORGED)
    assert len(lines.texts) == 3
    assert all(text.isprintable() for text in lines.texts)
    assert [line["outcome"] for line in lines.all] == ["changed", "denied", "refused"]


@pytest.mark.parametrize("text", ["y" * 1_000_000, "\x00" * 1_000_000, '"' * 1_000_000])
def test_a_line_stays_short_whatever_was_sent(lines: Lines, text: str) -> None:
    assert LINE_CHARACTERS_MAX < CHARACTERS_OF_LOG_LINES
    fields = dict.fromkeys(("topic", "group", "key", "brokerName", "AccessKey"), text)
    asked = Asked(RemotingCommand.request(17, fields))
    many: dict[str, object] = {f"{text[:999]}{n}": {f"{n}": text} for n in range(999)}
    told = Audit("broker")
    told.changed(asked, "topic", text, many, [text] * 999)  # type: ignore[arg-type]
    told.denied(asked.command, asked.connection, text)
    assert [line["outcome"] for line in lines.all] == ["changed", "denied"]
    assert max(map(len, lines.texts)) <= LINE_CHARACTERS_MAX


def test_secrets_are_stars_even_where_only_they_changed(lines: Lines) -> None:
    told = Audit("broker")
    told.changed(
        Asked(),
        "aclAccount",
        "a",
        {"secretKey": "old one", "admin": False},
        {"secretKey": "new one", "admin": False},
    )
    told.changed(Asked(), "tls.server.keyPassword", "x", "old one", "new one")
    told.changed(Asked(), "keyValue", "ns:password", "old one", "new one")
    assert "one" not in "".join(lines.texts)
    assert lines.all[0]["old"] == lines.all[0]["new"] == {"secretKey": "***"}


@pytest.mark.parametrize(
    ("given", "account", "shown"),
    [({}, "", "-"), ({"AccessKey": "eve"}, "", "?eve"), ({"AccessKey": "eve"}, "eve", "eve")],
)
def test_an_account_that_was_only_claimed_is_told_apart(
    lines: Lines, given: dict[str, str], account: str, shown: str
) -> None:
    command = RemotingCommand.request(310, {**given, "b": "orders", "a": "senders"})
    Audit("broker").denied(command, Client(), "No default permission", account=account)
    [line] = lines.all
    assert (line["account"], line["topic"]) == (shown, "orders")
    assert line["producerGroup"] == "senders"
    assert line["reason"] == "No default permission"


async def test_denials_are_told_now_and_then_and_all_are_counted(lines: Lines) -> None:
    now = 0.0
    told = Audit("broker", clock=lambda: now)
    command = RemotingCommand.request(310)
    for _ in range(1000):
        told.denied(command, from_host("10.0.0.1"), "no")
    told.denied(command, from_host("10.0.0.2"), "no")
    assert len(lines.all) == 11, "ten of the first address, and the other has its own share"
    now = 5.0
    for _ in range(1000):
        told.denied(command, from_host("10.0.0.1"), "no")
    assert len(lines.all) == 16, "one a second"
    told.close()
    assert lines.all[-1]["outcome"] == "left-out"
    assert lines.all[-1]["denied"] == 990 + 995
    assert told.counts == {"changed": 0, "denied": 2001, "refused": 0}


async def test_many_addresses_together_fill_no_log(lines: Lines) -> None:
    told = Audit("broker", clock=lambda: 0.0)
    for number in range(1000):
        host = f"2001:db8:{number:x}::1"
        told.refused(Asked(connection=from_host(host)), 16, "no")
    assert len(lines.all) == int(audit.DENIALS_OF_ALL[1])
    told.close()
    told.close()
    assert [line.get("refused") for line in lines.all[-2:]] == [None, 900]


async def test_changes_without_end_are_left_out_and_counted(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "CHANGES_OF_ALL", (1.0, 5.0))
    told = Audit("broker", clock=lambda: 0.0)
    for number in range(20):
        told.changed(Asked(), "topic", f"T{number}")
    told.close()
    assert [line["outcome"] for line in lines.all] == ["changed"] * 5 + ["left-out"]
    assert lines.all[-1]["changed"] == 15


def test_the_limit_of_log_lines_lets_audit_lines_through() -> None:
    limit = LogLimit(lambda: 0.0, exempt=AUDIT_LOGGER)
    record = logging.LogRecord(AUDIT_LOGGER, logging.INFO, "", 1, "%s", ("x",), None)
    assert all(limit.filter(record) for _ in range(100))
