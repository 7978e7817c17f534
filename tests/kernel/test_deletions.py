"""A deleted topic stays deleted: after a stop, a crash and a kill in between, on each kernel.

Its records stay in the log until they expire, so recovery meets them. Nothing of an earlier life
may show in a topic that was made again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import wait_until
from tests.support.faults.shim import Faults
from tests.support.servers.run_code import start_code
from tests.support.stores.bench import Bench

pytestmark = pytest.mark.xdist_group("kernel-processes")  # they share a fork server

OLD = [b"old-%d" % number for number in range(250)]
NEW = [b"new-%d" % number for number in range(5)]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Topic T with 250 messages in three queue files, and one message of another topic before."""
    bench.append(b"first", topic=b"Other")
    for body in OLD:
        bench.append(body)
    return bench


def crashed(bench: Bench, kernel: Any, target: Path, closing: list[Bench]) -> Bench:
    """A copy of the store as a kill leaves it, not yet opened."""
    shutil.copytree(bench.path, target)
    again = Bench(kernel, target)
    closing.append(again)
    return again


def test_a_deleted_topic_stays_so_after_a_stop(
    filled: Bench, other_kernel: Any, closing: list[Bench]
) -> None:
    assert filled.store.delete_queues("T") == 1
    filled.store.close()
    again = Bench(other_kernel, filled.path)
    closing.append(again)
    assert again.open().clean
    assert again.store.queue_bounds("T", 0) == (0, 0)
    assert again.bodies(topic="Other") == [b"first"]
    assert again.append(b"again").queue_offset == 0


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "without its queue files"])
@pytest.mark.parametrize("new", [[], NEW], ids=["nothing new", "made again"])
def test_a_deleted_topic_stays_so_after_a_crash(
    filled: Bench,
    other_kernel: Any,
    tmp_path: Path,
    closing: list[Bench],
    new: list[bytes],
    lost: bool,
) -> None:
    filled.store.flush()
    filled.store.delete_queues("T")
    for body in new:
        filled.append(body)
    again = crashed(filled, other_kernel, tmp_path / "copy", closing)
    if lost:
        shutil.rmtree(again.path / "consumequeue")
        (again.path / "consumequeue").mkdir()
    assert not again.open().clean
    assert again.bodies() == new
    assert again.bodies(topic="Other") == [b"first"]
    assert again.append(b"last").queue_offset == len(new)
    assert [path.name for path in (again.path / "consumequeue/T").iterdir()] == ["0"]


DELETER = """
import importlib, sys
from pathlib import Path
from tests.support.stores.bench import Bench
bench = Bench(importlib.import_module(sys.argv[1]), Path(sys.argv[2]))
bench.open()
bench.store.flush()
bench.store.delete_queues("T")
"""


@pytest.mark.parametrize(
    "rule",
    [
        "unlink:consumequeue/T:1:kill-before",
        "unlink:consumequeue/T:1:kill-after",
        "unlink:consumequeue/T:2:kill-after",
        "unlink:consumequeue/T:3:kill-after",
        "rmdir:consumequeue/T:1:kill-after",
        "write:deletions:1:kill-after",
    ],
)
def test_a_kill_in_the_middle_of_a_deletion_leaves_no_half(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench], rule: str
) -> None:
    filled.store.close()
    faults = Faults(tmp_path)
    faults.set(rule)
    root = Path(__file__).resolve().parents[2]
    environment = {**_environment(root), **faults.environment}
    arguments = kernel.__name__, filled.path
    with start_code(DELETER, *arguments, environment=environment, cwd=root) as process:
        assert process.wait(60) == -signal.SIGKILL
    again = Bench(kernel, filled.path)
    closing.append(again)
    again.open()
    assert again.bodies() == []
    assert not list((filled.path / "consumequeue").glob("T/0/*"))
    assert again.append(b"again").queue_offset == 0
    assert again.bodies() == [b"again"]


