"""`tools/passed.py`: a check of the kernel is left out only when it would read the same."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("passed")


@pytest.fixture
def steps(tool: ModuleType) -> list[Any]:
    return [tool.Step("clippy", ["a"]), tool.Step("cargo test", ["b"])]


def test_what_passed_is_left_out_until_the_files_change(
    tool: ModuleType, steps: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "cache" / "passed.json"
    first = tool.Passed(path, "state")
    assert first.left(steps) == steps
    first.note(tool.StepOutcome("clippy", True, 1.0, ""))
    assert tool.Passed(path, "state").left(steps) == steps[1:]
    assert tool.Passed(path, "other").left(steps) == steps
    path.write_text("{")
    assert tool.Passed(path, "state").left(steps) == steps


def test_what_failed_runs_again(tool: ModuleType, steps: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "passed.json"
    passed = tool.Passed(path, "state")
    for step in steps:
        passed.note(tool.StepOutcome(step.name, True, 1.0, ""))
    assert passed.left(steps) == []
    passed.note(tool.StepOutcome("clippy", False, 1.0, ""))
    assert tool.Passed(path, "state").left(steps) == steps[:1]


def test_the_state_is_of_each_file_compiler_environment_and_command(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    files = [tmp_path / name for name in "ab"]
    for path in files:
        path.write_text("same")
    states = [tool.state_of(files, "1.88", {}), tool.state_of(files, "1.89", {})]
    states += [
        tool.state_of(files[:1], "1.88", {}),
        tool.state_of(files, "1.88", {"RUSTFLAGS": "x"}),
        tool.state_of(files, "1.88", {}, [["cargo", "test"]]),
    ]
    files[0].write_text("other")
    states.append(tool.state_of(files, "1.88", {}))
    assert len(set(states)) == 6
    files[0].write_text("same")
    assert tool.state_of(reversed(files), "1.88", {"HOME": "x"}) == states[0]


def test_the_checks_read_the_kernel_and_the_golden_store(tool: ModuleType) -> None:
    found = {str(path.relative_to(ROOT)) for path in tool.kernel_files()}
    assert {
        "kernel/Cargo.lock",
        "kernel/core/src/lib.rs",
        "kernel/clippy.toml",
        "rust-toolchain.toml",
        "tests/golden/store.tar.xz",
    } <= found
    assert not [name for name in found if "/target/" in name]
