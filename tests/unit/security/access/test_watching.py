"""Accounts of a role that runs: who is notified of changes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kerolox.security.access.accounts import Accounts
from kerolox.security.access.files import AclFiles, Places
from kerolox.security.access.watching import AccountsWatch


def write(path: Path, text: str) -> None:
    path.write_text(text)


def account(name: str) -> str:
    return f"accounts:\n- accessKey: {name}\n  secretKey: any-secret\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plain_acl.yml"


@pytest.fixture
def told() -> list[list[str]]:
    return []


@pytest.fixture
def watch(path: Path, told: list[list[str]]) -> AccountsWatch:
    def note(accounts: Accounts) -> None:
        told.append(sorted(accounts.by_key))

    return AccountsWatch(AclFiles(Places.of("", str(path))), note)


async def test_each_change_is_told_once(
    path: Path, watch: AccountsWatch, told: list[list[str]]
) -> None:
    write(path, account("account-1"))
    watch.load()
    write(path, account("account-2"))
    for _ in range(3):
        await watch.poll()
    write(path, account("account-3"))
    await watch.reload()
    write(path, "]")
    await watch.reload()
    assert told == [["account-1"], ["account-2"], ["account-3"]]


async def test_a_look_that_is_cancelled_loses_no_change(
    path: Path, watch: AccountsWatch, told: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, account("account-1"))
    watch.load()
    write(path, account("account-2"))
    may_go, began, ended = threading.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    poll = watch.files.poll

    def slow(*, at_once: bool = False) -> bool:
        loop.call_soon_threadsafe(began.set)
        may_go.wait()
        found = poll(at_once=at_once)
        ended.set()
        return found

    monkeypatch.setattr(watch.files, "poll", slow)
    task = asyncio.create_task(watch.reload())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert told == [["account-1"]]
    await watch.poll()
    assert told == [["account-1"], ["account-2"]]
