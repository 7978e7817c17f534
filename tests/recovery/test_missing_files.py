"""Files of the store that somebody deleted, cut or wrote to while the broker was down."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.faults.crashing import Crashable, Ledger, Loss, copied
from tests.support.kernels import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MESSAGES = 200


class Stopped(NamedTuple):
    """A store after a clean stop; its queues and its index have several files each."""

    crashable: Crashable
    ledger: Ledger


@pytest.fixture(scope="module", params=KERNELS)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    kernel = request.param
    crashable = Crashable(kernel, tmp_path_factory.mktemp(f"stopped-{kernel}") / "store")
    ledger = Ledger(3)
    crashable.open()
    ledger.fill(crashable, MESSAGES)
    # Nothing that comes later in the log makes up for what this queue loses.
    for _ in range(5):
        ledger.put(crashable, "A", 1)
    crashable.close()
    assert len(files(crashable.folder, "consumequeue/B/0")) > 2
    assert len(files(crashable.folder, "index")) > 2
    return Stopped(crashable, ledger)


def files(folder: Path, part: str) -> list[Path]:
    """The files of a queue or of the index, first one first."""
    return sorted((folder / part).iterdir())


def shorten(path: Path) -> None:
    """Leave half of a file."""
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one queue": lambda folder: shutil.rmtree(folder / "consumequeue/B/0"),
    "one topic": lambda folder: shutil.rmtree(folder / "consumequeue/B"),
    "first file of a queue": lambda folder: files(folder, "consumequeue/B/0")[0].unlink(),
    "second file of a queue": lambda folder: files(folder, "consumequeue/B/0")[1].unlink(),
    "last file of a queue": lambda folder: files(folder, "consumequeue/B/0")[-1].unlink(),
    "half a file of a queue": lambda folder: shorten(files(folder, "consumequeue/B/0")[1]),
    "half the last file of a queue": lambda folder: shorten(files(folder, "consumequeue/B/0")[-1]),
    "all queues": lambda folder: shutil.rmtree(folder / "consumequeue"),
    "the index": lambda folder: shutil.rmtree(folder / "index"),
    "first file of the index": lambda folder: files(folder, "index")[0].unlink(),
    "second file of the index": lambda folder: files(folder, "index")[1].unlink(),
    "last file of the index": lambda folder: files(folder, "index")[-1].unlink(),
    "half a file of the index": lambda folder: shorten(files(folder, "index")[1]),
    "checkpoint": lambda folder: (folder / "checkpoint").unlink(),
    "checkpoint with garbage": lambda folder: (folder / "checkpoint").write_bytes(b"\x7f" * 99),
    "lock": lambda folder: (folder / "lock").unlink(),
    "inventory": lambda folder: (folder / "inventory").unlink(),
}
RECOGNIZED_AFTER_A_KILL = [name for name in DAMAGES if "first file" not in name]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_deleted_is_made_again_from_the_log(
    stopped: Stopped, damage: str, memory_path: Path
) -> None:
    crashable, ledger = copied(stopped.crashable, memory_path / "store"), stopped.ledger.copy()
    DAMAGES[damage](crashable.folder)
    report = crashable.open()
    assert report.clean
    ledger.check(crashable, Loss(ledger.records[-1].end))
    ledger.check_onward(crashable)


@pytest.mark.parametrize("damage", RECOGNIZED_AFTER_A_KILL)
def test_what_was_deleted_after_a_kill_is_made_again_from_the_log(
    stopped: Stopped, damage: str, memory_path: Path
) -> None:
    crashable, ledger = copied(stopped.crashable, memory_path / "store"), stopped.ledger.copy()
    crashable.open()
    ledger.fill(crashable, 20)
    crashable.kill()
    DAMAGES[damage](crashable.folder)
    report = crashable.open()
    assert not report.clean
    ledger.check(crashable, Loss(ledger.records[-1].end))
    ledger.check_onward(crashable)


def test_a_topic_that_another_broker_deleted_stays_deleted(
    stopped: Stopped, memory_path: Path
) -> None:
    crashable = copied(stopped.crashable, memory_path / "store")
    # RocketMQ writes the lock file whenever it starts, and knows of no inventory.
    (crashable.folder / "lock").write_bytes(b"lock")
    shutil.rmtree(crashable.folder / "consumequeue/B")
    report = crashable.open()
    assert (report.clean, report.dispatched, report.notes) == (True, 0, [])
    assert crashable.store.queue_bounds("B", 0) == (0, 0)
    assert "B" not in {bounds.topic for bounds in crashable.store.queues()}
    crashable.close()


def test_queues_that_we_deleted_are_not_looked_for(stopped: Stopped, memory_path: Path) -> None:
    crashable = copied(stopped.crashable, memory_path / "store")
    crashable.open()
    assert (crashable.folder / "inventory").exists()
    assert crashable.store.delete_queues("B") == 1
    assert not (crashable.folder / "inventory").exists()
    crashable.kill()
    assert crashable.open().rebuilt_queues == 0
    crashable.close()


@pytest.mark.parametrize("seed", range(12))
def test_an_inventory_that_lies_does_no_harm(
    stopped: Stopped, seed: int, memory_path: Path
) -> None:
    crashable, ledger = copied(stopped.crashable, memory_path / "store"), stopped.ledger.copy()
    chance = random.Random(seed)
    path = crashable.folder / "inventory"
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4)):
        digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
        data[chance.choice(digits)] = ord(chance.choice("0123456789"))
    path.write_bytes(chance.choice((data, data, data[: len(data) // 2], chance.randbytes(200))))
    crashable.open()
    ledger.check(crashable, Loss(ledger.records[-1].end))
    ledger.check_onward(crashable)
