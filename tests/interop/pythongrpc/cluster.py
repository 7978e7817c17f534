"""cluster.py ENDPOINTS simple|push TOPIC GROUP: the official Python client of RocketMQ 5 sends and
receives at a cluster until a line comes in. Prints ``sent NUMBER`` for each message that is
acknowledged, ``failed NUMBER`` for one that is not, ``got NUMBER`` for each that is handled,
``again ERROR`` for a receive that failed, and at the end ``ended``, when it has all that it sent.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

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
)

ENDPOINTS, KIND, TOPIC, GROUP = sys.argv[1:]
PAUSE_SECONDS = 0.02
LEFT_SECONDS_MAX = 60
INVISIBLE_SECONDS = 10

configuration = ClientConfiguration(ENDPOINTS, Credentials())
sent: set[int] = set()
got: set[int] = set()
is_over, has_all = threading.Event(), threading.Event()


def say(what: str, number: int) -> None:
    print(what, number, flush=True)


def handle(message: Message) -> None:
    number = int(message.body)
    got.add(number)
    say("got", number)


def send() -> None:
    producer = Producer(configuration, (TOPIC,))
    producer.startup()
    for number in itertools.count():
        if is_over.is_set():
            break
        message = Message()
        message.topic, message.body = TOPIC, b"%d" % number
        try:
            producer.send(message)
        except Exception:
            say("failed", number)
        else:
            sent.add(number)
            say("sent", number)
        time.sleep(PAUSE_SECONDS)
    producer.shutdown()


class Listener(MessageListener):
    def consume(self, message: Message) -> ConsumeResult:
        handle(message)
        return ConsumeResult.SUCCESS


def pull() -> None:
    consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression()}, 2)
    consumer.startup()
    while not has_all.is_set():
        try:
            for message in consumer.receive(32, INVISIBLE_SECONDS) or []:
                handle(message)
                consumer.ack(message)
        except Exception as error:
            print("again", type(error).__name__, flush=True)
            time.sleep(PAUSE_SECONDS)
    consumer.shutdown()


def push() -> None:
    consumer = PushConsumer(configuration, GROUP, Listener(), {TOPIC: FilterExpression()})
    consumer.startup()
    has_all.wait()
    consumer.shutdown()


sender = threading.Thread(target=send)
receiver = threading.Thread(target={"simple": pull, "push": push}[KIND])
sender.start()
receiver.start()
sys.stdin.readline()
is_over.set()
sender.join()
end = time.monotonic() + LEFT_SECONDS_MAX
while not sent <= got and time.monotonic() < end:
    time.sleep(PAUSE_SECONDS)
has_all.set()
receiver.join()
print("lost", *sorted(sent - got)) if sent - got else print("ended")
