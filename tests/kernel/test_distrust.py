"""After an unclean end: what is not known to be on the disk is flushed, and written again first
where the system may take it for clean."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.bench import SMALL_FILES, Bench

CACHESTAT = 451
"""Number of the system call (Linux 6.5), the same on every architecture."""
NEVER_MS = 3_600_000
QUIET = {
    "flush_interval_commit_log": NEVER_MS,
    "flush_commit_log_thorough_interval": NEVER_MS,
    "flush_interval_consume_queue": NEVER_MS,
}
COUNT = 300


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Pages(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent")
    ]


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On the disk: in memory no page is clean."""
    return tmp_path_factory.mktemp("store")


def dirty_pages(path: Path) -> int:
    """Pages of a file that the system would write when it is flushed."""
    library = ctypes.CDLL(None, use_errno=True)
    pages, whole = _Pages(), _Range(0, 0)
    with path.open("rb") as file:
        fields = (file.fileno(), ctypes.byref(whole), ctypes.byref(pages), 0)
        assert library.syscall(CACHESTAT, *fields) == 0, os.strerror(ctypes.get_errno())
    return pages.dirty + pages.writeback


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("0*") if path.is_file())


def written(kernel: Any, tmp_path: Path, *, is_same_boot: bool) -> Path:
    """A store whose run ended without a stop, with the pages of its files clean."""
    running = Bench(kernel, tmp_path / "running")
    running.open(**QUIET)
    for number in range(COUNT):
        running.append(b"%d" % number * 100, queue_id=number % 4)
    root = tmp_path / "copy"
    shutil.copytree(running.path, root)
    running.store.close()
    if not is_same_boot:
        # As after a flush that failed.
        (root / "abort").write_bytes(b"")
        (root / "boot").unlink(missing_ok=True)
    for path in files_of(root):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        assert dirty_pages(path) == 0
    return root


@pytest.mark.parametrize("is_same_boot", [True, False])
def test_what_a_killed_run_wrote_is_not_taken_for_flushed(
    kernel: Any, tmp_path: Path, is_same_boot: bool
) -> None:
    bench = Bench(kernel, written(kernel, tmp_path, is_same_boot=is_same_boot))
    report = bench.open(**QUIET)
    assert (report.clean, report.same_boot) == (False, is_same_boot)
    assert report.max_offset > SMALL_FILES["mapped_file_size_commit_log"]
    assert bench.store.flushed_offset == 0
    assert bench.store.flush() == bench.store.flushed_offset == report.max_offset
    bench.store.close()


def test_where_the_page_cache_is_no_proof_the_log_is_written_again(
    kernel: Any, tmp_path: Path
) -> None:
    root = written(kernel, tmp_path, is_same_boot=False)
    contents = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    bench = Bench(kernel, root)
    report = bench.open(**QUIET)
    used = report.max_offset
    written_files = [path for path in sorted(contents) if int(path.name) < used]
    assert len(written_files) > 1
    for path in written_files:
        pages = -(-min(used - int(path.name), path.stat().st_size) // 4_096)
        assert dirty_pages(path) >= pages > 0, path
        assert path.read_bytes() == contents[path]
    bench.store.close()
