"""Which kernel is taken, and what is said when it can't be."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import sys
from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.kernel.choice import KERNEL_VARIABLE, kernel_in_use, kernel_name, load_kernel
from kerolox.release import __version__
from tests.support.kernels import INSTALLED, KERNELS, MODULES


def test_the_native_kernel_is_there_when_it_can_be_built() -> None:
    assert "native" in INSTALLED or sys.platform != "linux" or shutil.which("cargo") is None, (
        "cargo is here, but kerolox_kernel is not built: run make setup"
    )


def test_the_best_kernel_is_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNEL_VARIABLE, raising=False)
    assert kernel_name() == INSTALLED[-1]
    assert load_kernel().__name__ == MODULES[INSTALLED[-1]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KERNELS)
def test_the_variable_forces_a_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, name)
    assert kernel_name() == name
    assert load_kernel().__name__ == MODULES[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KERNELS)
def test_a_name_loads_that_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "nonsense")
    assert load_kernel(name).__name__ == MODULES[name]  # type: ignore[attr-defined]


def test_another_value_is_an_error_that_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "rust")
    with pytest.raises(ConfigError, match=r"KEROLOX_KERNEL=rust.*native or python"):
        kernel_name()
    with pytest.raises(ConfigError, match=r"'rust'.*native or python"):
        load_kernel("rust")


def test_a_native_kernel_that_is_not_installed_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == MODULES["native"] else real(name)
    )
    monkeypatch.setitem(sys.modules, MODULES["native"], None)
    monkeypatch.setenv(KERNEL_VARIABLE, "native")
    with pytest.raises(ConfigError, match=r"kerolox-kernel.*KEROLOX_KERNEL=python"):
        kernel_name()
    with pytest.raises(ConfigError, match=r"kerolox-kernel.*KEROLOX_KERNEL=python"):
        load_kernel("native")
    monkeypatch.delenv(KERNEL_VARIABLE)
    assert kernel_name() == "python"
    assert kernel_in_use().text == "python (kerolox-kernel is not installed)"


@pytest.fixture(params=["__version__ = '0.0.9'", ""], ids=["older", "unknown"])
def another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Path:
    """A native kernel that is not that of this program, in place of the one that is here."""
    name = MODULES["native"]
    package = tmp_path / name / "__init__.py"
    package.parent.mkdir()
    package.write_text(request.param)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name, sys)  # So that what is imported leaves again.
    del sys.modules[name]
    return package


def test_a_native_kernel_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, another_version: Path
) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "native")
    refusal = (
        rf"{re.escape(str(another_version))} is not that of Kerolox {__version__}.*"
        rf"kerolox-kernel=={__version__}.*KEROLOX_KERNEL=python"
    )
    with pytest.raises(ConfigError, match=refusal):
        kernel_name()
    with pytest.raises(ConfigError, match=refusal):
        load_kernel("native")


def test_python_runs_beside_a_native_kernel_of_another_version(
    monkeypatch: pytest.MonkeyPatch, another_version: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(KERNEL_VARIABLE, raising=False)
    with caplog.at_level(logging.WARNING):
        assert [kernel_name(), kernel_name()] == ["python", "python"]
    [warning] = caplog.messages
    assert str(another_version) in warning
    assert f"install kerolox-kernel=={__version__}" in warning
    assert load_kernel().__name__ == MODULES["python"]  # type: ignore[attr-defined]
    assert str(another_version) in kernel_in_use().reason


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_in_use_says_why_it_is_not_the_native_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wanted = {"native": "native", "python": "python (KEROLOX_KERNEL says so)"}
    monkeypatch.setenv(KERNEL_VARIABLE, name)
    assert kernel_in_use().text == wanted[name]
    monkeypatch.delenv(KERNEL_VARIABLE)
    assert kernel_in_use("python").text == "python (as the program wants it)"
