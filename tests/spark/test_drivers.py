"""What tests ask of drivers that are processes of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.spark.drivers import Driver, run_to_its_death

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module that drivers can be; no Spark is in it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def made(text: str) -> str:
        (tmp_path / "a_driver.py").write_text(text)
        return "a_driver"

    return made


def test_what_a_driver_brings_by_its_end_is_awaited(program, tmp_path):
    module = program("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()")
    there = tmp_path / "there"
    with Driver(module, there, log=tmp_path / "log") as driver:
        driver.wait_for(there.exists, "a file")
        driver.wait()


def test_a_driver_that_ends_without_it_shows_its_log(program, tmp_path):
    module = program("raise SystemExit('no memory')")
    with (
        Driver(module, log=tmp_path / "log") as driver,
        pytest.raises(AssertionError, match="it ended with 1: no memory"),
    ):
        driver.wait_for(lambda: False, "what never comes")
    with pytest.raises(AssertionError, match="no memory"):
        run_to_its_death(module, log=tmp_path / "log")


def test_all_of_its_group_dies_with_a_driver(program, tmp_path):
    module = program(
        "import os, signal, sys\n"
        "held = os.open(sys.argv[1], os.O_WRONLY)\n"
        "if os.fork():\n"
        "    os.write(held, b'1')\n"
        "signal.pause()\n"
    )
    os.mkfifo(tmp_path / "held")
    with (
        Driver(module, tmp_path / "held", log=tmp_path / "log") as driver,
        (tmp_path / "held").open("rb", buffering=0) as held,
    ):
        assert held.read(1) == b"1"
        driver.kill()
        # It ends when nobody has it open any more.
        assert held.read(1) == b""
