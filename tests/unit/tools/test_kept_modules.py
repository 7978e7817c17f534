"""What a checkout takes over of the modules that Python has compiled in another one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAME = f"module.{sys.implementation.cache_tag}.pyc"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    found = importlib.import_module("kept_modules")
    monkeypatch.setattr(found, "OF_ONE_RUN", ())
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "module.py").write_text("value = 1\n")
    return folder / "module.py"


def imported(source: Path, compiled: Path) -> Path:
    """Import the module in a process of its own, which compiles nothing else; where it is then."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = "import module; print(module.value, end='')"
    output = subprocess.check_output(
        [sys.executable, "-S", "-c", code], cwd=source.parent, env=environment, text=True
    )
    assert source.read_text() == f"value = {output}\n"
    return compiled / source.parent.relative_to("/") / NAME


def at_another_time(source: Path) -> None:
    """As a fresh checkout has it."""
    os.utime(source, (1_700_000_000, 1_700_000_000))


def test_a_module_is_brought_with_the_time_of_its_source(
    tool: ModuleType, source: Path, tmp_path: Path
) -> None:
    kept, one, other = tmp_path / "modules" / "a", tmp_path / "one", tmp_path / "other"
    imported(source, one)
    tool.keep(kept, one)
    at_another_time(source)
    tool.bring(kept, other)
    [brought] = [path for path in other.rglob("*.pyc") if path.name == NAME]
    written = brought.stat().st_mtime_ns
    assert imported(source, other) == brought
    assert brought.stat().st_mtime_ns == written, "it was compiled again"


def test_a_module_whose_source_has_changed_is_compiled_again(
    tool: ModuleType, source: Path, tmp_path: Path
) -> None:
    kept, one, other = tmp_path / "modules" / "a", tmp_path / "one", tmp_path / "other"
    imported(source, one)
    tool.keep(kept, one)
    source.write_text("value = 2\n")
    tool.bring(kept, other)
    assert not (other / source.parent.relative_to("/") / NAME).exists()
    imported(source, other)
    tool.keep(kept, other)
    at_another_time(source)
    tool.bring(kept, third := tmp_path / "third")
    imported(source, third)


def test_what_is_compiled_of_an_older_source_is_not_kept(
    tool: ModuleType, source: Path, tmp_path: Path
) -> None:
    kept, compiled = tmp_path / "modules" / "a", tmp_path / "compiled"
    imported(source, compiled)
    at_another_time(source)
    tool.keep(kept, compiled)
    assert not (kept / source.parent.relative_to("/") / NAME).exists()


def test_what_the_last_run_has_not_is_kept_no_more(
    tool: ModuleType, source: Path, tmp_path: Path
) -> None:
    kept, compiled = tmp_path / "modules" / "a", tmp_path / "compiled"
    module = imported(source, compiled)
    tool.keep(kept, compiled)
    assert [path.name for path in kept.rglob("*.pyc") if path.name == NAME] == [NAME]
    module.unlink()
    tool.keep(kept, compiled)
    assert [path.name for path in kept.rglob("*.pyc") if path.name == NAME] == []


def test_modules_of_few_checkouts_are_kept(tool: ModuleType, source: Path, tmp_path: Path) -> None:
    imported(source, compiled := tmp_path / "compiled")
    for number in range(tool.CHECKOUTS_MAX + 2):
        tool.keep(tmp_path / "modules" / str(number), compiled)
    assert len(list((tmp_path / "modules").iterdir())) == tool.CHECKOUTS_MAX
