"""Orderly consumers of Java keep the order of each queue while their group and broker change."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import Producer, ProducerSettings
from kerolox.errors import KeroloxError
from kerolox.message import Message
from tests.interop.test_java_features import OPTIONS
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.growing import GrowingFile
from tests.support.programs import RUNS_ALL, java_command
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java-order")]

TOPIC, GROUP = "Ordered", "ordered"
QUEUES = 4
SHARE = 40
"""So many messages prove that a member has its part."""

PAUSE_SECONDS = 0.005
"""Between two sends: members keep up with that."""

LOCK_LIVE_MS, LOCK_RENEWAL_MS = 5_000, 1_000
"""A client renews its locks a second after its start for the first time, then more often."""

LATE_MS = 2_500
"""So late may a renewal be on a busy machine."""

MOVES = 3
"""Joins and leaves before the first kill, each of which may move all queues."""

SETTINGS = {
    # The queues of a member that was killed wait so long for another one.
    "rebalanceLockMaxLiveTime": LOCK_LIVE_MS,
}


class Diary:
    """What members did, in the order in which it happened; all processes append to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GrowingFile(path)
        self._lines: list[list[str]] = []

    def note(self, event: str, at_ms: int = 0) -> None:
        """Something that happened to all: the begin of another part of the scenario, now or at a
        time."""
        with self.path.open("a") as file:
            file.write(f"{event} {at_ms or time.time_ns() // 1_000_000}\n")

    @property
    def lines(self) -> list[list[str]]:
        """Whole lines, in words; the last one is the time in milliseconds. Each is read once."""
        self._lines += [line.split() for line in self._file.new_lines()]
        return self._lines

    def consumed_by(self, name: str, *, since: str = "", what: str = "begin") -> int:
        """Messages that a member began, after an event that was noted."""
        lines = iter(self.lines)
        if since:
            next(line for line in lines if line[0] == since)
        return sum(line[:2] == [what, name] for line in lines)


class Members:
    """A process with members of the group."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def tell(self, line: str) -> None:
        """Have a member ``join`` or ``leave``; returns when it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{line}\n"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate()


def java_members(up: Up, diary: Diary, *twins: str) -> Members:
    """Members of Java; ``twins``: group and topic of those that read concurrently."""
    arguments = (up.namesrv, GROUP, TOPIC, str(diary.path), *twins)
    return Members(java_command("interop.OrderlyMembers", *arguments, options=OPTIONS))


class Sender:
    """Sends to each queue its numbers, the next one when the broker has the last one."""

    def __init__(self, up: Up, topic: str = TOPIC) -> None:
        self._topic = topic
        settings = ProducerSettings(send_timeout_ms=1_000)
        self._producer = Producer("ordering", up.namesrv, settings=settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.count = 0

    def __enter__(self) -> Self:
        self._producer.start()
        self._producer.create_topic(self._topic, queues=QUEUES)
        self._queues = sorted(self._producer.queues(self._topic), key=lambda queue: queue.queue_id)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._producer.close()

    def _send(self) -> None:
        while not self._stopping.wait(PAUSE_SECONDS):
            number, place = divmod(self.count, QUEUES)
            try:
                self._producer.send(Message(self._topic, b"%d" % number), queue=self._queues[place])
            except KeroloxError:
                # It may be there, and then it comes twice.
                continue
            self.count += 1

    def stop(self) -> None:
        """No more; ``count`` are there."""
        self._stopping.set()
        self._thread.join()


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diary, int]:
    """Members join, leave and are killed, the broker is killed and starts again, under load.

    Gives the diary and how many messages were sent.
    """
    folder = tmp_path_factory.mktemp("order")
    diary = Diary(folder / "diary")

    def until_consuming(name: str, since: str = "") -> None:
        wait_until(
            lambda: diary.consumed_by(name, since=since) >= SHARE,
            what=f"a share of member {name} {since}",
        )

    with (
        Up(folder, settings=SETTINGS) as up,
        Sender(up) as sender,
        java_members(up, diary) as members,
        java_members(up, diary) as victims,
    ):
        members.tell("join first")
        until_consuming("first")
        victims.tell("join victim")
        members.tell("join second")
        until_consuming("victim")
        until_consuming("second")
        members.tell("leave first")
        diary.note("left")
        until_consuming("second", since="left")
        # It has begun nothing after that line, which may be written later than it was killed.
        killed_ms = time.time_ns() // 1_000_000
        victims.kill()
        diary.note("killed", killed_ms)
        members.tell("join third")
        until_consuming("third", since="killed")
        hang_and_kill(up)
        diary.note("restarted")
        up.start()
        until_consuming("second", since="restarted")
        until_consuming("third", since="restarted")
        sender.stop()
        wait_until(
            lambda: sum(len(set(numbers)) for numbers in numbers_of(diary)) >= sender.count,
            what=f"the end of {sender.count} messages",
        )
        return diary, sender.count


def hang_and_kill(up: Up) -> None:
    """The broker hangs until each client waits for something, and is killed.

    Its connections are reset then. One that ends well, as those of a killed broker that had read
    all, leaves a Java client waiting for held pulls until they time out, after 30 s.
    """
    assert up.process is not None
    up.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not idle_connections(up.port), what="a request on each connection")
    up.kill()


