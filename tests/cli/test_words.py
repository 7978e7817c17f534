"""What commands say is so: what they changed, where, and what they could not."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.support.servers.command import Server, kerolox
from tests.support.servers.settings import small_store


def rows(*words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(kerolox(*words, "-o", "json").stdout)
    return found


def test_a_selected_context_that_a_variable_overrides_is_said_at_once(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    other = {"NAMESRV_ADDR": "10.0.0.1:9876"}
    added = kerolox("context", "add", "one", "-n", "127.0.0.1:1", **home, **other)
    said = "$NAMESRV_ADDR is 10.0.0.1:9876, which is stronger"
    assert said in added.stderr
    assert said in kerolox("context", "select", "one", **home, **other).stderr
    assert kerolox("context", "select", "one", **home).stderr == ""
    assert kerolox("context", "select", "-", **home, **other).stderr == ""
    named = kerolox("context", "select", "one", KEROLOX_CONTEXT="two", **home).stderr
    assert "$KEROLOX_CONTEXT is two, which is stronger" in named


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("topic", "describe", "T"),
        ("group", "list"),
        ("broker", "list"),
        ("tail", "T", "--until", "end"),
        ("message", "list", "T"),
        ("send", "T", "x"),
    ],
    ids=" ".join,
)
def test_the_port_of_a_broker_is_no_name_server(cluster: Server, command: tuple[str, ...]) -> None:
    address = cluster.addresses["broker"]
    done = kerolox(*command, "-n", address)
    assert done.returncode == 1
    assert f"{address}: what answers there speaks RocketMQ, and is no name server" in done.stderr
    assert "not supported" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("describe", "AT"),
        ("role", "AT"),
        ("config", "show", "AT"),
        ("config", "set", "traceOn=true", "--broker", "AT"),
        ("promote", "AT", "--dry-run"),
        ("retire", "AT", "--dry-run"),
    ],
    ids=" ".join,
)
def test_the_port_of_a_name_server_is_no_broker(name_server: str, command: tuple[str, ...]) -> None:
    named = (name_server if word == "AT" else word for word in command)
    done = kerolox("broker", *named, "-n", name_server)
    assert done.returncode == 1
    assert f"{name_server} is a name server of the cluster, and no broker" in done.stderr
    assert done.stdout == ""


def test_a_paused_group_is_told_to_be_paused_before_it_has_consumed(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("group", "create", "rests", *at)
    kerolox("group", "pause", "rests", *at)
    for verb in ("describe", "members"):
        told = kerolox("group", verb, "rests", *at)
        assert told.returncode == 1
        assert "kerolox: group rests is paused: it gets no messages there" in told.stderr


def test_a_group_without_dead_letters_is_told_to_have_none(name_server: str) -> None:
    at = ("-n", name_server)
    assert kerolox("dlq", "list", *at).stderr == "kerolox: no group has dead letters\n"
    assert "group healthy has no dead letter there" in kerolox("dlq", "show", "healthy", *at).stderr
    none = "group healthy has no dead letter that waits there"
    assert none in kerolox("dlq", "show", "healthy", "--waiting", *at).stderr
    for consent in ("--dry-run", "--yes"):
        assert none in kerolox("dlq", "purge", "healthy", consent, *at).stderr
    assert rows("dlq", "list", *at) == []


def test_raw_messages_are_values_between_tabs_and_nothing_is_escaped(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Raw", "--queues", "1", *at)
    kerolox("send", "Raw", "a\tb\x1b[0m\\", "--tags", "t", "--keys", "k", *at)
    kerolox("send", "Raw", "plain", *at)
    for command in ("tail", "message list"):
        read = kerolox(
            *command.split(), "Raw", "--from", "beginning", "--until", "end", "-o", "raw", *at
        )
        first, second = read.stdout.splitlines()
        when, queue, tags, keys, body = first.split("\t", 4)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", when)
        assert (queue[-4:], tags, keys, body) == ("/0@0", "t", "k", "a\tb\x1b[0m\\")
        assert second.split("\t")[2:] == ["", "", "plain"]


def test_a_send_for_later_says_when_it_is_due_and_what_takes_it_back(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Late", "--queues", "1", *at)
    before = time.time() * 1000
    sent = kerolox("send", "Late", "x", "--delay", "31s", *at)
    said = r"queue=\S+/0 due \d{4}-.* \(in 31 s\) handle=(\S+)$"
    assert re.search(said, sent.stdout.strip())
    assert ("offset" in sent.stdout, sent.stderr) == (False, "")
    row = json.loads(kerolox("send", "Late", "x", "--delay", "5h", "-o", "json", *at).stdout)
    assert (row["delayMs"], row["queueOffset"], "delayLevel" in row) == (18_000_000, None, False)
    assert before + 18_000_000 <= row["dueTimestamp"] <= time.time() * 1000 + 18_000_000
    assert kerolox("message", "recall", row["recallHandle"], "--yes", *at).returncode == 0
    moment = int(before) + 7_200_000
    row = json.loads(kerolox("send", "Late", "x", "--at", moment, "-o", "json", *at).stdout)
    assert row["dueTimestamp"] == moment
    kept = [each["dueTimestamp"] for each in rows("message", "waiting", *at)]
    assert kept[1:] == [moment]
    refused = kerolox("send", "Late", "x", "--delay", "4d", *at)
    assert refused.returncode == 1
    assert "the delay time should not be bigger than the max delay 259200000ms" in refused.stderr


def test_a_moment_that_is_over_or_none_is_refused(name_server: str) -> None:
    at = ("-n", name_server)
    refused = kerolox("send", "Late", "x", "--at", "2020-01-01T00:00", *at)
    assert refused.returncode == 2
    assert "2020-01-01 00:00:00.000 is over; without --at it is sent now" in refused.stderr
    assert "'soon' is no time; write" in kerolox("send", "Late", "x", "--at", "soon", *at).stderr
    both = kerolox("send", "Late", "x", "--at", "2999-01-01", "--delay", "1s", *at)
    assert "Give one of --delay and --at." in both.stderr


def test_brokers_without_a_timer_delay_by_levels(tmp_path: Path) -> None:
    configuration = small_store(tmp_path, timerWheelEnable="false")
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", tmp_path / "store"]
    with Server(tmp_path, *arguments, "-c", configuration) as server:
        at = ("-n", server.addresses["namesrv"])
        exact = kerolox("send", "Late", "x", "--delay", "30s", *at)
        assert re.search(r"queue=\S+/\d due \d{4}-.* \(in 30 s, level 4\)$", exact.stdout.strip())
        assert "offset" not in exact.stdout
        later = kerolox("send", "Late", "x", "--delay", "31s", *at)
        assert "31 s becomes 1 min, the next delay of the brokers (level 5)" in later.stderr
        assert "(in 1 min, level 5)" in later.stdout
        row = json.loads(kerolox("send", "Late", "x", "--delay", "30s", "-o", "json", *at).stdout)
        assert (row["delayLevel"], row["queueOffset"]) == (4, None)
        moment = int(time.time() * 1000) + 25_000
        assert "becomes 30 s, the" in kerolox("send", "Late", "x", "--at", moment, *at).stderr
        refused = kerolox("send", "Late", "x", "--delay", "5h", *at)
        assert refused.returncode == 2
        assert "5 h is longer than the longest delay of the brokers, 2 h" in refused.stderr
        assert "deliver_after" not in refused.stderr


def test_only_settings_that_differ_from_the_default_are_set(name_server: str) -> None:
    [broker] = rows("broker", "list", "-n", name_server)
    show = ("broker", "config", "show", broker["broker"])
    shown = rows(*show, "--set", "-n", name_server)
    assert shown
    assert all(row["source"] == "set" and row["value"] != row["default"] for row in shown)
    waiting = kerolox(*show, "--waiting", "-n", name_server)
    assert waiting.stdout.splitlines()[-1].startswith("nothing waits for a restart of ")


def test_a_note_is_something(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n")
    checked = kerolox("config", "check", file)
    assert checked.returncode == 0
    assert checked.stdout.splitlines()[-1] == "nothing else is wrong"
    users = kerolox("console", "user", "list", "--users", tmp_path / "none.json")
    assert "has no users; kerolox console user add NAME makes one" in users.stderr


def test_a_producers_id_without_its_topic_says_how_to_give_it(name_server: str) -> None:
    at = ("-n", name_server)
    sent = json.loads(kerolox("send", "Ids", "x", "-o", "json", *at).stdout)
    refused = kerolox("message", "get", sent["msgId"], *at)
    assert "--topic TOPIC" in refused.stderr
    assert kerolox("message", "get", sent["msgId"], "--topic", "Ids", *at).returncode == 0


def test_offsets_tell_which_groups_that_are_offline_consumed_a_message(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Seen", "--queues", "1", *at)
    sent = json.loads(kerolox("send", "Seen", "x", "-o", "json", *at).stdout)
    for group, place in (("past", "end"), ("before", "beginning")):
        kerolox("group", "create", group, *at)
        kerolox("group", "reset", group, "Seen", "--to", place, "--yes", *at)
    found = rows("message", "consumers", sent["offsetMsgId"], *at)
    told = {row["group"]: (row["state"], row["online"]) for row in found}
    assert told == {"past": ("CONSUMED", False), "before": ("NOT_CONSUME_YET", False)}


def test_what_is_delivered_is_not_called_consumed(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Told", "--queues", "1", *at)
    kerolox("group", "create", "told", *at)
    kerolox("group", "reset", "told", "Told", "--to", "end", "--yes", *at)
    described = kerolox("group", "describe", "told", *at).stdout
    assert described.splitlines()[-1] == "group told: 0 messages left, 0.0 delivered a second"
    assert "CONSUMED UP TO" in described
    assert "DELIVERED/S" in kerolox("group", "list", *at).stdout


def test_accounts_where_there_is_no_access_control_give_the_reason(
    name_server: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("12345678\n")
    given = ("acl", "set", "shopacc", "--secret-file", secret, "-n", name_server)
    for admin in ((), ("--admin",)):
        done = kerolox(*given, *admin)
        assert done.returncode == 1
        assert "has no access control (aclEnable=false): set aclEnable=true" in done.stderr
    deleted = kerolox("acl", "delete", "shopacc", "--yes", "-n", name_server)
    assert (deleted.returncode, deleted.stdout) == (1, "")
    assert "no broker has access control (aclEnable=false)" in deleted.stderr
    listed = kerolox("acl", "list", "-n", name_server).stderr
    assert "has no access control" in listed
    assert "4.9.8" not in listed
