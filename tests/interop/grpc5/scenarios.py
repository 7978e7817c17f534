"""What clients of RocketMQ 5 do, each with a topic and a group of its own. A scenario gives what
came of it, which is the same for all clients and servers, but for :data:`OWN_FACTS`. Where a server
differs stands with the tests.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from kerolox.admin.sync import Admin
from kerolox.errors import BrokerError
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.interop.grpc5.driver import (
    CLIENTS,
    LACKS,
    WITH_BATCH,
    WITHOUT_PUSH,
    Client,
    ClientError,
    Driver,
    Server,
)
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["OWN_FACTS", "SCENARIOS", "Scenario", "begun", "facts_of", "prepared"]

Facts = list[object]


PARTS = ("topic", "body", "tag", "keys", "properties", "group", "at", "attempt")
LARGE_BYTES = 3 << 20
KEYS, PROPERTIES = ["one", "two"], {"name": "value", "ü": "ä b"}
NORMAL_FACTS: Facts = [True, "TOPIC", "bödy", "tag", KEYS, PROPERTIES, "", 0, 1]


class Scenario(NamedTuple):
    """One of them, its topic and its group."""

    run: Callable[[Client, Admin], Facts]
    facts: Facts
    """What comes of it."""
    kind: str = "NORMAL"
    is_ordered: bool = False
    retries: int = 16
    tls: bool = False


def normal(client: Client, admin: Admin) -> Facts:
    producer = client.producer()
    sent = client.send(producer, "bödy", tag="tag", keys=KEYS, properties=PROPERTIES)
    consumer = client.simple()
    [found] = client.receive(consumer, 1)
    client.close(consumer, producer)
    return [found["id"] == sent["id"], *(found[name] for name in PARTS)]


def large(client: Client, admin: Admin) -> Facts:
    """Many windows of HTTP/2, both ways; what Node.js receives ends at 4 MiB."""
    producer, consumer = client.producer(), client.simple()
    body = "large body " * (LARGE_BYTES // 11)
    client.send(producer, body)
    [found] = client.receive(consumer, 1)
    return [found["body"] == body]


def batch(client: Client, admin: Admin) -> Facts:
    """Several messages in one call."""
    producer, consumer = client.producer(), client.simple()
    bodies = [str(number) for number in range(5)]
    ids = client.sends(producer, bodies)
    found = client.receive(consumer, len(bodies))
    client.close(consumer, producer)
    told = dict(zip(ids, bodies, strict=False))
    return [
        sorted(each["body"] for each in found),
        {each["id"]: each["body"] for each in found} == told,
    ]


def fifo(client: Client, admin: Admin) -> Facts:
    producer, consumer = client.producer(), client.simple()
    for number in range(6):
        client.send(producer, str(number), group=f"g{number % 2}")
    found = client.receive(consumer, 6)
    of_group = {name: [m["body"] for m in found if m["group"] == name] for name in ("g0", "g1")}
    return [of_group["g0"], of_group["g1"]]


def delay(client: Client, admin: Admin) -> Facts:
    producer, consumer = client.producer(), client.simple()
    at = (int(time.time()) + 3) * 1000
    client.send(producer, "later", at=at)
    [found] = client.receive(consumer, 1)
    # A second is how exact the timer is.
    return [found["body"], found["at"] == at, time.time() * 1000 >= at - 1000]


def recall(client: Client, admin: Admin) -> Facts:
    producer, consumer = client.producer(), client.simple()
    now = int(time.time()) * 1000
    never = client.send(producer, "never", at=now + 4_000)
    client.send(producer, "kept", at=now + 6_000)
    handle = never["recall"]
    recalled = client.driver.ask("recall", name=producer, topic=client.topic, handle=handle)
    bodies = [each["body"] for each in client.receive(consumer, 1)]
    return [recalled == never["id"], bodies]


def transactions(client: Client, admin: Admin) -> Facts:
    producer, consumer = client.producer(), client.simple()
    for body, how in (
        ("first", "commit"),
        ("second", "rollback"),
        ("commit", ""),
        ("rollback", ""),
    ):
        client.send(producer, body, transaction=True)
        if how:
            client.driver.ask("end", name=producer, body=body, how=how)
    asked = {"commit", "rollback"}
    wait_until(lambda: asked <= client.checked(producer), what="both checks")
    found = sorted(each["body"] for each in client.receive(consumer, 2))
    # One that is not decided within a second is asked about, too.
    return [found, sorted(client.checked(producer) & asked)]


def simple_consumer(client: Client, admin: Admin) -> Facts:
    """With a changed invisible time."""
    producer, consumer = client.producer(), client.simple()
    for body in ("one", "two"):
        client.send(producer, body)
    facts: Facts = []
    for each in client.receive(consumer, 2, ack=False):
        if each["body"] == "two":
            client.change(consumer, each, 1)
        else:
            client.driver.ask("ack", name=consumer, n=each["n"])
            facts.append([each["body"], each["attempt"]])
    [again] = client.receive(consumer, 1)
    return [*facts, [again["body"], again["attempt"], again["topic"] == client.topic]]


def push_consumer(client: Client, admin: Admin) -> Facts:
    producer, consumer = client.producer(), client.push(failures=1)
    for body in ("0", "1", "fail", "2"):
        client.send(producer, body)
    found = client.consumed(consumer, 5)
    return [*sorted([each["body"], each["attempt"]] for each in found)]


def fifo_push(client: Client, admin: Admin) -> Facts:
    producer = client.producer()
    for number in range(3):
        for name in ("a", "b"):
            client.send(producer, f"{'fail ' if not number else ''}{name}{number}", group=name)
    found = client.consumed_until(client.push(failures=1), {"a2", "b2"})
    # It is tried again by the client, which may count no attempt.
    return [[each["body"] for each in found if each["group"] == name] for name in ("a", "b")]


def tags(client: Client, admin: Admin) -> Facts:
    producer, simple, push = client.producer(), "", ""
    for tag in ("c", "a", "d", "b"):
        client.send(producer, tag, tag=tag)
    simple = client.simple("a || b")
    found: Facts = [sorted(each["tag"] for each in client.receive(simple, 2))]
    if client.kind in WITHOUT_PUSH:
        return found
    push = Client(client.driver, client.server, client.topic, f"{client.group}-push").push("c||d")
    return [*found, sorted(each["tag"] for each in client.consumed(push, 2))]


def sql92(client: Client, admin: Admin) -> Facts:
    producer = client.producer()
    for number in range(5):
        kind = "even" if number % 2 == 0 else "odd"
        client.send(producer, str(number), properties={"n": str(number), "kind": kind})
    simple = client.simple("n > 1 AND kind = 'even'", sql=True)
    found: Facts = [sorted(each["body"] for each in client.receive(simple, 2))]
    if client.kind in WITHOUT_PUSH:
        return found
    other = Client(client.driver, client.server, client.topic, f"{client.group}-push")
    push = other.push("n BETWEEN 2 AND 3", sql=True)
    return [*found, sorted(each["body"] for each in client.consumed(push, 2))]


def _dead(admin: Admin, group: str) -> list[str]:
    topic = f"%DLQ%{group}"

    def bodies() -> list[str]:
        if topic not in admin.list_topics():
            return []
        return [bytes(each.body).decode() for each in admin.read_messages(topic)]

    wait_until(bodies, what=f"a dead letter of {group}")
    return bodies()


def dead_letters(client: Client, admin: Admin) -> Facts:
    """Its group tries a message again once."""
    producer, consumer = client.producer(), client.push(failures=99)
    for body in ("fail", "good"):
        client.send(producer, body)
    found = client.consumed(consumer, 3)
    return [sorted([m["body"], m["attempt"]] for m in found), _dead(admin, client.group)]


def fifo_dead_letters(client: Client, admin: Admin) -> Facts:
    producer = client.producer()
    for body in ("fail", "good"):
        client.send(producer, body, group="g")
    consumer = client.push(failures=99)
    found = [each["body"] for each in client.consumed_until(consumer, {"good"})]
    return [found, _dead(admin, client.group)]


def mistakes(client: Client, admin: Admin) -> Facts:
    """Each is an error for the application, and what follows is served."""
    producer, consumer = client.producer(), client.simple()
    at = (int(time.time()) + 60) * 1000
    ask = client.driver.ask
    wrong: dict[str, Callable[[], object]] = {
        "no such topic": lambda: client.send(producer, "no", topic="Missing"),
        "in order": lambda: client.send(producer, "no", group="g"),
        "for a moment": lambda: client.send(producer, "no", at=at),
        "transaction": lambda: client.send(producer, "no", transaction=True),
        "no handle": lambda: ask("recall", name=producer, topic=client.topic, handle="x"),
        "a second": lambda: ask("receive", name=consumer, count=1, invisible=1),
        "for long": lambda: ask("receive", name=consumer, count=1, invisible=50_000),
    }
    taken = []
    for name, act in wrong.items():
        with contextlib.suppress(ClientError):
            act()
            taken.append(name)
    client.send(producer, "good")
    return [taken, [each["body"] for each in client.receive(consumer, 1)]]


def leaves(client: Client, admin: Admin) -> Facts:
    """A consumer is in its group, and closed it is not."""
    producer, consumer = client.producer(), client.listener()
    client.send(producer, "one")
    client.taken_until(consumer, {"one"})
    before = _members(admin, client.group)
    client.close(consumer)
    return [before, _members(admin, client.group)]


def _members(admin: Admin, group: str) -> int:
    try:
        return len(admin.consumer_connections(group).members)
    except BrokerError:
        return 0


SCENARIOS = {
    "normal": Scenario(normal, NORMAL_FACTS),
    "large": Scenario(large, [True]),
    "tls": Scenario(normal, NORMAL_FACTS, tls=True),
    "batch": Scenario(batch, [["0", "1", "2", "3", "4"], True]),
    "fifo": Scenario(fifo, [["0", "2", "4"], ["1", "3", "5"]], kind="FIFO", is_ordered=True),
    "delay": Scenario(delay, ["later", True, True], kind="DELAY"),
    "recall": Scenario(recall, [True, ["kept"]], kind="DELAY"),
    "transactions": Scenario(
        transactions, [["commit", "first"], ["commit", "rollback"]], kind="TRANSACTION"
    ),
    "simple_consumer": Scenario(simple_consumer, [["one", 1], ["two", 2, True]]),
    "push_consumer": Scenario(
        push_consumer, [["0", 1], ["1", 1], ["2", 1], ["fail", 1], ["fail", 2]]
    ),
    "fifo_push": Scenario(
        fifo_push,
        [["fail a0", "fail a0", "a1", "a2"], ["fail b0", "fail b0", "b1", "b2"]],
        kind="FIFO",
        is_ordered=True,
    ),
    "tags": Scenario(tags, [["a", "b"], ["c", "d"]]),
    "sql92": Scenario(sql92, [["2", "4"], ["2", "3"]]),
    "dead_letters": Scenario(
        dead_letters, [[["fail", 1], ["fail", 2], ["good", 1]], ["fail"]], retries=1
    ),
    "fifo_dead_letters": Scenario(
        fifo_dead_letters,
        [["fail", "fail", "good"], ["fail"]],
        kind="FIFO",
        is_ordered=True,
        retries=1,
    ),
    "mistakes": Scenario(mistakes, [[], ["good"]]),
    "leaves": Scenario(leaves, [1, 0]),
}


OWN_FACTS: dict[tuple[str, str], Facts] = {
    **{(kind, "batch"): [f"{LACKS}batch"] for kind in CLIENTS if kind not in WITH_BATCH},
    ("go", "recall"): [f"{LACKS}recall"],
    # It takes the next messages of a group before it tries one again that failed.
    ("go", "fifo_push"): [["fail a0", "a1", "a2"], ["fail b0", "b1", "b2"]],
    ("go", "fifo_dead_letters"): [["fail", "good"], ["fail"]],
    # It says that it leaves only where an address can't be read.
    ("go", "leaves"): [1, 1],
    ("rust", "recall"): [f"{LACKS}recall"],
    ("rust", "tls"): [f"{LACKS}TLS"],
    ("rust", "simple_consumer"): [f"{LACKS}change"],
    **{
        ("rust", name): [f"{LACKS}push"]
        for name in ("push_consumer", "fifo_push", "dead_letters", "fifo_dead_letters")
    },
    ("rust", "tags"): [["a", "b"]],
    ("rust", "sql92"): [["2", "4"]],
}
"""What comes of a scenario with one client alone, at each server."""


def facts_of(kind: str, name: str) -> Facts:
    """What comes of a client's scenario."""
    return OWN_FACTS.get((kind, name), SCENARIOS[name].facts)


