"""The code blocks of README.md and docs/, in order, and what each of them needs to run.

A comment before a block says more about it: ``<!-- test: server -->`` for commands that serve until
they are stopped, ``<!-- test: spark -->`` for Python that has a session ``spark``, ``lakehouse``
for such that needs the libraries of that extra too, ``<!-- test: pytest -->`` for a file of tests,
``<!-- test: save app.py -->`` for a file that those after it import, ``<!-- test: notebook -->``
for the cells of a notebook, ``<!-- test: shell -->`` for commands that share one shell
(:mod:`tests.docs.shell`) with a test of their own, ``<!-- test: printed -->`` for lines that the
block before it prints, the name of a library for what needs it, and ``<!-- test: rocketmq -->`` for
what needs an official client of RocketMQ 5 (``tests/interop/test_grpc_clients.py``
and ``test_grpc_guide.py``), ``<!-- test: airflow -->`` for what needs Airflow
(``tests/integrations/test_airflow_runs.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LANGUAGES", "LIBRARIES", "PAGES", "ROOT", "Block", "blocks_of"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {
    "python",
    "sh",
    "java",
    "go",
    "javascript",
    "properties",
    "json",
    "text",
    "mermaid",
    "",
}
"""Of blocks; those of the last four are shown and not run."""

LIBRARIES = frozenset(
    ("celery", "django", "dramatiq", "fastapi", "faststream", "mcp", "opentelemetry", "taskiq")
)
"""Of examples, beside pytest and Spark."""

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<needs>\w+)(?: (?P<file>[\w.]+))? -->\n)?"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block.

    Args:
        language: as it stands behind the fence.
        needs: what its comment says, or empty.
        code: the lines.
        file: of one that is saved: its name.
    """

    language: str
    needs: str
    code: str
    file: str = ""


def blocks_of(page: Path) -> list[Block]:
    """Its blocks, in order."""
    text = page.read_text()
    found = [
        Block(match["language"], match["needs"] or "", match["code"], match["file"] or "")
        for match in _BLOCK.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page}: odd fences"
    assert sum(bool(block.needs) for block in found) == text.count("<!-- test:"), page
    return found
