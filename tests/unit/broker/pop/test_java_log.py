"""The revive log of a Java broker: what it has out is revived."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kerolox.broker.pop.java_log import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    JavaRevival,
    JavaReviveLog,
)
from kerolox.broker.pop.leases import QueueKey

POINT: dict[str, Any] = {
    "bm": 0,
    "bn": "b",
    "c": "g",
    "d": [0, 1, 4],
    "it": 60_000,
    "n": 3,
    "pt": 1_000,
    "q": 2,
    "ro": 7,
    "so": 10,
    "t": "T",
}
ACK = {"ao": 11, "bn": "b", "c": "g", "pt": 1_000, "q": 2, "so": 10, "t": "T"}


def log_of(*records: tuple[str, dict[str, Any]]) -> JavaReviveLog:
    log = JavaReviveLog()
    for tag, body in records:
        log.read(tag, json.dumps(body).encode())
    return log


def offsets(log: JavaReviveLog) -> list[int]:
    return [each.offset for each in log.revivals()]


def test_what_is_not_acknowledged_is_revived() -> None:
    log = log_of((CHECKPOINT_TAG, POINT), (ACK_TAG, ACK))
    key = QueueKey("g", "T", 2)
    assert list(log.revivals()) == [
        JavaRevival(key, 10, 1_000, 61_000),
        JavaRevival(key, 14, 1_000, 61_000),
    ]
    assert log.unread == 0


def test_an_acknowledgement_of_no_known_checkpoint_takes_no_memory() -> None:
    log = log_of((ACK_TAG, ACK), (CHECKPOINT_TAG, POINT), (ACK_TAG, {**ACK, "pt": 7, "ao": 10}))
    assert offsets(log) == [10, 11, 14]
    log.read(ACK_TAG, json.dumps({**ACK, "ao": 99}).encode())
    assert offsets(log) == [10, 11, 14]
    assert (log._acknowledged, log.unread) == ({(*"Tg", 2, 10, 1_000): set()}, 0)


def test_of_checkpoints_beyond_the_bound_a_queue_knows_its_lowest_offset() -> None:
    log = JavaReviveLog(checkpoints_max=1)
    for start in (10, 30, 20, 10):
        log.read(CHECKPOINT_TAG, json.dumps({**POINT, "so": start}).encode())
    assert (len(log), log.floors) == (1, {QueueKey("g", "T", 2): 20})
    assert offsets(log) == [10, 11, 14]


def test_a_batch_acknowledges_all_of_its_offsets() -> None:
    batch = {**ACK, "ao": -1, "aol": [10, 14]}
    assert offsets(log_of((CHECKPOINT_TAG, POINT), (BATCH_ACK_TAG, batch))) == [11]


def test_bits_of_a_checkpoint_say_what_is_done() -> None:
    assert offsets(log_of((CHECKPOINT_TAG, {**POINT, "bm": 5}))) == [11]


def test_a_checkpoint_without_distances_has_offsets_in_a_row() -> None:
    old = {name: value for name, value in POINT.items() if name != "d"}
    assert offsets(log_of((CHECKPOINT_TAG, old))) == [10, 11, 12]


@pytest.mark.parametrize("name", ["pt", "q", "so", "c", "t"])
def test_an_acknowledgement_of_another_pop_settles_nothing(name: str) -> None:
    other = {**ACK, name: "x" if name in "ct" else 99}
    assert offsets(log_of((CHECKPOINT_TAG, POINT), (ACK_TAG, other))) == [10, 11, 14]


def test_a_checkpoint_that_was_put_again_is_revived_once() -> None:
    assert offsets(log_of((CHECKPOINT_TAG, POINT), (CHECKPOINT_TAG, {**POINT, "ro": 9}))) == [
        10,
        11,
        14,
    ]


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        (CHECKPOINT_TAG, b"{"),
        (CHECKPOINT_TAG, b'{"so":"x"}'),
        (CHECKPOINT_TAG, json.dumps({**POINT, "n": 200}).encode()),
        (ACK_TAG, b"[]"),
        (None, b""),
        ("other", b"{}"),
    ],
)
def test_a_record_that_is_none_of_the_log_is_counted(tag: str | None, body: bytes) -> None:
    log = JavaReviveLog()
    log.read(tag, body)
    assert (log.unread, list(log.revivals())) == (1, [])
