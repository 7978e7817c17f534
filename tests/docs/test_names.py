"""Every public name of the clients is used by an example that the tests run."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from types import ModuleType

import pytest

from tests.docs.examples import PAGES, blocks_of

MODULES = (
    "kerolox",
    "kerolox.admin",
    "kerolox.client",
    "kerolox.client.sync",
    "kerolox.errors",
    "kerolox.otel",
    "kerolox.testing",
)
NO_EXAMPLE = {"__version__"}


def used_in(code: str) -> list[object]:
    """What a piece of code has of kerolox and does something with besides importing it."""
    tree = ast.parse(code)
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
def shown() -> list[object]:
    """What the examples of all pages use."""
    blocks = [block for page in PAGES for block in blocks_of(page)]
    return [
        value
        for block in blocks
        if block.language == "python" and block.needs != "spark"
        for value in used_in(block.code)
    ]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example_that_runs(module: str) -> None:
    if module == "kerolox.otel":
        pytest.importorskip("opentelemetry")
    public = importlib.import_module(module)
    missing = [
        name
        for name in public.__all__
        if name not in NO_EXAMPLE and not any(value is getattr(public, name) for value in shown())
    ]
    assert not missing, f"use them in an example of docs/, such as docs/guides/names.md: {missing}"
