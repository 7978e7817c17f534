"""One store, two brokers in turn: what the one wrote the other serves, after a stop, a crash, and
from a backup.

Each case: ours writes and ends; Java opens the store, serves all of it, writes on and ends; ours
opens it again, with each kernel. After each end ``kerolox store check`` must find nothing. Where a
broker ends with a backup, that is taken while it runs, and what is restored from it goes on.
The case of two kills runs with ``KEROLOX_SOFTWARE=all`` alone: others have a kill of either.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.store_compat.scenario import (
    LONG,
    SHORT,
    Seen,
    assert_clean,
    assert_delivered,
    assert_equal,
    assert_keys,
    assert_places,
    assert_waiting,
    delay,
    look,
    tables_on_disk,
    tell,
)
from tests.store_compat.turns import ONE_FILE, SMALL, java_goes_on, settings_of
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.command import kerolox
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

CASES = [
    # kernel that writes first, how it ends, how Java ends
    ("python", "stop", "kill"),
    ("native", "backup", "backup"),
    ("python", "kill", "stop"),
    pytest.param("native", "kill", "kill", marks=pytest.mark.software),
]


def back_up(data: Path) -> None:
    """Copy the store beside it, while its broker runs."""
    done = kerolox("store", "backup", data / "store", data / "backup", "-c", data / "broker.conf")
    assert (done.returncode, done.stderr) == (0, "")


def restore(data: Path) -> None:
    """Put what the backup has in the store's place."""
    shutil.rmtree(data / "store")
    done = kerolox("store", "restore", data / "backup", data / "store")
    assert (done.returncode, done.stderr) == (0, "")
    shutil.rmtree(data / "backup")


@pytest.mark.parametrize(("kernel", "ours_ends", "java_ends"), CASES)
def test_each_serves_what_the_other_wrote(
    kernel: str, ours_ends: str, java_ends: str, tmp_path: Path
) -> None:
    if kernel not in KERNELS:
        kernel = "python"
    data = tmp_path / "data"
    settings = settings_of(ONE_FILE if ours_ends == "kill" else SMALL)
    seen = Seen()

    up = Up(data, settings=settings, kernel=kernel).start()
    tell(up.broker, "first", seen)
    seen = look(up.broker, seen)
    assert sum(map(len, seen.records.values())) > 200
    if ours_ends != "stop":
        wait_until(lambda: tables_on_disk(data, seen), what="the tables on disk")
    delay(up.broker, "first", seen, SHORT)
    if ours_ends == "backup":
        back_up(data)
    if ours_ends == "kill":
        up.kill()
    else:
        up.stop()
    if ours_ends == "backup":
        restore(data)
    assert_waiting(data, seen)
    assert_clean(data)

    with java_goes_on(data, settings, seen) as (java, address, seen):
        if java_ends != "stop":
            # Java writes them for the first time 10 s after its start.
            wait_until(lambda: tables_on_disk(data, seen), what="the tables on disk")
        delay(address, "second", seen, SHORT if java_ends == "kill" else LONG)
        if java_ends == "backup":
            back_up(data)
        if java_ends == "kill":
            java.kill()
    if java_ends == "backup":
        restore(data)
    assert_waiting(data, seen)
    assert_clean(data)

    for number, name in enumerate(KERNELS):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(data, copy)
        with Up(copy, settings=settings, kernel=name) as again:
            assert_equal(look(again.broker, seen), seen)
            assert_places(again.broker, seen)
            assert_delivered(again.broker, seen)
            tell(again.broker, "third", seen_again := look(again.broker, seen))
            assert_keys(again.broker, seen_again)
        assert_clean(copy)
