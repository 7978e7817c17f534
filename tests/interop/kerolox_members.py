"""What ``interop.OrderlyMembers`` is for Java: members of our own client that come and go.

    python -m tests.interop.kerolox_members NAMESRV GROUP TOPIC FILE GROUP TOPIC

A line "join NAME" or "leave NAME" is answered by the same line when that is done. To the file that
processes share each appends "begin NAME QUEUE BODY MILLISECONDS" and the same with "end" around
every message of the topic that is read in order, and "took" for those of the other one.
"""

from __future__ import annotations

import sys
import time

from kerolox.client.sync import PushConsumer, PushConsumerSettings
from kerolox.message import MessageExt

SETTINGS = PushConsumerSettings(
    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    api_timeout_ms=10_000,
    route_poll_interval_ms=500,
    heartbeat_interval_ms=500,
    rebalance_interval_ms=1_000,
    lock_interval_ms=500,
)


def main(name_server: str, group: str, topic: str, path: str, *twins: str) -> None:
    """Do what the input says until it ends."""
    twin_group, twin_topic = twins
    members: dict[str, tuple[PushConsumer, PushConsumer]] = {}
    with open(path, "ab", buffering=0) as file:

        def note(kind: str, name: str, message: MessageExt) -> None:
            what = f"{kind} {name} {message.queue_id} {message.body.decode()}"
            # One write each, so that lines of all processes stand in the order in which things
            # happened.
            file.write(f"{what} {time.time_ns() // 1_000_000}\n".encode())

        def join(name: str) -> None:
            def in_order(message: MessageExt) -> None:
                note("begin", name, message)
                # It waits for nothing: it is the listener's work, long enough for two members to
                # meet in a queue.
                time.sleep(0.006)
                note("end", name, message)

            ordered = PushConsumer(group, name_server, settings=SETTINGS)
            ordered.subscribe_each(topic, "*", in_order, ordered=True)
            twin = PushConsumer(twin_group, name_server, settings=SETTINGS)
            twin.subscribe_each(twin_topic, "*", lambda message: note("took", name, message))
            members[name] = (ordered, twin)
            ordered.start()
            twin.start()

        for line in sys.stdin:
            what, name = line.split()
            if what == "join":
                join(name)
            else:
                for member in members.pop(name):
                    member.close()
            print(line, end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
