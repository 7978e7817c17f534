"""mqadmin of RocketMQ, unmodified, of 4.9 or another version: its commands in one Java process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.eventually import SECONDS_MAX
from tests.support.programs import build_java, java_of

if TYPE_CHECKING:
    from typing import Self

    from tests.support.servers.up import Up

__all__ = ["MqAdmin", "MqAdminProcess"]

END = "\x04"


class MqAdminProcess:
    """Runs commands, each against a name server of its own.

    Args:
        home: folder for what it writes, and for ``conf/tools.yml``, which it reads each time.
        options: of the Java process.
        tools: a folder that Maven built, whose version of the tools it is; 4.9 by default.
    """

    def __init__(
        self, home: Path, *, options: tuple[str, ...] = (), tools: Path | None = None
    ) -> None:
        self.home, self.options, self.tools = home, options, tools

    def __enter__(self) -> Self:
        (self.home / "conf").mkdir(parents=True, exist_ok=True)
        (self.home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        options = (f"-Drocketmq.home.dir={self.home}", f"-Duser.home={self.home}", *self.options)
        clients = build_java()
        self._process = subprocess.Popen(
            java_of(self.tools or clients, "interop.Admin", options=options, classes=clients),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home,  # some commands write files below the folder that they run in
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=SECONDS_MAX)
        finally:
            self._process.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def run(self, command: str, *arguments: str) -> str:
        """What it printed. It says nothing else of its success, so the text is what counts."""
        output = self.ask(command, *arguments)
        assert "Exception" not in output, output
        return output

    def ask(self, *words: str, lines: int = 0) -> str:
        """The same of a command that may fail.

        Args:
            words: the command and its arguments; without any all commands are listed.
            lines: a command that goes on for ever is interrupted after so many.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join((str(lines), *words)) + "\n")
        self._process.stdin.flush()
        printed: list[str] = []
        while (text := self._process.stdout.readline()).strip("\n") != END:
            assert text, f"mqadmin ended in the midst of {words}:\n{''.join(printed)}"
            printed.append(text)
        return "".join(printed)


class MqAdmin(NamedTuple):
    """Commands to one name server: ``mqadmin("topicList")`` is what it printed."""

    process: MqAdminProcess
    up: Up

    def __call__(self, command: str, *arguments: str) -> str:
        return self.process.run(command, "-n", self.up.namesrv, *arguments)
