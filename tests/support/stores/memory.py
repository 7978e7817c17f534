"""Folders for stores whose tests ask nothing of a disk.

A ``conftest.py`` that imports ``tmp_path`` from here gives its tests a folder in memory, where the
system has one with room. A broker's start and stop wait for a disk some ten times, and half of a
small test's time is that. What a disk does to a store is asked elsewhere, with real files on it:
by what of ``tests/recovery`` runs ``kerolox`` as a process, and ``tests/cli``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["tmp_path"]

MEMORY = Path("/dev/shm")
ROOM_BYTES_MIN = 2 << 30
"""Free bytes below which a folder comes from the disk: each worker's test may take a part."""


def _has_capacity() -> bool:
    try:
        return shutil.disk_usage(MEMORY).free >= ROOM_BYTES_MIN
    except OSError:
        return False


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this test's own, which ends with it when it is in memory."""
    if not _has_capacity():
        yield tmp_path_factory.mktemp("disk")
        return
    folder = tempfile.mkdtemp(prefix="kerolox-test-", dir=MEMORY)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
