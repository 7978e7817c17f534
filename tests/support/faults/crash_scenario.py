"""Scenarios of a store in a process of its own, which shim.py may kill at any call.

:class:`ScenarioRunner` is the test's side: a process that is started once, with the shim, and forks
for each scenario; so a scenario costs some hundredths of a second. What the store acknowledged
stands in a file that the scenario appends to, line by line, each before it goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.faults.crashing import NOW, Crashable, Kept, Ledger
from tests.support.faults.shim import Faults

if TYPE_CHECKING:
    from typing import IO

__all__ = ["GONE", "Acknowledged", "ScenarioRunner"]

GONE = "Gone"
"""The topic that is deleted and made again."""
ROUNDS = 2
MESSAGES = 12
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Acknowledged:
    """What scenarios noted."""

    records: list[Kept] = field(default_factory=list)
    deleted_before: int = 0
    """Records of ``GONE`` before this physical offset are of an earlier life."""
    deleting_before: int = 0
    """The same, of a deletion that may not have been finished."""
    dropping: bool = False
    """Files of the log were being dropped."""
    is_finished: bool = False
    """The last scenario ended without being killed."""

    @classmethod
    def load(cls, path: Path) -> Acknowledged:
        """Read what was noted; half a line at the end was not acknowledged."""
        found = cls()
        text = path.read_text() if path.exists() else ""
        for line in text.split("\n")[:-1]:
            word, values = json.loads(line)
            if word == "record":
                found.records.append(Kept._make([*values[:-1], bytes.fromhex(values[-1])]))
            elif word == "deleting":
                found.deleting_before = values
            elif word == "deleted":
                found.deleted_before = values
            elif word == "dropping":
                found.dropping = True
            found.is_finished = word == "finished"
        return found


class ScenarioRunner:
    """The process that forks for scenarios; a context manager.

    Args:
        folder: of this object alone, for the rules of the faults.
    """

    def __init__(self, folder: Path) -> None:
        self.faults = Faults(folder)
        environment = {**os.environ, **self.faults.environment, "PYTHONPATH": self._path()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.crash_scenario"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    @staticmethod
    def _path() -> str:
        return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def __enter__(self) -> ScenarioRunner:
        return self

    def __exit__(self, *_: object) -> None:
        # Closes both pipes: the process ends with its input.
        with self._process:
            self._stdin.close()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def run(
        self, kernel: str, folder: Path, notes: Path, seed: int, *rules: str, kill_ms: int = 0
    ) -> bool:
        """Run a store through a scenario; whether it was killed. ``kill_ms``: after so long."""
        self.faults.set(*rules)
        request = {
            "kernel": kernel, "folder": str(folder), "notes": str(notes), "seed": seed,
            "kill_ms": kill_ms,
        }  # fmt: skip
        self._stdin.write(json.dumps(request) + "\n")
        self._stdin.flush()
        assert self._process.stdout is not None
        status = int(self._process.stdout.readline())
        self.faults.clear()
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, (
            f"the scenario ended with {status}"
        )
        return status != 0


class _Scenario:
    """One life of a store, in the forked process."""

    def __init__(self, kernel: str, folder: str, notes: str, seed: int) -> None:
        before = Acknowledged.load(Path(notes))
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._crashable = Crashable(kernel, Path(folder))
        self._crashable.now_ms = NOW + 60_000 * seed
        self._ledger = Ledger(seed, before.records)
        self._ledger.number = 1_000 * seed
        self._noted = len(before.records)

    def note(self, word: str, values: object = None) -> None:
        """Append a line that a kill does not take back."""
        os.write(self._notes, (json.dumps([word, values]) + "\n").encode())

    def put(self, count: int) -> None:
        """Put messages, each noted once it is acknowledged."""
        for _ in range(count):
            self._ledger.fill(self._crashable, 1)
            self._note_records()

    def _note_records(self) -> None:
        for kept in self._ledger.records[self._noted :]:
            self.note("record", [*kept[:-1], kept.record.hex()])
        self._noted = len(self._ledger.records)

    def live(self) -> None:
        """Open, put, flush, delete, drop, close, and all of it again."""
        for _ in range(ROUNDS):
            self._crashable.open()
            self.put(MESSAGES)
            self._crashable.flush_log()
            self._delete_topic()
            self.put(MESSAGES)
            self._crashable.store.flush()
            self._drop_files()
            self.put(MESSAGES // 2)
            self._crashable.close()
        self.note("finished")

    def _delete_topic(self) -> None:
        store = self._crashable.store
        for _ in range(3):
            self._ledger.put(self._crashable, GONE, 0)
            self._note_records()
        end = store.max_physical_offset
        self.note("deleting", end)
        store.delete_queues(GONE)
        self.note("deleted", end)
        self._ledger.put(self._crashable, GONE, 0)
        self._note_records()

    def _drop_files(self) -> None:
        store = self._crashable.store
        self.note("dropping")
        path = store.drop_log_file()
        if path is not None:
            os.unlink(path)
        for topic, queue_id, *_ in store.queues():
            store.expire_queue(topic, queue_id, 10)
        for index_path in store.expire_index():
            os.unlink(index_path)


def _answer(request: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            kill_ms = request.pop("kill_ms")
            if kill_ms:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                _kill_after(kill_ms)
            scenario = _Scenario(**request)
            try:
                scenario.live()
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
        os._exit(code)
    return os.waitpid(child, 0)[1]


def _kill_after(milliseconds: int) -> None:
    """SIGKILL from a second process, whatever this one is doing."""
    victim = os.getpid()
    if not os.fork():
        import time

        time.sleep(milliseconds / 1_000)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        os._exit(0)


def main() -> None:
    """Tell scenarios as they are asked for on standard input."""
    import kerolox._pykernel

    with contextlib.suppress(ImportError):
        import kerolox_kernel  # noqa: F401
    assert kerolox._pykernel
    for line in sys.stdin:
        print(_answer(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
