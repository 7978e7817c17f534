"""Messages of clients of 4.x that clients of 5.x receive, and back: all parts, the order, the level
and the moment of delays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.interop.grpc5.driver import CLIENTS, Client, Drivers, Server

if TYPE_CHECKING:
    from tests.interop.grpc5.servers import Served

__all__ = ["check_from_4_x", "check_to_4_x"]

KEYS, PROPERTIES = ["one", "two"], {"name": "value", "ü": "ä b"}
ORDERED = [f"in order {number}" for number in range(5)]
LEVEL = 1
PARTS = {"id", "topic", "body", "tag", "keys", "group", "at"}


def _made(served: Served, topic: str, groups: list[str]) -> None:
    """A topic of one queue, that takes all types, and groups in order."""
    with Admin(served.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        for group in groups:
            settings = SubscriptionGroupConfig(group_name=group, consume_message_orderly=True)
            admin.put_group(settings)


def _sent(client: Client, *, is_old: bool) -> list[dict[str, Any]]:
    """Send messages of all kinds: what each has to be when it is received."""
    producer = client.producer()
    at = (int(time.time()) + 3) * 1000
    plain: dict[str, Any] = {"tag": "tag", "keys": KEYS, "properties": PROPERTIES}
    messages = [{"body": "plain", **plain}]
    messages += [{"body": body} if is_old else {"body": body, "group": "g"} for body in ORDERED]
    messages.append({"body": "for a moment", "at": at})
    if is_old:
        messages.append({"body": "by a level", "level": LEVEL})
    wanted = []
    for each in messages:
        told = client.send(producer, **each)
        parts = {"tag": "", "keys": [], "group": "", "at": 0, **each}
        # That of 4.x in Node.js gives no id: a message is known by its place, and one that waits
        # is stored twice.
        if client.kind != "node4" or each.keys().isdisjoint({"at", "level"}):
            parts["id"] = told["id"]
        wanted.append({**parts, "topic": client.topic})
    return wanted


def _check(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [each["body"] for each in found if each["body"] in ORDERED] == ORDERED
    by_body = {each["body"]: each for each in found}
    assert len(found) == len(by_body) == len(wanted)
    for each in wanted:
        got = by_body[each["body"]]
        told = each.keys() & PARTS
        assert {part: got[part] for part in told} == {part: each[part] for part in told}
    assert PROPERTIES.items() <= by_body["plain"]["properties"].items()


def check_from_4_x(served: Served, drivers: Drivers, old: str) -> None:
    """What a client of 4.x sends, each of 5.x receives."""
    topic = f"from-{old}"
    groups = {kind: f"{topic}-to-{kind}" for kind in CLIENTS}
    _made(served, topic, list(groups.values()))
    wanted = _sent(Client(drivers(old), Server(served.namesrv), topic), is_old=True)
    for kind, group in groups.items():
        client = Client(drivers(kind), served.server, topic, group)
        found = client.receive(client.simple(), len(wanted))
        _check(found, wanted)


def check_to_4_x(served: Served, drivers: Drivers, old: str) -> None:
    """What each client of 5.x sends, one of 4.x receives."""
    for kind in CLIENTS:
        topic = f"from-{kind}-to-{old}"
        _made(served, topic, [topic])
        client = Client(drivers(old), Server(served.namesrv), topic)
        consumer = client.push()  # That in C++ begins at a topic's end.
        wanted = _sent(Client(drivers(kind), served.server, topic), is_old=False)
        _check(client.consumed(consumer, len(wanted)), wanted)
