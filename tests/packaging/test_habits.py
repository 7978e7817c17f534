"""The files that keep habits: workflows, hooks, templates, changelog and versions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import kerolox
from tests.packaging.environments import ROOT

BIN = Path(sys.executable).parent
YAML_FILES = sorted((ROOT / ".github").rglob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def run(*command: str) -> str:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: file.name)
def test_github_files_are_yaml_and_run_targets_that_are_there(file: Path) -> None:
    text = file.read_text()
    assert isinstance(yaml.safe_load(text), dict)
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= TARGETS
    for name in re.findall(r"\btools/\w+\.py", text):
        assert (ROOT / name).is_file()


def test_help_names_each_target() -> None:
    told = set(re.findall(r'@echo "make ([a-z-]+)', MAKEFILE))
    assert told == TARGETS - {"help"} - set(re.findall(r"^\.PHONY: help (\w+)$", MAKEFILE))


def test_the_hooks_are_valid_and_run_tools_that_are_there() -> None:
    run("pre-commit", "validate-config", ".pre-commit-config.yaml")
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    for name in re.findall(r"\.venv/bin/([\w-]+)", text):
        assert (BIN / name).exists()
    for name in re.findall(r"(?:tools|benchmarks)/\w+\.py", text):
        assert (ROOT / name).is_file()


def test_the_fragments_make_a_changelog() -> None:
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    drawn = run("towncrier", "build", "--draft", "--version", "next")
    for fragment in fragments:
        assert fragment.read_text().split("\n")[0][:40] in drawn, fragment.name


def test_all_manifests_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kernel = tomllib.loads((ROOT / "kernel" / "pyproject.toml").read_text())["project"]
    cargo = tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text())["workspace"]["package"]
    versions = {project["version"], kernel["version"], cargo["version"], kerolox.__version__}
    assert versions == {kerolox.__version__}
    assert project["optional-dependencies"]["kernel"] == [f"kerolox-kernel=={kerolox.__version__}"]
