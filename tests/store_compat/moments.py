"""Messages for a moment in a store that our broker and Java's 5.3.3 have in turns.

Each of the two ways gives what came of all messages. Of those, some come at the first broker, some
are due while no broker runs or at the second, and some an hour later, at ours, whose clock is
turned.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.broker.broker import Broker
from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.recall_handles import decode_handle
from kerolox.protocol.records import decode_records
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_at, peer_of, small_config
from tests.support.eventually import until
from tests.support.programs import build_broker_53
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from kerolox.message import MessageExt

__all__ = ["Came", "java_broker", "java_then_ours", "our_broker", "ours_then_java", "read_all"]
__all__ += ["deliver", "send_at", "spread"]

TOPIC = "Moments"
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 400_000,
    "recallMessageEnable": "true",
}
STEP_MS = 1_000
HOUR_MS = 3_600_000
SENDS_PER_SECOND = 250
"""As few as a busy machine takes: so far ahead the first moments are."""
LATER_MS = 6_000
"""Over so long the moments of the last ones are spread."""
DOWN_SECONDS = 15
"""As long as a change of brokers takes, about."""


@dataclass
class Came:
    """What became of the messages, by body."""

    due_ms: dict[bytes, int] = field(default_factory=dict)
    taken_back: set[bytes] = field(default_factory=set)
    came_ms: dict[bytes, list[int]] = field(default_factory=dict)
    """When each was delivered."""
    by: Counter[str] = field(default_factory=Counter)
    """How many came at each broker, in turn."""
    ready_ms: int = 0
    """When the second broker was there."""
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Broker, case: what it answers to bad input."""

    def note(self, broker: str, found: list[MessageExt]) -> None:
        """Take what has come so far over."""
        before = sum(map(len, self.came_ms.values()))
        self.came_ms = {}
        for each in found:
            # A clock that is turned is not the store's.
            taken_ms = int(each.properties.get("TIMER_DEQUEUE_MS", 0))
            came_ms = max(each.store_timestamp, taken_ms)
            self.came_ms.setdefault(each.body, []).append(came_ms)
        self.by[broker] += len(found) - before

    @property
    def missing(self) -> set[bytes]:
        """Neither delivered nor taken back."""
        return self.due_ms.keys() - self.came_ms.keys() - self.taken_back

    @property
    def wrong(self) -> set[bytes]:
        """Taken back, and yet delivered."""
        return self.came_ms.keys() & self.taken_back

    @property
    def doubled(self) -> set[bytes]:
        """Delivered more than once."""
        return {body for body, times in self.came_ms.items() if len(times) > 1}

    @property
    def early(self) -> set[bytes]:
        """Delivered before their moment."""
        return {body for body, times in self.came_ms.items() if min(times) < self.due_ms[body]}

    def late_ms(self) -> list[int]:
        """How late those came that were due while a broker ran, in order."""
        found = (
            times[0] - self.due_ms[body]
            for body, times in self.came_ms.items()
            if self.due_ms[body] >= self.ready_ms
        )
        return sorted(found)


def java_broker(data: Path) -> JavaPeer:
    """The broker of 5.3.3 on a store."""
    lines = tuple(f"{name}={value}" for name, value in SETTINGS.items())
    return JavaPeer(data, settings=lines, with_namesrv=False, built=build_broker_53)