def idle_connections(port: int) -> int:
    """Connections to a local port that have nothing unread."""
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    established = [row for row in rows if row[3] == "01" and row[1].endswith(f":{port:04X}")]
    return sum(int(row[4].partition(":")[2], 16) == 0 for row in established)


def numbers_of(diary: Diary, *, until: str = "", what: str = "begin") -> list[list[int]]:
    """By queue: the numbers as they were consumed, up to an event that was noted; ``what``: those
    of members that read in order, or of their counterpart (``took``)."""
    numbers: list[list[int]] = [[] for _ in range(QUEUES)]
    for kind, *words in diary.lines:
        if kind == until:
            break
        if kind == what:
            numbers[int(words[1])].append(int(words[2]))
    return numbers


def check_order(numbers: list[int], count: int) -> None:
    """None is left out and none comes before its turn."""
    expected = 0
    for number in numbers:
        # What was not committed when its member went comes again.
        assert number <= expected, f"{number} instead of {expected}"
        expected = max(expected, number + 1)
    assert expected >= count


def check_one_at_a_time(diary: Diary, leaver: str) -> None:
    """Each queue has one consumer, up to the broker's restart.

    Who has left or was killed has none any more: a Java client that leaves more messages than it
    takes in 5 s interrupts its listeners, as the last test here shows.
    """
    busy: dict[str, str] = {}
    for kind, *words in diary.lines:
        if kind == "restarted":
            # With the broker its locks are gone: members that had them learn that a moment later.
            break
        if kind in ("left", "killed"):
            gone = leaver if kind == "left" else "victim"
            busy = {queue: member for queue, member in busy.items() if member != gone}
        if kind == "begin":
            member, queue, number, _ = words
            owner = busy.setdefault(queue, member)
            assert owner == member, f"{number} of queue {queue}: {owner} and {member}"
        if kind == "end":
            member, queue, *_ = words
            if busy.get(queue) == member:
                del busy[queue]


def test_no_message_is_left_out_and_none_comes_before_its_turn(scenario: tuple[Diary, int]) -> None:
    diary, count = scenario
    for numbers in numbers_of(diary):
        check_order(numbers, count // QUEUES)


def test_a_queue_has_one_consumer_at_a_time(scenario: tuple[Diary, int]) -> None:
    check_one_at_a_time(scenario[0], "first")


def test_the_queues_of_a_killed_member_wait_until_its_locks_end(
    scenario: tuple[Diary, int],
) -> None:
    diary, _ = scenario
    begins = [line for line in diary.lines if line[0] in ("begin", "killed")]
    killed = next(place for place, line in enumerate(begins) if line[0] == "killed")
    owners = {line[2]: line[1] for line in begins[:killed]}
    waiting = {queue for queue, owner in owners.items() if owner == "victim"}
    assert waiting
    for queue in waiting:
        next_ms = next(int(line[4]) for line in begins[killed + 1 :] if line[2] == queue)
        assert next_ms - int(begins[killed][1]) >= LOCK_LIVE_MS - LOCK_RENEWAL_MS - LATE_MS


def test_who_takes_a_queue_over_goes_on_where_the_other_one_was(
    scenario: tuple[Diary, int],
) -> None:
    diary, _ = scenario
    # Offsets of a member that is killed are older, and a broker that is killed keeps older ones.
    numbers = numbers_of(diary, until="killed")
    again = sum(len(each) - len(set(each)) for each in numbers)
    # The message that is being consumed when its queue goes is not committed.
    assert again <= QUEUES * MOVES


@pytest.mark.skipif(not RUNS_ALL, reason="of Java alone; it takes 5 s (KEROLOX_SOFTWARE=all)")
def test_a_java_member_that_leaves_a_backlog_interrupts_its_listeners(tmp_path: Path) -> None:
    """It goes on with what it has until ``awaitTerminationMillisWhenShutdown`` is over, and then
    each of its queues has a message that was begun and not ended."""
    diary = Diary(tmp_path / "diary")
    settings = ProducerSettings(send_timeout_ms=120_000)
    with (
        Up(tmp_path, settings=SETTINGS) as up,
        Producer("ordering", up.namesrv, settings=settings) as producer,
    ):
        producer.create_topic(TOPIC, queues=QUEUES)
        queues = producer.queues(TOPIC)
        sends = [
            producer.submit(Message(TOPIC, b"%d" % number), queue=queue)
            for number in range(3_000)
            for queue in queues
        ]
        for send in sends:
            send.result(SECONDS_MAX)
        with java_members(up, diary) as members:
            members.tell("join java")
            wait_until(lambda: diary.consumed_by("java") >= SHARE)
            members.tell("leave java")
            begun = {queue: max(numbers) for queue, numbers in enumerate(numbers_of(diary))}
            ended = {
                queue: max(numbers) for queue, numbers in enumerate(numbers_of(diary, what="end"))
            }
    assert ended == {queue: number - 1 for queue, number in begun.items()}
