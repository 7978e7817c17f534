"""Clients of others with TLS and accounts: many cases in one process of each language."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.programs import (
    build_go_tls_clients,
    build_python_clients,
    java_command,
)

if TYPE_CHECKING:
    from typing import Self

__all__ = ["OK", "Cases", "go_cases", "java_cases", "python_cases"]

OK = "ok"
STOP_SECONDS_MAX = 30


class Cases:
    """A program that does what the lines of its input say; it starts with the first case.

    Args:
        command: what runs it.
    """

    def __init__(self, *command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=STOP_SECONDS_MAX)
        finally:
            process.kill()
            process.stdout.close()

    def __call__(self, what: str, **given: object) -> str:
        """``ok``, or what went wrong.

        Args:
            what: ``send``, ``pull``, ``push`` or ``all``.
            given: where, and how it is secured; the programs say which names there are.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        words = (f"{name}={_text(value)}" for name, value in given.items())
        process.stdin.write("\t".join((what, *words)) + "\n")
        process.stdin.flush()
        while line := process.stdout.readline():
            name, _, outcome = line.rstrip("\n").partition("\t")
            if name == "outcome":
                return outcome
        raise AssertionError(f"the program ended in the midst of {what}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def java_cases() -> Cases:
    """The Java 4.9 client."""
    return Cases(*java_command("interop.Secured"))


def go_cases() -> Cases:
    """The Go client; TLS came to it after v2.1.2."""
    return Cases(str(build_go_tls_clients()))


def python_cases() -> Cases:
    """``rocketmq`` 0.4.4, which wraps the client in C++ and speaks no TLS."""
    return Cases(sys.executable, str(build_python_clients()))
