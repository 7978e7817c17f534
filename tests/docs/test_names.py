"""Every public name of the clients is used by an example that the tests run.

What operators ask has many kinds of answers: there it suffices that an example makes the call whose
answer it is, or is a part of.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from types import ModuleType

import pytest

from kerolox.admin import Admin
from tests.docs.examples import PAGES, blocks_of

MODULES = (
    "kerolox",
    "kerolox.admin",
    "kerolox.admin.sync",
    "kerolox.client",
    "kerolox.client.sync",
    "kerolox.errors",
    "kerolox.integrations.cloudevents",
    "kerolox.integrations.dramatiq",
    "kerolox.integrations.faststream",
    "kerolox.integrations.taskiq",
    "kerolox.otel",
    "kerolox.schemas.registry",
    "kerolox.schemas.serializers",
    "kerolox.testing",
)
NO_EXAMPLE = {"__version__"}

WORD = re.compile(r"\w+")


def parsed(code: str) -> ast.Module:
    """Cells of a notebook may await."""
    return compile(code, "example", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def used_in(code: str) -> list[object]:
    """What a piece of code has of kerolox and does something with besides importing it."""
    tree = parsed(code)
    named: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kerolox"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                named[name.asname or name.name] = getattr(module, name.name)
    found: list[object] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in named:
            found.append(named[node.id])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = named.get(node.value.id)
            if isinstance(owner, ModuleType):
                found.append(getattr(owner, node.attr))
    return found


@cache
def examples() -> list[str]:
    """The code of all pages that runs without Spark."""
    blocks = [block for page in PAGES for block in blocks_of(page)]
    others = ("airflow", "spark")
    return [b.code for b in blocks if b.language == "python" and b.needs not in others]


@cache
def shown() -> list[object]:
    """What the examples use by its name."""
    return [value for code in examples() for value in used_in(code)]


@cache
def called() -> frozenset[str]:
    """The names of methods that the examples call."""
    nodes = [node for code in examples() for node in ast.walk(parsed(code))]
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return frozenset(func.attr for func in calls if isinstance(func, ast.Attribute))


def words(annotation: object) -> set[str]:
    return set(WORD.findall(annotation if isinstance(annotation, str) else repr(annotation)))


def results(module: ModuleType) -> set[str]:
    """Public names that are results of what the examples call, and parts of such results."""
    found: set[str] = set()
    for name in module.__all__:
        value = getattr(module, name)
        members = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []
        for function in [value, *(each for _, each in members)]:
            if inspect.isfunction(function) and function.__name__ in called():
                found |= words(function.__annotations__.get("return", ""))
    fresh = found & set(module.__all__)
    while fresh:
        types = [getattr(getattr(module, name), "__annotations__", {}) for name in fresh]
        parts = set().union(*(words(kind) for each in types for kind in each.values()))
        fresh = parts & set(module.__all__) - found
        found |= fresh
    return found


def test_every_method_of_admin_is_called_by_an_example() -> None:
    methods = [name for name, _ in inspect.getmembers(Admin, inspect.isfunction)]
    assert [name for name in methods if not name.startswith("_") and name not in called()] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example_that_runs(module: str) -> None:
    public = importlib.import_module(module)
    known = NO_EXAMPLE | (called() | results(public) if module == "kerolox.admin" else set())
    missing = [
        name
        for name in public.__all__
        if name not in known and getattr(public, name) not in shown()
    ]
    assert not missing, f"use them in an example, of docs/guides/recipes.md for instance: {missing}"
