"""What a program does with rocketmq 0.4.4, the client in C++, one case after the other.

Each line of the input is a case: what is done (send, push), and NAME=VALUE each (namesrv, topic,
group, accessKey, secretKey), separated by tabs. To each comes one line: "outcome", and "ok" or what
went wrong. This client speaks no TLS.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
)

WAIT_SECONDS_MAX = 60
TIMEOUT_MS = 30_000


def producer(given: dict[str, str], number: int) -> Any:
    """One that is started."""
    made = Producer(f"python-{number}", timeout=TIMEOUT_MS)
    return started(made, given)


def started(made: Any, given: dict[str, str]) -> Any:
    """A client that knows where to, and as whom."""
    made.set_namesrv_addr(given["namesrv"])
    if "accessKey" in given:
        made.set_session_credentials(given["accessKey"], given["secretKey"], "")
    made.start()
    return made


def send(given: dict[str, str], number: int) -> str:
    """Send one message; its body."""
    body = f"python-{number}"
    message = Message(given["topic"])
    message.set_tags("T")
    message.set_keys("key")
    message.set_body(body)
    sender = producer(given, number)
    try:
        result = sender.send_sync(message)
    finally:
        sender.shutdown()
    if result.status != 0:
        raise RuntimeError(f"status {result.status}")
    return body


def push(given: dict[str, str], number: int) -> None:
    """Send one and wait until it comes."""
    body = send(given, number).encode()
    came = threading.Event()

    def listen(message: Any) -> None:
        if message.body == body:
            came.set()

    consumer = PushConsumer(given["group"])
    consumer.subscribe(given["topic"], listen)
    started(consumer, given)
    is_here = came.wait(WAIT_SECONDS_MAX)
    consumer.shutdown()
    if not is_here:
        raise RuntimeError("it never came")


CASES: dict[str, Callable[[dict[str, str], int], object]] = {"send": send, "push": push}


def main() -> None:
    """Take cases until the input ends."""
    for number, line in enumerate(sys.stdin):
        what, *words = line.rstrip("\n").split("\t")
        outcome = "ok"
        try:
            CASES[what](dict(word.split("=", 1) for word in words), number)
        except Exception as error:
            outcome = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"outcome\t{outcome}", flush=True)


if __name__ == "__main__":
    main()
