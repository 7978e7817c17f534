"""mqadmin of RocketMQ 4.9, unmodified: its commands in one Java process."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.programs import java_command

if TYPE_CHECKING:
    from typing import Self

    from tests.support.servers.up import Up

__all__ = ["MqAdmin"]

END = "\x04"
STOP_SECONDS_MAX = 30


class MqAdmin:
    """Runs commands against a name server: ``MqAdmin(up)("topicList")`` is what it printed."""

    def __init__(self, up: Up) -> None:
        self.up = up

    def __enter__(self) -> Self:
        home = self.up.data / "mqadmin-home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        options = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
        self._process = subprocess.Popen(
            java_command("interop.Admin", options=options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=STOP_SECONDS_MAX)
        finally:
            self._process.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def __call__(self, command: str, *arguments: str) -> str:
        """What it printed. It says nothing else of its success, so the text is what counts."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = "\t".join((command, "-n", self.up.namesrv, *arguments))
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        printed: list[str] = []
        while (text := self._process.stdout.readline()).strip("\n") != END:
            assert text, f"mqadmin ended in the midst of {command}:\n{''.join(printed)}"
            printed.append(text)
        output = "".join(printed)
        assert "Exception" not in output, output
        return output
