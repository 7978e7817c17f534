"""Brokers by name or address, and dry runs of what acts at once."""

from __future__ import annotations

import json

import pytest

from tests.support.servers.command import Server, kerolox


@pytest.fixture
def broker(cluster: Server) -> str:
    return cluster.addresses["broker"]


def test_a_broker_is_named_by_its_name_or_its_address(name_server: str, broker: str) -> None:
    at = ("-n", name_server)
    [listed] = json.loads(kerolox("broker", "list", "-o", "json", *at).stdout)
    name = listed["broker"]
    for command in (
        ("describe",),
        ("role",),
        ("config", "show"),
        ("retire", "--force", "--dry-run"),
        ("return", "--dry-run"),
    ):
        verb, options = [w for w in command if w[0] != "-"], [w for w in command if w[0] == "-"]
        for place in (name, broker):
            done = kerolox("broker", *verb, place, *options, *at)
            assert done.returncode == 0, done.stderr
    change = ("broker", "config", "set", "traceOn=true", "--dry-run", "--broker")
    for place in (name, broker):
        assert broker in kerolox(*change, place, *at).stdout
    unknown = kerolox("broker", "describe", "nosuch", *at)
    assert unknown.returncode == 1
    assert f"no broker 'nosuch' is registered (known: {name})" in unknown.stderr
    slave = kerolox("broker", "role", f"{name}@1", *at)
    assert f"{name}@1 is not registered; there is {name} ({broker})" in slave.stderr


def test_what_acts_at_once_can_be_tried_out(name_server: str) -> None:
    at = ("-n", name_server)
    said = "nothing was changed (--dry-run)"
    tried = kerolox("topic", "create", "Tried", "--dry-run", *at).stdout
    assert tried.startswith("topic Tried would have 8 queues on ")
    assert said in tried
    assert kerolox("topic", "describe", "Tried", *at).returncode == 1
    assert said in kerolox("group", "create", "tried", "--dry-run", *at).stdout
    assert "tried" not in kerolox("group", "list", *at).stdout
    kerolox("group", "create", "kept", "--retries", 5, *at)
    for verb in ("pause", "resume"):
        assert said in kerolox("group", verb, "kept", "--dry-run", *at).stdout
    paused = kerolox("group", "pause", "kept", "--dry-run", "-o", "json", *at)
    [row] = json.loads(paused.stdout)
    assert (row["new"]["consumeEnable"], row["done"]) == (False, False)
    [row] = json.loads(kerolox("group", "pause", "kept", "-o", "json", *at).stdout)
    assert (row["old"]["consumeEnable"], row["done"]) == (True, True)


def test_a_group_consumes_in_order_by_grpc_when_it_is_told_to(
    name_server: str, broker: str
) -> None:
    at = ("-n", name_server)
    made = kerolox("group", "create", "in-order", "--orderly", *at)
    assert made.stdout == f"group in-order on {broker}: made, 16 retries, in order\n"
    kerolox("topic", "create", "InOrder", "--queues", "1", *at)
    reset = ("group", "reset", "in-order", "InOrder", "--to", "beginning", "--yes", "--new-group")
    assert kerolox(*reset, *at).returncode == 0
    told = "clients by gRPC get the messages of a queue in order (consumeMessageOrderly) on "
    assert told in kerolox("group", "describe", "in-order", *at).stdout
    [row] = json.loads(kerolox("group", "describe", "in-order", "-o", "json", *at).stdout)
    assert row["orderly"] is True
    changed = kerolox("group", "update", "in-order", "--no-orderly", *at)
    assert changed.stdout == f"group in-order on {broker}: not in order any more\n"
    assert told not in kerolox("group", "describe", "in-order", *at).stdout
    done = kerolox("group", "update", "in-order", "--retries", "3", "-o", "json", *at)
    assert json.loads(done.stdout)[0]["new"]["consumeMessageOrderly"] is False


def test_a_group_is_told_to_pop(name_server: str, broker: str) -> None:
    at = ("-n", name_server)
    kerolox("group", "create", "poppers", *at)
    kerolox("topic", "create", "Popped", *at)
    command = ("group", "mode", "poppers", "Popped", "pop", *at)
    tried = kerolox(*command, "--dry-run")
    assert "nothing was changed (--dry-run)" in tried.stdout
    done = kerolox(*command)
    assert done.stdout == f"group poppers reads Popped message by message (pop) on {broker}\n"
    [row] = json.loads(kerolox(*command, "-o", "json").stdout)
    assert (row["mode"], row["brokerAddr"], row["done"]) == ("POP", broker, True)
    unknown = kerolox("group", "mode", "poppers", "Nowhere", "pop", *at)
    assert unknown.returncode == 1
    assert "topic[Nowhere] not exist" in unknown.stderr
    assert "no broker has settings" in kerolox("group", "mode", "nobody", "T", "pop", *at).stderr
