from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kerolox.store.files.checkpoint import AbortFile, Checkpoint, StoreLock
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path


def test_a_checkpoint_is_4096_bytes_with_three_times_in_front(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(str(path))
    checkpoint.physic_timestamp, checkpoint.logics_timestamp = 10_000, 9_000
    checkpoint.index_timestamp = 5
    checkpoint.flush()
    data = path.read_bytes()
    assert len(data) == 4096
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)] == [10_000, 9_000, 5]
    assert not data[24:].strip(b"\0")
    again = Checkpoint(str(path))
    assert again.load()
    assert again.min_timestamp == 6_000


def test_no_checkpoint_means_time_zero(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    assert not checkpoint.load()
    assert checkpoint.min_timestamp == 0


def test_the_abort_file_knows_its_boot(tmp_path: Path) -> None:
    abort = AbortFile(str(tmp_path / "abort"))
    assert not abort.exists()
    abort.create()
    assert abort.exists()
    assert abort.is_same_boot()
    abort.remove()
    abort.remove()
    assert not abort.exists()


def test_an_empty_abort_file_is_of_another_boot(tmp_path: Path) -> None:
    (tmp_path / "abort").write_bytes(b"")
    assert not AbortFile(str(tmp_path / "abort")).is_same_boot()


def test_a_held_lock_is_refused_with_the_folder(tmp_path: Path) -> None:
    first, second = (StoreLock(str(tmp_path / "lock")) for _ in range(2))
    first.acquire()
    with pytest.raises(BlockingIOError, match="is in use by this process"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_lock_of_another_process_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    code = (
        "import sys; from kerolox.store.files.checkpoint import StoreLock\n"
        "StoreLock(sys.argv[1]).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as holder:  # fmt: skip
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            BlockingIOError, match=r"by process \d+, a child of this one.*stop that broker"
        ):
            StoreLock(path).acquire()
        holder.stdin.close()
        holder.wait(timeout=SECONDS_MAX)
    lock = StoreLock(path)
    lock.acquire()
    lock.release()
