"""One store, one broker at a time: either kernel and the Java broker keep each other out.

Told with a log in several folders and with files made ahead, in which Java has to find its way too.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

from kerolox.kernel.settings import StoreSettings
from tests.store_compat.scenario import Seen, assert_clean, assert_equal, look, tables_on_disk, tell
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS, MODULES
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SIZE = 1 << 16


def settings_of(data: Path) -> dict[str, object]:
    return {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": SIZE,
        "mappedFileSizeConsumeQueue": 20 * 30,
        "maxHashSlotNum": 1_000,
        "maxIndexNum": 40_000,
        "flushConsumerOffsetInterval": 500,
        "storePathCommitLog": f"{data}/store/log-b,{data}/store/log-a",
    }


def lines_of(data: Path) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in settings_of(data).items())


def log_files(data: Path) -> list[str]:
    """Folder and number of each file of the log, in the log's order."""
    found = [(int(path.name), path.parent.name) for path in (data / "store").glob("log-?/*")]
    return [f"{folder}/{start // SIZE}" for start, folder in sorted(found)]


def in_order(count: int) -> list[str]:
    return [f"log-{'ab'[number % 2]}/{number}" for number in range(count)]


def test_java_and_ours_keep_each_other_out_and_read_each_others_folders(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seen = Seen()
    up = Up(data, settings=settings_of(data), kernel=KERNELS[-1]).start()
    tell(up.broker, "first", seen)
    seen = look(up.broker, seen)
    count = len(log_files(data))

    with pytest.raises(AssertionError, match="Lock failed"):
        JavaPeer(data, settings=lines_of(data), with_namesrv=False).__enter__()
    assert_equal(look(up.broker, seen), seen)
    tell(up.broker, "second", seen)
    seen = look(up.broker, seen)
    assert len(log_files(data)) > count
    assert log_files(data) == in_order(len(log_files(data)))
    wait_until(lambda: tables_on_disk(data, seen), what="the tables on disk")
    up.kill()
    assert_clean(data)

    with JavaPeer(data, settings=lines_of(data), with_namesrv=False) as java:
        address = f"127.0.0.1:{java.port}"
        assert_equal(look(address, seen), seen)
        before = log_files(data)
        for kernel in KERNELS:
            store = importlib.import_module(MODULES[kernel]).Store(
                StoreSettings(
                    store_path_root_dir=str(data / "store"),
                    store_path_commit_log=str(settings_of(data)["storePathCommitLog"]),
                    mapped_file_size_commit_log=SIZE,
                )
            )
            with pytest.raises(
                BlockingIOError,
                match=r"in use by (another broker|process \d+, a child of this one)",
            ):
                store.open()
        assert log_files(data) == before
        tell(address, "third", seen)
        seen = look(address, seen)
    assert log_files(data) == in_order(len(log_files(data)))
    assert_clean(data)

    for number, name in enumerate(KERNELS):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(data, copy)
        with Up(copy, settings=settings_of(copy), kernel=name) as again:
            assert_equal(look(again.broker, seen), seen)
            tell(again.broker, "fourth", look(again.broker, seen))
        assert_clean(copy)
