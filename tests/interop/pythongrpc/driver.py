"""The official Python client of RocketMQ 5, unmodified. ``tests/interop/grpc5/driver.py`` drives
it, and says what the lines mean.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from itertools import count
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

Said = dict[str, Any]
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
}

logging.disable(logging.CRITICAL)
clients: dict[str, Any] = {}
transactions: dict[str, Any] = {}
received: dict[int, Message] = {}
numbers = count(1)
writing = threading.Lock()


def say(**said: object) -> None:
    with writing:
        print(json.dumps(said), flush=True)


def configuration(said: Said) -> ClientConfiguration:
    # On a busy machine the 3 s of the default are not enough for a start.
    account = Credentials(said["key"], said["secret"])
    return ClientConfiguration(said["endpoint"], account, request_timeout=10)


def facts(message: Message) -> Said:
    number = next(numbers)
    received[number] = message
    return {
        "n": number,
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag or "",
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group or "",
        "at": message.delivery_timestamp or 0,
        "attempt": message.delivery_attempt,
    }


class Checker(TransactionChecker):
    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, message: Message) -> TransactionResolution:
        body = message.body.decode()
        say(event="checked", name=self.name, body=body)
        return RESOLUTIONS.get(body, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


class Listener(MessageListener):
    def __init__(self, name: str, failures: int) -> None:
        self.name, self.failures = name, failures
        self.calls: Counter[str] = Counter()

    def consume(self, message: Message) -> ConsumeResult:
        found = facts(message)
        say(event="consumed", name=self.name, message=found)
        self.calls[message.message_id] += 1
        fails = self.calls[message.message_id] <= self.failures and found["body"].startswith("fail")
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def producer(said: Said) -> None:
    made = Producer(
        configuration(said), said["topics"], Checker(said["name"]), tls_enable=said["tls"]
    )
    made.startup()
    clients[said["name"]] = made


def send(said: Said) -> Said:
    message = Message()
    message.topic, message.body = said["topic"], said["body"].encode()
    if said["tag"]:
        message.tag = said["tag"]
    for key in said["keys"]:
        message.keys = key  # One more.
    for name, value in said["properties"].items():
        message.add_property(name, value)
    if said["group"]:
        message.message_group = said["group"]
    if said["at"]:
        message.delivery_timestamp = said["at"] // 1000
    sender = clients[said["name"]]
    if said["transaction"]:
        transaction = transactions[said["body"]] = sender.begin_transaction()
        receipt = sender.send(message, transaction)
    else:
        receipt = sender.send(message)
    return {"id": receipt.message_id, "recall": receipt.recall_handle or ""}


def end(said: Said) -> None:
    getattr(transactions[said["body"]], said["how"])()


def recall(said: Said) -> str:
    return str(clients[said["name"]].recall_message(said["topic"], said["handle"]))


def subscriptions(said: Said) -> dict[str, FilterExpression]:
    kind = FilterType.SQL if said["sql"] else FilterType.TAG
    return {said["topic"]: FilterExpression(said["expression"], kind)}


def simple(said: Said) -> None:
    made = SimpleConsumer(
        configuration(said), said["group"], subscriptions(said), 5, tls_enable=said["tls"]
    )
    made.startup()
    clients[said["name"]] = made


def receive(said: Said) -> list[Said]:
    found = clients[said["name"]].receive(said["count"], said["invisible"])
    return [facts(each) for each in found or []]


def ack(said: Said) -> None:
    clients[said["name"]].ack(received[said["n"]])


def change(said: Said) -> None:
    clients[said["name"]].change_invisible_duration(received[said["n"]], said["seconds"])


def push(said: Said) -> None:
    made = PushConsumer(
        configuration(said),
        said["group"],
        Listener(said["name"], said["failures"]),
        subscriptions(said),
        tls_enable=said["tls"],
    )
    made.startup()
    clients[said["name"]] = made


def close(said: Said) -> None:
    clients.pop(said["name"]).shutdown()


def answer(said: Said) -> None:
    try:
        say(id=said["id"], value=globals()[said["do"]](said))
    except Exception as error:
        say(id=said["id"], error=f"{type(error).__name__}: {error}")


for line in sys.stdin:
    threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
