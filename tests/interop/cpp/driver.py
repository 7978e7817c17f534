"""The C++ client, by ctypes, driven by ``tests/interop/grpc5/driver.py``: it sends, and its push
consumer says what it gets.

The library gives properties by their names alone, so those that are asked for are named here.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
)

UNIQ_KEY, KEYS, TIMER, GROUP = "UNIQ_KEY", "KEYS", "TIMER_DELIVER_MS", "__SHARDINGKEY"
OWN = "name", "ü"

Said = dict[str, Any]
clients: dict[str, Any] = {}
writing = threading.Lock()


def say(**said: object) -> None:
    """Print a whole line, whatever other threads print."""
    with writing:
        print(f"{json.dumps(said)}\n", end="", flush=True)


def producer(said: Said) -> None:
    """Start one."""
    made = clients[said["name"]] = Producer(said["name"])
    made.set_namesrv_addr(said["endpoint"])
    made.start()


def send(said: Said) -> Said:
    """Send a message."""
    message = Message(said["topic"])
    message.set_body(said["body"])
    if said["tag"]:
        message.set_tags(said["tag"])
    if said["keys"]:
        message.set_keys(" ".join(said["keys"]))
    if said["level"]:
        message.set_delay_time_level(said["level"])
    for name, value in said["properties"].items():
        message.set_property(name, value)
    if said["at"]:
        message.set_property(TIMER, str(said["at"]))
    return {"id": clients[said["name"]].send_sync(message).msg_id, "recall": ""}


def text_of(message: Any, name: str) -> str:
    """A property; empty: it has none of that name."""
    value = message.get_property(name)
    return str(value or b"", "utf-8")


def facts(message: Any) -> Said:
    """What it says of a message."""
    return {
        "id": text_of(message, UNIQ_KEY),
        "topic": message.topic,
        "body": str(message.body, "utf-8"),
        "tag": str(message.tags or b"", "utf-8"),
        "keys": sorted(text_of(message, KEYS).split()),
        "properties": {name: value for name in OWN if (value := text_of(message, name))},
        "group": text_of(message, GROUP),
        "at": int(text_of(message, TIMER) or 0),
        "attempt": message.reconsume_times + 1,
    }


def push(said: Said) -> None:
    """Start a push consumer that takes its messages in order."""
    name = said["name"]
    made = clients[name] = PushConsumer(said["group"], orderly=True)
    made.set_namesrv_addr(said["endpoint"])
    made.subscribe(
        said["topic"],
        lambda message: say(event="consumed", name=name, message=facts(message)),
        said["expression"],
    )
    made.start()


def answer(said: Said) -> None:
    """Do what a line asks."""
    try:
        say(id=said["id"], value=globals()[said["do"]](said))
    except Exception as error:
        say(id=said["id"], error=f"{type(error).__name__}: {error}")


for line in sys.stdin:
    threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
