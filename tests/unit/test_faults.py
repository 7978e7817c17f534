"""The shim that other tests break disks with does what its rules say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults.shim import Faults

WRITER = """
import errno, mmap, os, sys
path = sys.argv[1] + "/file"
def tell(name, call):
    try:
        call()
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)
    else:
        print(name, "ok", flush=True)
descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
tell("ftruncate", lambda: os.ftruncate(descriptor, 8192))
view = mmap.mmap(descriptor, 8192)
for _ in range(3):
    tell("pwrite", lambda: os.pwrite(descriptor, b"12345678", 0))
tell("fdatasync", lambda: os.fdatasync(descriptor))
tell("msync", view.flush)
tell("rename", lambda: os.replace(path, path + "2"))
tell("unlink", lambda: os.unlink(path + "2"))
"""


def run(folder: Path, *rules: str) -> tuple[int, list[str], Faults]:
    faults = Faults(folder)
    faults.set(*rules)
    done = subprocess.run(
        [sys.executable, "-S", "-c", WRITER, str(folder)],
        env=faults.environment,
        stdout=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.decode().splitlines(), faults


def test_without_rules_nothing_fails(tmp_path: Path) -> None:
    status, lines, faults = run(tmp_path)
    assert status == 0
    assert {line.split()[1] for line in lines} == {"ok"}
    assert faults.fired() == []


def test_the_nth_call_on_a_path_fails_with_the_errno_given(tmp_path: Path) -> None:
    _, lines, faults = run(tmp_path, "pwrite:/file:2:ENOSPC", "fdatasync:nowhere:*:EIO")
    assert lines[1:5] == ["pwrite ok", "pwrite ENOSPC", "pwrite ok", "fdatasync ok"]
    assert faults.fired() == [("pwrite", str(tmp_path / "file"))]


def test_from_the_nth_call_on_all_fail(tmp_path: Path) -> None:
    _, lines, _ = run(tmp_path, "pwrite:/file:2+:EIO")
    assert lines[1:4] == ["pwrite ok", "pwrite EIO", "pwrite EIO"]


@pytest.mark.parametrize("call", ["ftruncate", "fdatasync", "msync", "rename", "unlink"])
def test_each_call_can_fail(call: str, tmp_path: Path) -> None:
    _, lines, _ = run(tmp_path, f"{call}:/file:*:EROFS")
    assert f"{call} EROFS" in lines


def test_the_process_can_be_killed_before_within_and_after_a_write(tmp_path: Path) -> None:
    for action, left in (("before", 0), ("torn", 4), ("after", 8)):
        (tmp_path / "file").unlink(missing_ok=True)
        status, lines, _ = run(tmp_path, f"pwrite:/file:1:kill-{action}")
        assert status == -signal.SIGKILL
        assert lines == ["ftruncate ok"]
        assert len((tmp_path / "file").read_bytes().rstrip(b"\0")) == left
