"""cases.py ENDPOINT plain|tls CASE...: the official Python client of RocketMQ 5, unmodified. Each
case has a topic and a group of its name, made before, and prints a line for each thing that it saw.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

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

ENDPOINT, TRANSPORT, *NAMES = sys.argv[1:]
IS_TLS = TRANSPORT == "tls"
SECONDS_MAX = 60
INVISIBLE_SECONDS = 10


def configuration() -> ClientConfiguration:
    return ClientConfiguration(ENDPOINT, Credentials())


def message(topic: str, body: str, **more: object) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def producer(topic: str, checker: TransactionChecker | None = None) -> Producer:
    made = Producer(configuration(), (topic,), checker, tls_enable=IS_TLS)
    made.startup()
    return made


def received(topic: str, count: int, take: Callable[[SimpleConsumer, Message], None]) -> None:
    consumer = SimpleConsumer(
        configuration(), topic, {topic: FilterExpression()}, 5, tls_enable=IS_TLS
    )
    consumer.startup()
    end = time.monotonic() + SECONDS_MAX
    seen = 0
    while seen < count and time.monotonic() < end:
        for each in consumer.receive(16, INVISIBLE_SECONDS) or []:
            take(consumer, each)
            seen += 1
    consumer.shutdown()


def acknowledged(consumer: SimpleConsumer, each: Message) -> None:
    print("got", each.body.decode(), "attempt", each.delivery_attempt)
    consumer.ack(each)


def simple() -> None:
    sender = producer("simple")
    sent = message("simple", "one", tag="tag", keys="key")
    sent.add_property("name", "value")
    receipt = sender.send(sent)
    print("sent", bool(receipt.message_id))
    sender.send(message("simple", "two"))

    def take(consumer: SimpleConsumer, each: Message) -> None:
        if each.body == b"two":
            if each.delivery_attempt == 1:
                consumer.change_invisible_duration(each, 1)
                return
        else:
            same = each.message_id == receipt.message_id
            print("parts", same, each.tag, *each.keys, each.properties, each.corrupted)
        acknowledged(consumer, each)

    received("simple", 3, take)
    sender.shutdown()


def ordered() -> None:
    sender = producer("ordered")
    for number in range(5):
        sender.send(message("ordered", str(number), message_group="group"))
    received("ordered", 5, acknowledged)
    sender.shutdown()


def later() -> None:
    sender = producer("later")
    now = int(time.time())
    taken_back = sender.send(message("later", "never", delivery_timestamp=now + 6))
    sender.send(message("later", "later", delivery_timestamp=now + 2))
    recalled = sender.recall_message("later", taken_back.recall_handle)
    print("recalled", bool(recalled))
    received("later", 1, acknowledged)
    print("in time", time.time() >= now + 2)
    sender.shutdown()


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        print("checked", message.body.decode())
        return TransactionResolution.COMMIT


def decided() -> None:
    sender = producer("decided", Checker())
    for name in ("commit", "rollback", "open"):
        transaction = sender.begin_transaction()
        sender.send(message("decided", name), transaction)
        if name != "open":
            getattr(transaction, name)()
            print("ended", name)
    received("decided", 2, acknowledged)
    sender.shutdown()


class Listener(MessageListener):
    def __init__(self) -> None:
        self.done = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        print("got", message.body.decode(), "attempt", message.delivery_attempt)
        if message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        self.done.set()
        return ConsumeResult.SUCCESS


def push() -> None:
    sender, listener = producer("push"), Listener()
    consumer = PushConsumer(
        configuration(), "push", listener, {"push": FilterExpression()}, tls_enable=IS_TLS
    )
    consumer.startup()
    sender.send(message("push", "pushed"))
    print("again", listener.done.wait(SECONDS_MAX))
    consumer.shutdown()
    sender.shutdown()


for case in NAMES:
    print(f"-- {case}")
    globals()[case]()
print("ended all")
