"""One shell for all commands of a page, since those below start servers that go on. Its
``kerolox`` is a process of the fork server (:mod:`tests.support.servers.forked_commands`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.eventually import wait_until
from tests.support.servers.forked_commands import forked_commands
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from tests.docs.examples import Block

__all__ = ["PORTS", "PageShell"]

PORTS = ("9876", "9877", "10911", "10921", "10931", "9878", "9888", "9898")
"""What pages call the ports of their servers; they are replaced by free ones."""
BLOCK_SECONDS_MAX = 240.0


class PageShell:
    """A bash that runs blocks in a folder, one after the other; a context manager.

    Args:
        folder: where it runs; also the home folder.
        variables: of its environment. What they set may lie on the path of a page.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder, self._count = folder, 0
        self.ports = {name: str(free_port()) for name in PORTS}
        self._path = f"{folder}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        self._environment: Mapping[str, str] = {
            **os.environ,
            "HOME": str(folder),
            "NAMESRV_ADDR": f"127.0.0.1:{self.ports['9876']}",
            **variables,
        }

    @property
    def output(self) -> str:
        """What all commands printed."""
        return (self._folder / "output").read_text(errors="replace")

    def __enter__(self) -> Self:
        with (
            contextlib.ExitStack() as forks,
            (self._folder / "output").open("wb") as output,
        ):
            variables = forks.enter_context(forked_commands(self._path))
            self._process = subprocess.Popen(
                ["bash", "-eu", "-s"],
                cwd=self._folder,
                env={**self._environment, **variables},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                # So that its servers can be ended with it.
                start_new_session=True,
            )
            self._forks = forks.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._forks:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.communicate(timeout=30)

    def run(self, block: Block) -> None:
        """Run a block; its last command has ended then, and its servers go on."""
        assert block.language == "sh"
        self._count += 1
        code = block.code
        for name, port in self.ports.items():
            code = code.replace(name, port)
        script, done = (self._folder / f"{name}-{self._count}" for name in ("block", "done"))
        script.write_text(code)
        assert self._process.stdin is not None
        self._process.stdin.write(f". {script} </dev/null\ntouch {done}\n")
        self._process.stdin.flush()
        wait_until(
            lambda: done.exists() or self._process.poll() is not None,
            seconds=BLOCK_SECONDS_MAX,
            what=f"the end of\n{code}\n{self.output}",
        )
        assert done.exists(), f"{code}\n{self.output}"
