"""Source files as trees, each parsed once in a process: many rules read all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

__all__ = ["parsed"]


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file; nobody changes it."""
    return ast.parse(path.read_text())
