"""The timer log cut off: whatever moment a kill comes at, the next start takes its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kerolox.store.timer.files import TimerStore
from kerolox.store.timer.log import UNIT, TimerUnit
from kerolox.store.timer.puts import TimerSettings

SETTINGS = TimerSettings(log_file_bytes=4_096, slots=1_200)


def _filled(root: Path) -> TimerStore:
    (root / "config").mkdir()
    store = TimerStore(root, SETTINGS, 1 << 20)
    for number in range(9):
        unit = TimerUnit(-1, 1, 1_000, 1_000, 100 * number, 100)
        store.append(number * UNIT.size, unit.pack())
    return store


def test_a_cut_timer_log_ends_there(tmp_path: Path) -> None:
    store = _filled(tmp_path)
    store.truncate(4 * UNIT.size)

    assert store.unit(3 * UNIT.size) is not None
    assert [store.unit(number * UNIT.size) for number in range(4, 9)] == [None] * 5


def test_no_cut_of_the_timer_log_changes_the_length_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _filled(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdatasync", killed)
    real = os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda *to: (real(*to), killed()))
    with pytest.raises(KeyboardInterrupt):
        store.truncate(4 * UNIT.size)
    monkeypatch.undo()

    TimerStore(tmp_path, SETTINGS, 1 << 20).close()
