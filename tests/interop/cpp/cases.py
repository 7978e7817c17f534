"""``cases.py NAMESRV TOPIC COUNT``: the C++ client, by ctypes, sends a batch and gets it back.

Prints ``status NUMBER`` of the send, ``got BODY`` for each message that its push consumer gets, and
``left`` once it has all and its producer is shut down. The consumer starts before the batch is
sent: new groups start at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
)

WAIT_SECONDS_MAX = 60


def say(line: str) -> None:
    """Print a whole line, whatever other threads print."""
    print(f"{line}\n", end="", flush=True)


def message(topic: str, number: int) -> Any:
    """One of the batch."""
    made = Message(topic)
    made.set_tags("cpp")
    made.set_keys(f"key-{number}")
    made.set_body(f"batch {number}")
    return made


def main() -> None:
    """Send and receive."""
    namesrv, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    bodies: set[str] = set()
    came = threading.Event()

    def listen(received: Any) -> None:
        body = received.body.decode()
        say(f"got {body}")
        bodies.add(body)
        if len(bodies) == count:
            came.set()

    consumer = PushConsumer(f"{topic}-readers")
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, listen)
    consumer.start()
    producer = Producer(f"{topic}-senders")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    sent = producer.send_batch([message(topic, number) for number in range(count)])
    say(f"status {int(sent.status)}")
    assert came.wait(WAIT_SECONDS_MAX), f"got {len(bodies)} of {count}"
    producer.shutdown()
    say("left")
    os._exit(0)  # the shutdown of its consumer ends in a segmentation fault


if __name__ == "__main__":
    main()
