"""Entries that two losses of power leave of a message that was lost: same place, same size.

The first loss takes a message off the log and leaves its queue entry on the disk. Another message
of the same size comes into its place and is flushed; its entry is not, and the second loss leaves
the first one's. A wrong tags code would hide the message from who wants it, or deliver it at a
wrong time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kerolox.message import java_hash
from tests.support.stores.bench import NOW, Bench, properties

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1_000}


@pytest.fixture
def lives(kernel: Any, tmp_path: Path, closing: list[Bench]) -> list[Bench]:
    """A store's three lives, each in a folder of its own."""
    made = [Bench(kernel, tmp_path / name) for name in ("first", "second", "third")]
    closing += made
    return made


def lose_power(now: Bench, then: Bench) -> None:
    """Copy the files, of another boot."""
    shutil.copytree(now.path, then.path)
    (then.path / "abort").write_bytes(b"")
    (then.path / "boot").unlink(missing_ok=True)


def end_log_at(bench: Bench, offset: int) -> None:
    """What is behind never reached the disk."""
    [path] = (bench.path / "commitlog").glob(f"{0:020d}")
    data = path.read_bytes()
    path.write_bytes(data[:offset].ljust(len(data), b"\0"))


def lose_twice(
    lives: list[Bench],
    texts: tuple[str, str],
    *kept: str,
    topic: str = "T",
    more: int = 0,
    **settings: Any,
) -> None:
    """Messages with the first of two texts are lost; their files in these folders come back."""
    first, second, third = lives
    where = {"topic": topic.encode()}
    first.open(**settings)
    first.append(b"stays", texts[1], **where)
    gone = first.append(b"x", texts[0], **where)
    first.store.flush()
    lose_power(first, second)
    end_log_at(second, gone[1])
    second.open(**settings)
    # Units tell by their times, too, whose they are.
    second.store.set_clock(NOW + 1)
    came = second.append(b"y", texts[1], **where)
    assert came[1:4] == gone[1:4]
    for _ in range(more):
        second.append(b"z", texts[1], **where)
    second.store.close()
    lose_power(second, third)
    for folder in kept:
        shutil.rmtree(third.path / folder)
        shutil.copytree(first.path / folder, third.path / folder)
    third.open(**settings)


def wanted(bench: Bench, tag: str) -> bytes:
    return bench.store.read("T", 0, 0, 32, [java_hash(tag)])[6]


TAGS = (properties(TAGS="a"), properties(TAGS="b"))


@pytest.mark.parametrize("more", [0, 4], ids=["last entry", "entries missing behind it"])
def test_an_entry_that_came_back_has_the_tags_of_its_record(lives: list[Bench], more: int) -> None:
    lose_twice(lives, TAGS, "consumequeue", more=more)
    store = lives[2].store
    assert store.queue_bounds("T", 0) == (0, 2 + more)
    assert store.queue_entry("T", 0, 1)[2] == java_hash("b")
    assert b"y\x01T" in wanted(lives[2], "b")
    assert wanted(lives[2], "a") == b""


def test_an_entry_that_came_back_has_the_time_of_its_record(lives: list[Bench]) -> None:
    levels = (properties(DELAY="3"), properties(DELAY="2"))
    settings = {"message_delay_level": "1s 5s 10s"}
    lose_twice(lives, levels, "consumequeue", topic=SCHEDULE_TOPIC, **settings)
    assert lives[2].store.queue_entry(SCHEDULE_TOPIC, 0, 0)[2] == NOW + 5_000
    assert lives[2].store.queue_entry(SCHEDULE_TOPIC, 0, 1)[2] == NOW + 1 + 5_000


@pytest.mark.parametrize("kept", [("consumequeue",), ("consumequeue_ext",), ()], ids=str)
def test_a_unit_that_came_back_is_not_taken_for_that_of_another_record(
    lives: list[Bench], kept: tuple[str, ...]
) -> None:
    lose_twice(lives, TAGS, *kept, more=1, **EXT)
    third = lives[2]
    assert third.store.queue_entry("T", 0, 1)[2] == java_hash("b")
    unit = third.store.queue_unit("T", 0, 1)
    assert unit is None or unit[1] == NOW + 1
    assert b"y\x01T" in wanted(third, "b")
    assert b"y\x01T" not in wanted(third, "a")


def test_after_a_kill_entries_keep_their_times_whatever_the_levels_are_now(
    lives: list[Bench],
) -> None:
    first, second, _third = lives
    first.open(message_delay_level="1s 5s")
    first.append(b"x", properties(DELAY="2"), topic=SCHEDULE_TOPIC.encode())
    shutil.copytree(first.path, second.path)
    assert second.open(message_delay_level="1s 9s").same_boot
    assert second.store.queue_entry(SCHEDULE_TOPIC, 0, 0)[2] == NOW + 5_000
