"""The structure of the source: who may know whom."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import pytest

from tests.support.parsed import parsed

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
OF_THE_LANGUAGE = {"_asdict", "_current_frames", "_exit", "_fields", "_make", "_replace"}
"""Private by their spelling alone: of named tuples, os and sys."""


def test_import_contracts_have_no_exceptions() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    for name in contracts.sections():
        for option in ("ignore_imports", "exclude_type_checking_imports", "skip_descendants"):
            assert option not in contracts[name], (name, option)
    kinds = [section.get("type") for section in contracts.values()]
    assert "acyclic_siblings" in kinds


def test_no_module_uses_a_private_name_of_another() -> None:
    found = []
    for path in SOURCES:
        tree = parsed(path)
        own = _names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom):
                found += [
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.module}.{each.name}"
                    for each in node.names
                    if _is_private(each.name) and not each.name.startswith("_pykernel")
                ]
    assert found == []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_THE_LANGUAGE


def _names(tree: ast.Module) -> set[str]:
    """The names that a module gives itself: its classes, functions, members and slots."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_a_frozen_object_is_changed_only_while_it_is_made() -> None:
    # _choose is a step of __post_init__, _init what kerolox/settings_class.py has for __init__.
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        if "object.__setattr__" in path.read_text()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef)
        and node.name not in ("__post_init__", "_choose", "_init")
        if any("object.__setattr__(" in ast.unparse(each) for each in node.body)
    ]
    assert found == []


SEND_PATH = (
    "kerolox.client.aio.producers.",
    "kerolox.client.core.sending.",
    "kerolox.codec.",
    "kerolox.remoting.",
)
SEND_PATH_MODULES_MAX = 24


def test_the_way_of_a_send_is_few_modules() -> None:
    """Those of its packages that `Producer` imports, at once or later, for more than types."""
    found: set[str] = set()
    left = ["kerolox.client.aio.producers.producer"]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += _imports(parsed(_path_of(module)))
    on_the_way = sorted(each for each in found if each.startswith(SEND_PATH))
    assert "kerolox.remoting.core.client_requests" in on_the_way
    assert len(on_the_way) <= SEND_PATH_MODULES_MAX, on_the_way


def _path_of(module: str) -> Path:
    path = ROOT / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(tree: ast.Module) -> list[str]:
    """The modules of ours that a module imports, but for those of types alone."""
    types = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    of_types = {inner for node in types for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in of_types and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
            found += [name if _path_of(name).exists() else node.module for name in names]
    return [each for each in found if each.startswith("kerolox.")]
