"""Workers of taskiq as its command starts them, killed while they work.

Runs with ``KEROLOX_SOFTWARE=all``; in each run ``test_taskiq.py`` holds that a task comes again
when the connection of its worker ends, and the guide of taskiq that the command works.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kerolox.integrations.taskiq import KeroloxBroker
from kerolox.testing import LocalBroker
from tests.support.eventually import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.asyncio, pytest.mark.software]

TASKS = 1_000
KILLS = 5

PROGRAM = """
import asyncio, os
from kerolox.integrations.taskiq import KeroloxBroker

broker = KeroloxBroker(os.environ["SERVER"], topic="Killed", group="killed", invisible_ms=1500)
done = os.open("done.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)


@broker.task(task_name="work")
async def work(number: int) -> None:
    await asyncio.sleep(0.05)
    os.write(done, b"%d\\n" % number)
"""


def start(folder: Path, server: str) -> subprocess.Popen[bytes]:
    """A worker with a process of its own, in a group of its own."""
    command = [sys.executable, "-m", "taskiq", "worker", "program:broker", "--workers", "1"]
    limits = ["--max-async-tasks", "5"]
    return subprocess.Popen(
        [*command, *limits],
        cwd=folder,
        env={**os.environ, "SERVER": server},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


async def test_no_task_is_lost_when_workers_are_killed(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = tmp_path / "done.txt"

    def count() -> Counter[str]:
        return Counter(done.read_text().split()) if done.exists() else Counter()

    with LocalBroker() as local:
        broker = KeroloxBroker(local.name_server, topic="Killed", group="killed")
        work = broker.task(task_name="work")(_work)
        await broker.startup()
        for number in range(TASKS):
            await work.kiq(number)
        await broker.shutdown()
        workers = [start(tmp_path, local.name_server) for _ in range(2)]
        try:
            for kill in range(1, KILLS + 1):
                await until(lambda kill=kill: len(count()) > kill * 100, what="some tasks")
                os.killpg(workers[0].pid, signal.SIGKILL)
                workers.pop(0).wait()
                workers.append(start(tmp_path, local.name_server))
            await until(lambda: len(count()) == TASKS, what="all tasks")
        finally:
            for worker in workers:
                os.killpg(worker.pid, signal.SIGTERM)
                worker.wait()
    # What a killed worker had done and not acknowledged runs again, and nothing else.
    again = sum(count().values()) - TASKS
    assert again <= KILLS * (5 + 8)


async def _work(number: int) -> None: ...
