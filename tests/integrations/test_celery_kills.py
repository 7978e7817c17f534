"""Ten thousand tasks with an ETA, and workers that are killed, with ``KEROLOX_SOFTWARE=all``.

What else holds it: ``test_celery_transport.py`` and ``test_celery_worker.py`` have one of each
fact; ``tests/model`` and ``tests/simulation`` those of pops and of the timer.

Three processes carry a task to its function: the broker, the worker, its child. Where others use
the processors, each of them may be as late as a process that only sleeps; so much is added.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.testing import LocalBroker
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(1_800)]

TASKS = 10_000
LEAD_SECONDS, WINDOW_SECONDS = 90, 200
"""From the first send to the first ETA, and from that to the last one."""
WORKERS, PROCESSES, PREFETCH = 3, 2, 4
KILLS = 10
VISIBILITY_SECONDS = 5
LATE_SECONDS_MAX = 1.0

TASKS_PY = (
    f"""
VISIBILITY, PREFETCH = {VISIBILITY_SECONDS}, {PREFETCH}
"""
    + """
import os, time
import kerolox.integrations.celery
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={"visibility_timeout": VISIBILITY},
    task_acks_late=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=PREFETCH,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)

@app.task(bind=True)
def note(self, number):
    again = int(bool(self.request.delivery_info.get("redelivered")))
    line = f"{number} {time.time():.3f} {again}\\n"
    out = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, line.encode())
    os.close(out)
"""
)


class Run(NamedTuple):
    """One run of a task."""

    number: int
    at: float
    is_again: bool


def runs(done: Path) -> list[Run]:
    if not done.exists():
        return []
    lines = [line.split() for line in done.read_text().splitlines()]
    return [Run(int(number), float(at), again == "1") for number, at, again in lines]


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-n", f"{name}@%h"]
    command += ["-c", str(PROCESSES), "--loglevel", "WARNING"]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def kill(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


class Stalls:
    """How late a process gets a processor that does nothing but sleep."""

    def __init__(self) -> None:
        program = (
            "import time\nlongest = 0.0\nwhile True:\n    began = time.monotonic()\n"
            "    time.sleep(0.02)\n    late = time.monotonic() - began - 0.02\n"
            "    if late > longest:\n        longest = late\n        print(late, flush=True)\n"
        )
        command = [sys.executable, "-c", program]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.longest = 0.0

    def end(self) -> None:
        self._process.kill()
        lines = self._process.communicate()[0].split()
        self.longest = max(map(float, lines), default=0.0)


def test_no_task_with_an_eta_is_lost_late_or_run_twice_but_by_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done.txt"
    (tmp_path / "tasks.py").write_text(TASKS_PY)
    monkeypatch.setenv("DONE", str(done))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), str(tmp_path)]))
    monkeypatch.syspath_prepend(tmp_path)
    with LocalBroker() as local:
        monkeypatch.setenv("BROKER", f"rocketmq://{local.name_server}")
        import tasks  # type: ignore[import-not-found]

        stalls = Stalls()
        workers = [start(tmp_path, f"w{n}") for n in range(WORKERS)]
        try:
            began = datetime.now(UTC)
            first = began + timedelta(seconds=LEAD_SECONDS)
            etas = [first + timedelta(seconds=WINDOW_SECONDS * n / TASKS) for n in range(TASKS)]
            with tasks.app.producer_pool.acquire(block=True) as producer:
                for number, eta in enumerate(etas):
                    tasks.note.apply_async((number,), eta=eta, producer=producer)
            published = (datetime.now(UTC) - began).total_seconds()
            assert datetime.now(UTC) < first, f"publishing took {published:.0f} s"
            assert not runs(done)
            for n in range(KILLS):
                moment = first.timestamp() + WINDOW_SECONDS * (n + 0.5) / KILLS
                time.sleep(max(moment - time.time(), 0))  # of the plan, not of a wait
                kill(workers.pop(0))
                workers.append(start(tmp_path, f"w{WORKERS + n}"))

            def is_done() -> bool:
                return len({run.number for run in runs(done)}) == TASKS

            wait_until(is_done, seconds=600, what="all tasks")
        finally:
            stalls.end()
            for worker in workers:
                kill(worker)
    check(runs(done), [eta.timestamp() for eta in etas], published, stalls.longest)


def check(found: list[Run], etas: list[float], published: float, stalled: float) -> None:
    first: dict[int, Run] = {}
    for run in found:
        first.setdefault(run.number, run)
    counts = Counter(run.number for run in found)
    late = sorted(run.at - etas[run.number] for run in first.values() if not run.is_again)
    again = [run for run in found if run.is_again]
    print(
        f"published in {published:.1f} s; {len(first)} of {TASKS} ran, {len(found)} runs, "
        f"{len(again)} after a kill; {sum(count > 1 for count in counts.values())} twice; behind "
        f"the ETA: earliest {late[0]:.3f} s, half {late[len(late) // 2]:.3f}, "
        f"99 % {late[len(late) * 99 // 100]:.3f}, latest {late[-1]:.3f}; after a kill latest "
        f"{max((run.at - etas[run.number] for run in again), default=0):.1f} s; a process that "
        f"only sleeps was {stalled:.3f} s late once"
    )
    assert set(first) == set(range(TASKS))
    assert late[0] > -0.01
    assert all(run.is_again for run in found if run is not first[run.number])
    assert len(again) <= KILLS * PROCESSES * (PREFETCH + 1) * 2
    assert late[len(late) * 99 // 100] <= LATE_SECONDS_MAX + stalled
    assert late[-1] <= LATE_SECONDS_MAX + 3 * stalled
