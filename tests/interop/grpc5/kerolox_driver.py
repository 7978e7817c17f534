"""Kerolox's clients of remoting, driven by ``tests/interop/grpc5/driver.py`` as those of others."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from kerolox import LitePullConsumerSettings
from kerolox.client.sync import LitePullConsumer, Producer
from kerolox.message import Message, MessageExt, PropertyKey

Said = dict[str, Any]
producers: dict[str, Producer] = {}
writing = threading.Lock()


def say(**said: object) -> None:
    with writing:
        print(json.dumps(said), flush=True)


def producer(said: Said) -> None:
    made = Producer(said["name"], said["endpoint"])
    made.start()
    producers[said["name"]] = made


def send(said: Said) -> Said:
    message = Message(
        said["topic"],
        said["body"].encode(),
        said["tag"],
        said["keys"],
        properties=said["properties"],
        delay_level=said["level"],
    )
    at = datetime.fromtimestamp(said["at"] / 1000, UTC) if said["at"] else None
    return {"id": producers[said["name"]].send(message, deliver_at=at).message_id, "recall": ""}


def facts(message: MessageExt) -> Said:
    properties = message.properties
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": bytes(message.body).decode(),
        "tag": message.tags,
        "keys": sorted(properties.get(PropertyKey.KEYS, "").split()),
        "properties": dict(properties),
        "group": properties.get("__SHARDINGKEY", ""),
        "at": int(properties.get(PropertyKey.TIMER_DELIVER, 0)),
        "attempt": message.reconsume_times + 1,
    }


def push(said: Said) -> None:
    settings = LitePullConsumerSettings(consume_from_where="consume_from_first_offset")
    consumer = LitePullConsumer(said["group"], said["endpoint"], settings=settings)
    consumer.subscribe(said["topic"], said["expression"])
    consumer.start()
    threading.Thread(target=poll, args=(said["name"], consumer), daemon=True).start()


def poll(name: str, consumer: LitePullConsumer) -> None:
    while True:
        for message in consumer.poll(1_000):
            say(event="consumed", name=name, message=facts(message))


def answer(said: Said) -> None:
    try:
        say(id=said["id"], value=globals()[said["do"]](said))
    except Exception as error:
        say(id=said["id"], error=f"{type(error).__name__}: {error}")


for line in sys.stdin:
    threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
