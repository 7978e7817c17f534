"""Workers as the commands of taskiq and dramatiq start them, killed while they work.

Runs with ``KEROLOX_SOFTWARE=all``; in each run ``test_taskiq.py`` and ``test_dramatiq.py`` hold
that a task comes again when its worker's connection ends, and the guides that the commands work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.testing import LocalBroker
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(300)]

TASKS = 1_000
KILLS = 5
AT_ONCE_MAX = 16
"""Tasks that one worker has at most."""

DONE = """
import os, sys, time

done = os.open("done.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
"""

PROGRAMS = {
    "taskiq": """
import asyncio
from kerolox.integrations.taskiq import KeroloxBroker

broker = KeroloxBroker(topic="Killed", group="killed", invisible_ms=1500)


@broker.task(task_name="work")
async def work(number: int) -> None:
    await asyncio.sleep(0.05)
    os.write(done, b"%d\\n" % number)


async def main() -> None:
    await broker.startup()
    for number in range(int(sys.argv[1])):
        await work.kiq(number)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
""",
    "dramatiq": """
import dramatiq
from kerolox.integrations.dramatiq import KeroloxBroker

broker = KeroloxBroker(invisible_ms=1500)
dramatiq.set_broker(broker)


@dramatiq.actor
def work(number: int) -> None:
    time.sleep(0.05)
    os.write(done, b"%d\\n" % number)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        work.send(number)
    broker.close()
""",
}

COMMANDS = {
    "taskiq": ["taskiq", "worker", "program:broker", "--workers=1", "--max-async-tasks=5"],
    "dramatiq": ["dramatiq", "program", "--processes=1", "--threads=5"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_task_is_lost_when_workers_are_killed(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DONE + PROGRAMS[name])
    done = tmp_path / "done.txt"

    def count() -> Counter[str]:
        return Counter(done.read_text().split()) if done.exists() else Counter()

    with LocalBroker() as local:
        environment = {**os.environ, "NAMESRV_ADDR": local.name_server}
        place: dict[str, Any] = {"cwd": tmp_path, "env": environment}

        def start() -> subprocess.Popen[bytes]:
            """A worker with its processes in a group of their own."""
            return subprocess.Popen(
                [sys.executable, "-m", *COMMANDS[name]],
                **place,
                start_new_session=True,
                stderr=subprocess.DEVNULL,
            )

        subprocess.run([sys.executable, "program.py", str(TASKS)], **place, check=True)
        workers = [start() for _ in range(2)]
        try:
            for kill in range(1, KILLS + 1):
                wait_until(lambda kill=kill: len(count()) > kill * 100, what="some tasks")
                os.killpg(workers[0].pid, signal.SIGKILL)
                workers.pop(0).wait()
                workers.append(start())
            wait_until(lambda: len(count()) == TASKS, what="all tasks")
        finally:
            for worker in workers:
                os.killpg(worker.pid, signal.SIGTERM)
                worker.wait()
    # What a killed worker had done and not acknowledged runs again, and nothing else.
    assert sum(count().values()) - TASKS <= KILLS * AT_ONCE_MAX
