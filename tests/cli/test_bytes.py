"""Arguments with bytes that are no UTF-8."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.types import StringParamType

from tests.cli.every_command import command_contexts

NO_UTF8 = b"k\xff".decode("utf-8", "surrogateescape")
RAW = {("send", "body"), ("request", "text"), ("reply", "text"), ("reply", "command")}
"""What may be any bytes: bodies, and the command of a shell."""


def test_no_text_of_any_command_has_bytes_that_are_no_utf_8() -> None:
    raw, count = set(), 0
    for context in command_contexts():
        path = context.command_path.split()[1:]
        for param in context.command.params:
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
