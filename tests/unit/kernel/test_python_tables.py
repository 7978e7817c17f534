"""Bounds of the tables of the Python kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox import _pykernel
from kerolox._pykernel import store as store_module
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Record
from tests.support.stores.bench import SMALL_FILES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_groups_got_is_counted_for_so_many_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "GROUP_READS_MAX", 2)
    store = _pykernel.Store(StoreSettings(store_path_root_dir=tmp_path, **SMALL_FILES))
    store.open()
    host = bytes(8)
    try:
        for queue_id in range(3):
            store.append(Record(b"T", queue_id, 0, 0, 1, host, host, 0, 0, b"body", b""))
            store.read("T", queue_id, 0, 1, None, "G")
        assert sorted(row[2] for row in store.group_stats()) == [0, 1]
        assert sorted(row[2] for row in store.lag()) == [0, 1]
        store.read("T", 0, 0, 1, None, "G")
        assert {row[2]: row[3] for row in store.group_stats()} == {0: 2, 1: 1}
        store.delete_group("G")
        store.read("T", 2, 0, 1, None, "H")
        assert [row[:3] for row in store.group_stats()] == [("H", "T", 2)]
    finally:
        store.close()
