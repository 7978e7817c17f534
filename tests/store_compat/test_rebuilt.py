"""Queues and index that were made anew from the log: either broker opens them and serves all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.store_compat.scenario import (
    LONG,
    Seen,
    assert_clean,
    assert_equal,
    assert_keys,
    assert_places,
    assert_waiting,
    delay,
    look,
    tell,
)
from tests.store_compat.turns import SMALL, java_goes_on, settings_of
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up
from tests.support.stores.rebuilding import Local

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = settings_of(SMALL)


def exchange(data: Path) -> None:
    """Put what the job makes of the log in the place of queues, index and checkpoint."""
    store, made = data / "store", data / "made"
    Local(store, made, config=str(data / "broker.conf")).run()
    for part in ("consumequeue", "index"):
        shutil.rmtree(store / part)
        shutil.move(made / part, store / part)
    shutil.move(made / "checkpoint", store / "checkpoint")
    (store / "inventory").unlink(missing_ok=True)
    shutil.rmtree(made)


def test_either_broker_serves_what_was_rebuilt(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seen = Seen()
    up = Up(data, settings=SETTINGS, kernel=KERNELS[-1]).start()
    tell(up.broker, "first", seen)
    seen = look(up.broker, seen)
    delay(up.broker, "first", seen, LONG)
    up.stop()
    exchange(data)
    assert_waiting(data, seen)
    assert_clean(data)

    with java_goes_on(data, SETTINGS, seen) as (_, _, seen):
        pass
    exchange(data)
    assert_clean(data)

    with Up(data, settings=SETTINGS, kernel=KERNELS[-1]) as again:
        assert_equal(look(again.broker, seen), seen)
        assert_keys(again.broker, seen)
        assert_places(again.broker, seen)