def topic_of(kind: str, name: str) -> str:
    """The topic of a scenario, which has its group's name, too."""
    return f"{kind}-{name}"


def prepared(admin: Admin, kind: str, names: Collection[str] = tuple(SCENARIOS)) -> None:
    """Make the topics and groups of scenarios."""
    for name in names:
        scenario, topic = SCENARIOS[name], topic_of(kind, name)
        admin.create_topic(topic, queues=2, attributes={"message.type": scenario.kind})
        for group in (topic, f"{topic}-push") if name in ("tags", "sql92") else (topic,):
            admin.put_group(
                SubscriptionGroupConfig(
                    group_name=group,
                    consume_message_orderly=scenario.is_ordered,
                    retry_max_times=scenario.retries,
                )
            )


def begun(
    driver: Driver, server: Server, admin: Admin, names: Collection[str] = tuple(SCENARIOS)
) -> dict[str, Future[Facts]]:
    """Begin scenarios, all at once: most of their time is waiting."""
    prepared(admin, driver.kind, names)
    pool = ThreadPoolExecutor(len(names))

    def run(name: str) -> Facts:
        scenario, topic = SCENARIOS[name], topic_of(driver.kind, name)
        client = Client(driver, server._replace(tls=scenario.tls), topic)
        try:
            facts = scenario.run(client, admin)
        except ClientError as error:
            if not str(error).startswith(LACKS):
                raise
            facts = [str(error)]
        return ["TOPIC" if fact == topic else fact for fact in facts]

    started = {name: pool.submit(run, name) for name in names}
    pool.shutdown(wait=False)
    return started
