"""The source's own rules: lengths, exports, words that must not appear, generated files."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.parsed import parsed

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 1000
MADE_BY_TOOLS = {"src/kerolox/admin/sync/_generated.py", "src/kerolox/client/sync/_generated.py"}
"""Nobody reads these: what they are made from is held to the limit."""

NAME_CHARACTERS_MAX = 80
FUNCTION_LINES_MAX = 60


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in files if path.exists() and not path.is_symlink()]


def test_no_source_file_outgrows_reading() -> None:
    long_files = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py", "*.rs", "*.java", "*.go")
        if (lines := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert long_files.keys() <= MADE_BY_TOOLS


def test_no_function_outgrows_a_screen() -> None:
    long_functions = []
    for path in tracked("src/*.py", "tools/*.py", "benchmarks/*.py"):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX:
                long_functions.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not long_functions


@pytest.mark.parametrize(
    "package", ["kerolox", "kerolox.admin", "kerolox.client", "kerolox.client.sync"]
)
def test_public_names_are_exactly_those_that_all_lists(package: str) -> None:
    module = __import__(package, fromlist=["__all__"])
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_machine_path_or_download_address_is_recorded() -> None:
    pattern = re.compile(
        r"(?<![\w.])/(?:work|root|home)/\w|https?://[^\s\"']*/(?:simple|packages)/"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked()
        if path.suffix not in {".xz", ".png"} and path != Path(__file__)
        for match in [pattern.search(path.read_text(errors="replace"))]
        if match
    ]
    assert not found


def test_names_of_tests_are_short_enough_to_read() -> None:
    pattern = re.compile(r"^[ \t]*(?:async )?def (test_\w+)", re.MULTILINE)
    long_names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked("tests/*.py")
        for name in pattern.findall(path.read_text())
        if len(name) > NAME_CHARACTERS_MAX
    ]
    assert not long_names


def test_tests_do_not_wait_for_a_fixed_time() -> None:
    pattern = re.compile(r"(?:time|asyncio)\.sleep\((?:0\.[1-9]|[1-9])")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("tests/*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_the_map_of_the_code_stays_short() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 100] == []


def test_documents_name_files_that_exist() -> None:
    named = re.compile(r"`([a-z_]+/[\w/.]+\.(?:py|rs|md|toml))`")
    linked = re.compile(r"\]\((?!http)([^)#]+)")
    bases = [ROOT, ROOT / "src/kerolox", ROOT / "src/kerolox/client"]
    missing: list[str] = []
    for document in (ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs/design").glob("*.md"))):
        text = document.read_text(encoding="utf-8")
        missing += [
            f"{document.name}: {path}"
            for path in named.findall(text)
            if not any((base / path).exists() for base in bases)
        ]
        missing += [
            f"{document.name}: {path}"
            for path in linked.findall(text)
            if not (document.parent / path).exists()
        ]
    assert missing == []
