"""Clients of others with TLS and accounts: many cases in one process of each language; and the file
of accounts of the servers that they and ours are tried at."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kerolox.client import Credentials
from tests.support.eventually import SECONDS_MAX
from tests.support.programs import (
    build_go_tls_clients,
    build_python_clients,
    java_command,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

__all__ = [
    "OK",
    "OPERATOR",
    "WORKER",
    "Cases",
    "accounts_file",
    "go_cases",
    "java_cases",
    "python_cases",
]

OPERATOR = Credentials("operator", "operator-secret")
"""An administrator."""

WORKER = Credentials("worker-account", "worker-secret")
"""Who may what :func:`accounts_file` is told, and replies."""

OK = "ok"


def accounts_file(
    topics: Iterable[str], groups: Iterable[str], *, default_group: str = "DENY", more: str = ""
) -> str:
    """A ``plain_acl.yml`` with :data:`OPERATOR` and :data:`WORKER`.

    Args:
        topics, groups: permissions of the worker, ``name=SUB`` each.
        default_group: what it may in other groups; in other topics it may nothing.
        more: lines of further accounts.
    """
    lines = ["globalWhiteRemoteAddresses:", "accounts:"]
    lines += _account(OPERATOR, admin=True)
    lines += _account(WORKER, admin=False)
    lines += ["  defaultTopicPerm: DENY", f"  defaultGroupPerm: {default_group}", "  topicPerms:"]
    lines += [f"  - {each}" for each in (*topics, "DefaultCluster_REPLY_TOPIC=PUB|SUB")]
    lines += ["  groupPerms:", *(f"  - {each}" for each in groups)]
    return "\n".join([*lines, more.strip("\n"), ""])


def _account(account: Credentials, *, admin: bool) -> list[str]:
    keys = f"- accessKey: {account.access_key}", f"  secretKey: {account.secret_key}"
    return [*keys, f"  admin: {str(admin).lower()}"]


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
            process.wait(timeout=SECONDS_MAX)
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
