"""What a command imports: whatever it does not need costs its user time at each call."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.up import deaf_address

RUN = """
import atexit, sys
atexit.register(lambda: print("imported:", *sys.modules, file=sys.stderr))
from kerolox.cli.app import main
main(sys.argv[1:])
"""
HELPS = """
import sys
import click
from kerolox.cli.app import cli

def read(command, context):
    assert command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if name != "spark":  # its commands are the jobs that the package of Spark has
                below = command.get_command(context, name)
                read(below, click.Context(below, parent=context, info_name=name))

read(cli, click.Context(cli, info_name="kerolox"))
print("imported:", *sys.modules, file=sys.stderr)
"""
POSITIONS = {"kerolox.admin", "kerolox.admin.positions"}
"""What options are made of."""


def imported(program: str, *arguments: str, **environment: str) -> set[str]:
    """The modules of an interpreter of its own that has run a program."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment or None,
    )
    [line] = [each for each in done.stderr.splitlines() if each.startswith("imported: ")]
    return set(line.split()[1:])


def below(modules: set[str], *packages: str) -> set[str]:
    """Those that are packages or within them."""
    return {
        module
        for module in modules
        for package in packages
        if module == package or module.startswith(f"{package}.")
    }


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_kerolox_itself_imports_no_command(option: str) -> None:
    modules = imported(RUN, option)
    assert "click" in modules
    assert not below(modules, "kerolox.cli.commands", "asyncio", "msgspec", "importlib.metadata")


def test_no_help_imports_a_loop_a_connection_or_a_client() -> None:
    modules = imported(HELPS)
    assert "kerolox.cli.commands.messages.dlq" in modules
    assert not below(modules, "asyncio", "ssl", "uvloop", "kerolox.client", "kerolox.broker")
    assert not below(modules, "kerolox.remoting") - {"kerolox.remoting"}
    assert below(modules, "kerolox.admin") <= POSITIONS


def test_one_question_imports_no_client_no_server_and_no_other_loop() -> None:
    with deaf_address() as name_server:
        modules = imported(RUN, "topic", "list", "-n", name_server)
    assert "kerolox.admin.topic_lists" in modules
    assert not below(modules, "uvloop", "http", "email", "kerolox.broker", "kerolox._pykernel")
    assert not below(modules, "kerolox.client.aio.producers", "kerolox.client.aio.consumers")
    assert not below(modules, "kerolox.admin.messages", "kerolox.admin.consumers")
    # msgspec would take it where another package has brought it.
    assert "msgspec" in modules
    assert "typing_extensions" not in modules


def test_a_send_imports_no_consumer_no_trace_no_admin_and_no_other_loop() -> None:
    with deaf_address() as name_server:
        modules = imported(RUN, "send", "Orders", "hello", "-n", name_server)
    assert "kerolox.client.aio.producers.producer" in modules
    assert not below(modules, "uvloop", "http", "email", "kerolox.broker", "kerolox._pykernel")
    assert not below(modules, "kerolox.client.aio.consumers", "kerolox.client.core.tracing")
    assert not below(modules, "kerolox.client.aio.consumer_settings", "kerolox.filter")
    assert not below(modules, "kerolox.admin", "kerolox.config", "kerolox.properties", "bz2")
    assert not below(modules, "kerolox.cli.process.running", "kerolox.cli.rows")
