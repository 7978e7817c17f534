"""Arguments with bytes that are no UTF-8."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.types import StringParamType

from kerolox.cli.app import cli

NO_UTF8 = b"k\xff".decode("utf-8", "surrogateescape")
RAW = {("send", "body"), ("request", "text"), ("reply", "text"), ("reply", "command")}
"""What may be any bytes: bodies, and the command of a shell."""


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_no_text_of_any_command_has_bytes_that_are_no_utf_8() -> None:
    raw, count = set(), 0
    for path, command in commands():
        context = click.Context(command)
        for param in command.params:
            if isinstance(param.type, click.Path | click.File):
                continue
            try:
                param.type.convert(NO_UTF8, param, context)
            except click.BadParameter:
                count += isinstance(param.type, StringParamType)
            else:
                raw.add((*path, param.name))
    assert raw == RAW
    assert count > 300


@pytest.mark.parametrize(
    "words", [("send", "Cut", "x", "--keys"), ("message", "find", "Cut"), ("topic", "describe")]
)
def test_a_byte_that_is_no_utf_8_is_wrong_usage(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kerolox.cli", *words, b"k\xff", "-n", "127.0.0.1:1"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"has a byte at position 1 that is no UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
