from __future__ import annotations

import asyncio

from kerolox.tasks import end_tasks, retrieve_error


async def test_tasks_have_ended_when_all_are_cancelled() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    tasks = [asyncio.ensure_future(work(name)) for name in ("a", "b")]
    await asyncio.sleep(0)
    await end_tasks(*tasks, None)
    assert ended == ["a", "b"]
    await end_tasks(None)
    await end_tasks()


async def test_a_task_that_does_not_end_is_waited_for_no_longer_than_said() -> None:
    over = asyncio.Event()

    async def refuse() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.ensure_future(refuse())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end_tasks(task, seconds_max=0.01)
    assert not task.done()
    over.set()
    await task


async def test_an_error_that_nobody_waits_for_is_not_reported() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fail() -> None:
        raise OSError

    for callback in (retrieve_error, None):
        task = asyncio.ensure_future(fail())
        if callback is not None:
            task.add_done_callback(callback)
        await asyncio.wait([task])
        await asyncio.sleep(0)
        del task
        assert bool(reported) is (callback is None)
