"""What a consumer reports the stacks of its process."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kerolox.client.aio.consumers import stacks
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

ASKED = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}


async def outer(waiting: asyncio.Event, end: asyncio.Event) -> None:
    await inner(waiting, end)


async def inner(waiting: asyncio.Event, end: asyncio.Event) -> None:
    waiting.set()
    await end.wait()


def working(begun: threading.Event, end: threading.Event) -> None:
    begun.set()
    end.wait(60)


async def test_stacks_show_what_tasks_wait_in_and_what_threads_do() -> None:
    waiting, end = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(outer(waiting, end), name="the-task")
    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=working, args=(begun, done), name="the-thread")
    thread.start()
    try:
        await waiting.wait()
        await asyncio.to_thread(begun.wait, 60)
        text = stacks.asked_stacks(
            RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
        )
    finally:
        end.set()
        done.set()
        await task
        thread.join(60)
    of_task = [line for line in text.splitlines() if line.startswith("the-task ")]
    assert "STATE: WAITING" in of_task[0]
    functions = [line.partition("(")[0].rpartition(".")[2] for line in of_task[1:]]
    assert functions == ["wait", "inner", "outer"]
    assert f"{__file__}:" in of_task[2]
    of_thread = [line for line in text.splitlines() if line.startswith("the-thread ")]
    assert any(".working(" in line for line in of_thread)


def test_stacks_are_told_to_who_asks_for_them_alone() -> None:
    for fields in ({}, {"jstackEnable": "false"}):
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert stacks.asked_stacks(request) == ""


async def test_many_stacks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "CHARACTERS_MAX", 100)
    assert len(stacks.stacks_text()) == 100