def _environment(root: Path) -> dict[str, str]:
    paths = [str(root), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def test_a_torn_note_counts_for_nothing(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    filled.store.flush()
    again = crashed(filled, kernel, tmp_path / "copy", closing)
    (again.path / "deletions").write_bytes(b"%020d T" % 1_000_000)
    again.open()
    assert again.bodies() == OLD


def test_a_log_that_begins_anew_owes_nothing_to_old_notes(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    filled.store.delete_queues("T")
    filled.store.close()
    shutil.rmtree(filled.path / "commitlog")
    (filled.path / "abort").touch()
    second = Bench(kernel, filled.path)
    closing.append(second)
    second.open()
    for body in NEW:
        second.append(body)
    third = crashed(second, kernel, tmp_path / "copy", closing)
    shutil.rmtree(third.path / "consumequeue")
    third.open()
    assert third.bodies() == NEW


def test_a_log_that_lost_its_end_takes_new_messages_of_the_topic(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    end = filled.store.max_physical_offset
    filled.store.delete_queues("T")
    second = crashed(filled, kernel, tmp_path / "copy", closing)
    with (second.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(2_000)
        file.write(bytes(end - 2_000))
    second.open()
    assert second.store.max_physical_offset < 2_000
    for body in NEW:
        second.append(body)
    third = crashed(second, kernel, tmp_path / "again", closing)
    shutil.rmtree(third.path / "consumequeue")
    third.open()
    assert third.bodies() == NEW


def test_a_note_goes_with_the_last_record_it_is_about(
    bench: Bench, closing: list[Bench], kernel: Any
) -> None:
    bench.append(b"x" * 900)
    bench.store.delete_queues("T")
    assert b" T\0" in (bench.path / "deletions").read_bytes()
    for _ in range(100):
        bench.append(b"x" * 900, topic=b"Other")
    while bench.store.drop_log_file() is not None:
        pass
    for path in sorted((bench.path / "commitlog").iterdir())[:1]:
        path.unlink()
    bench.store.close()
    again = Bench(kernel, bench.path)
    closing.append(again)
    again.open()
    assert not (bench.path / "deletions").exists()


def test_notes_of_records_that_are_gone_do_not_pile_up(bench: Bench) -> None:
    topics = [f"gone-{number:0100}" for number in range(600)]
    for topic in topics:
        bench.append(b"x", topic=topic.encode())
        assert bench.store.delete_queues(topic) == 1
    notes = bench.path / "deletions"
    assert notes.stat().st_size > 64 * 1024
    for _ in range(200):
        bench.append(b"x" * 900, topic=b"Other")
    while bench.store.drop_log_file() is not None:
        pass
    wait_until(lambda: not notes.exists())


FULL = """
import importlib, sys
from pathlib import Path
from tests.support.eventually import wait_until
from tests.support.stores.bench import Bench
from tests.support.faults.shim import Faults
bench = Bench(importlib.import_module(sys.argv[1]), Path(sys.argv[2]))
bench.open(flush_interval_consume_queue=10)
faults = Faults(Path(sys.argv[3]))
faults.set("open:deletions:*:ENOSPC", "open:deletions.tmp:*:ENOSPC")
assert bench.store.delete_queues("T") == 1
assert not (bench.path / "deletions").exists()
assert bench.bodies() == []
faults.clear()
wait_until((bench.path / "deletions").exists)
print("noted")
"""


def test_a_disk_that_takes_no_note_does_not_keep_a_topic_alive(
    filled: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    filled.store.close()
    faults = Faults(tmp_path)
    root = Path(__file__).resolve().parents[2]
    environment = {**_environment(root), **faults.environment}
    arguments, files = (kernel.__name__, filled.path, tmp_path), {"stdout": subprocess.PIPE}
    with start_code(FULL, *arguments, environment=environment, cwd=root, **files) as process:
        assert process.communicate(timeout=60)[0] == b"noted\n"
    again = Bench(kernel, filled.path)
    closing.append(again)
    assert not again.open().clean
    assert again.bodies() == []