@asynccontextmanager
async def our_broker(data: Path, clock: Clock) -> AsyncIterator[tuple[Broker, Peer]]:
    """Ours on a store, in this process."""
    config = small_config(
        data,
        broker_name=SETTINGS["brokerName"],
        mapped_file_size_commit_log=SETTINGS["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=SETTINGS["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=SETTINGS["maxHashSlotNum"],
        max_index_num=SETTINGS["maxIndexNum"],
    )
    async with Broker(config, clock_ms=clock) as broker, peer_of(broker) as peer:
        yield broker, peer


async def send_at(peer: Peer, came: Came, name: str, moments_ms: list[int]) -> list[str]:
    """Send a message for each moment; gives what takes each back, nothing for one that is due when
    it is sent."""
    handles = []
    for number, due_ms in enumerate(moments_ms):
        body = f"{name} {number}".encode()
        given = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{name}-{number}", "WAIT": "true"}
        answer = await peer.send(TOPIC, body, properties=encode_properties(given))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        came.due_ms[body] = due_ms
        handles.append(answer.ext_fields.get("recallHandle", ""))
    return handles


def spread(begin_ms: int, count: int) -> list[int]:
    """Moments from one on."""
    return [begin_ms + number * LATER_MS // count for number in range(count)]


async def recall(peer: Peer, came: Came, body: bytes, handle: str) -> None:
    """Take a message back."""
    fields = {"producerGroup": "g", "topic": TOPIC, "recallHandle": handle}
    answer = await peer.ask(RequestCode.RECALL_MESSAGE, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    came.taken_back.add(body)


async def read_all(peer: Peer) -> list[MessageExt]:
    """All that has come."""
    found: list[MessageExt] = []
    while more := decode_records((await peer.pull(TOPIC, 0, len(found))).body):
        found += more
    return found


def bad_sends(now_ms: int) -> dict[str, dict[str, object]]:
    """Properties that a client should not send, by what is wrong."""
    return {
        "past": {"TIMER_DELIVER_MS": now_ms - 5_000},
        "negative moment": {"TIMER_DELIVER_MS": -1},
        "no delay": {"TIMER_DELAY_SEC": 0},
        "negative delay": {"TIMER_DELAY_MS": -5},
        "beyond the maximum": {"TIMER_DELAY_SEC": 259_201},
        "far beyond": {"TIMER_DELIVER_MS": now_ms + 400 * 24 * HOUR_MS},
        "largest long": {"TIMER_DELIVER_MS": (1 << 63) - 1},
        "overflow": {"TIMER_DELAY_SEC": (1 << 63) - 1},
        "no long": {"TIMER_DELAY_MS": 1 << 63},
        "no number": {"TIMER_DELAY_SEC": "soon"},
        "fraction": {"TIMER_DELAY_SEC": "1.5"},
        "blank": {"TIMER_DELAY_SEC": " 1"},
        "first past, second not": {"TIMER_DELAY_SEC": -1, "TIMER_DELIVER_MS": now_ms + HOUR_MS},
        "first not, second past": {"TIMER_DELAY_SEC": 3_600, "TIMER_DELIVER_MS": 5},
        "first no number": {"TIMER_DELAY_SEC": "x", "TIMER_DELIVER_MS": now_ms + HOUR_MS},
        "level and no number": {"DELAY": 17, "TIMER_DELAY_SEC": "x"},
        "own slot": {"TIMER_OUT_MS": now_ms + HOUR_MS, "TIMER_DELAY_SEC": 3_600},
        "delete in the past": {"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "Answers+k"},
        "delete of another topic": {"TIMER_DELAY_SEC": 3_600, "TIMER_DEL_UNIQKEY": "Other+k"},
    }


def bad_handles(handle: str) -> dict[str, str]:
    """What is no handle of a message that waits, made of one that is, by what is wrong."""
    own = decode_handle(handle)
    wrong = {
        "nothing": "",
        "no handle": "?",
        "another topic": own._replace(topic="Other").encode(),
        "another broker": own._replace(broker_name="other").encode(),
        "another moment": own._replace(time_ms=own.time_ms + 60_000).encode(),
        "a moment that is over": own._replace(time_ms=5).encode(),
        "a moment beyond the maximum": own._replace(time_ms=own.time_ms + 99 * HOUR_MS).encode(),
        "another message": own._replace(unique_key="other").encode(),
    }
    cuts = {f"cut by {left}": handle[:-left] for left in (1, 2, 3, 4, 24, len(handle) - 4)}
    return {**wrong, **cuts}


async def answers_to_bad_input(peer: Peer) -> dict[str, str]:
    """The code of each answer, and whether what was sent waits: only then it has a handle."""
    topic, found = "Answers", {}
    await peer.create_topic(topic, queues=1)
    for case, properties in bad_sends(_now_ms()).items():
        given = {"UNIQ_KEY": case, "WAIT": "true", **{k: str(v) for k, v in properties.items()}}
        answer = await peer.send(topic, properties=encode_properties(given))
        waits = " waits" if answer.ext_fields.get("recallHandle") else ""
        found[case] = f"{answer.code}{waits}"
    given = {"UNIQ_KEY": "kept", "WAIT": "true", "TIMER_DELAY_SEC": "3600"}
    sent = await peer.send(topic, properties=encode_properties(given))
    for case, handle in bad_handles(sent.ext_fields["recallHandle"]).items():
        fields = {"producerGroup": "g", "topic": topic, "recallHandle": handle}
        found[case] = str((await peer.ask(RequestCode.RECALL_MESSAGE, fields)).code)
    return found


async def comes(peer: Peer, count: int, what: str) -> list[MessageExt]:
    """Wait for so many messages."""
    found: list[MessageExt] = []

    async def have_come() -> bool:
        found[:] = await read_all(peer)
        return len(found) >= count

    await until(have_come, what=f"{count} messages {what}")
    return found


async def java_then_ours(data: Path, count: int) -> Came:
    """Java takes all messages and delivers a quarter; ours delivers the others, an hour later by
    its clock. One is taken back there by the handle that Java gave."""
    came, quarter = Came(), count // 4
    with java_broker(data) as java:
        async with peer_at(f"127.0.0.1:{java.port}") as peer:
            await peer.create_topic(TOPIC, queues=1)
            begin = _now_ms() + 1_000 + count * 1_000 // SENDS_PER_SECOND
            later = begin + HOUR_MS
            handles = await send_at(peer, came, "later", spread(later, count - quarter))
            await send_at(peer, came, "soon", [begin + 11 * number for number in range(quarter)])
            came.note("java", await comes(peer, quarter, "of Java's"))
            came.answers["java"] = await answers_to_bad_input(peer)
    clock = Clock()
    async with our_broker(data, clock) as (broker, peer):
        came.ready_ms = clock()
        await recall(peer, came, b"later 9", handles[9])
        came.answers["ours"] = await answers_to_bad_input(peer)
        await deliver(broker, peer, clock, came, later)
    return came


async def ours_then_java(data: Path, count: int) -> Came:
    """Ours takes all messages and delivers a quarter; Java delivers another one that was due
    meanwhile, and one that is due then; the last one comes at ours again, an hour later by its
    clock. One of these is taken back at Java's."""
    came, quarter = Came(), count // 4
    clock = Clock()
    async with our_broker(data, clock) as (_, peer):
        await peer.create_topic(TOPIC, queues=1)
        begin = clock() + 1_000 + count * 1_000 // SENDS_PER_SECOND
        later = begin + HOUR_MS
        handles = await send_at(peer, came, "later", spread(later, quarter))
        span = 11 * quarter
        for name, at in (
            ("then", begin + span + DOWN_SECONDS * 1_000),
            # The first of them is due when ours has ended, about.
            ("meanwhile", begin + span + 2_000),
            ("soon", begin),
        ):
            await send_at(peer, came, name, [at + 11 * number for number in range(quarter)])
        came.note("ours", await comes(peer, quarter, "of ours"))
    with java_broker(data) as java:
        came.ready_ms = _now_ms()
        async with peer_at(f"127.0.0.1:{java.port}") as peer:
            await recall(peer, came, b"later 9", handles[9])
            came.note("java", await comes(peer, 3 * quarter, "of Java's"))
    async with our_broker(data, clock) as (broker, peer):
        await deliver(broker, peer, clock, came, later)
    return came


async def deliver(broker: Broker, peer: Peer, clock: Clock, came: Came, later: int) -> None:
    """Turn the clock to ``later`` and on, a step at a time: what is due at each has come then."""
    service = broker.parts.writing.timer
    await until(lambda: service.timer is not None, what="the wheel")
    steps = math.ceil((max(came.due_ms.values()) - later) / STEP_MS) + 2
    for step in range(steps):
        clock.ahead_ms = max(clock.ahead_ms, later + step * STEP_MS - _now_ms())
        now_ms = clock()
        await service.turn()
        found = {each.body for each in await read_all(peer)}
        # Read once its step is over.
        due = {
            body for body, at in came.due_ms.items() if (at - 1) // 1_000 * 1_000 + 1_000 <= now_ms
        }
        assert due - found - came.taken_back == set(), f"step {step}"
    came.note("ours again" if came.by["ours"] else "ours", await read_all(peer))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
