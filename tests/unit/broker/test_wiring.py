"""How the parts of a broker come by their settings: what can change is not kept unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import kerolox.broker
from kerolox.broker.config import BrokerConfig
from kerolox.observable import Observable

LIVE = {each.name for each in fields(BrokerConfig) if BrokerConfig.is_live(each.name)}
FOLDER = Path(kerolox.broker.__file__).parent


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(FOLDER)} {node.name}", node


def live_reads(node: ast.AST, *holders: str) -> set[str]:
    """Live settings that code reads of one of these expressions."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) in holders
    } & LIVE


def constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    found = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    return found[0] if found else None


def test_a_part_that_copies_a_live_setting_subscribes_to_the_settings() -> None:
    copied = {}
    for name, node in classes():
        made = constructor(node)
        if made is None or ".subscribe(" in ast.unparse(made):
            continue
        if reads := live_reads(made, "config", "settings.current", "base.config"):
            copied[name] = reads
    assert copied == {}
    writer = next(node for name, node in classes() if name.endswith(" RecordWriter"))
    assert live_reads(constructor(writer) or writer, "config") == {"max_message_size"}


def test_a_part_that_keeps_one_value_of_the_settings_reads_nothing_live() -> None:
    kept = [each for each in classes() if "self._config = " in ast.unparse(each[1])]
    assert any(name.endswith(" SlaveServer") for name, _ in kept)
    reads = {name: live_reads(node, "self._config") for name, node in kept}
    assert {name: found for name, found in reads.items() if found} == {}


async def test_subscribers_get_both_values_and_what_they_go_on_with_is_returned() -> None:
    shared, seen = Observable(1), []

    async def goes_on() -> None:
        seen.append("went on")

    shared.subscribe(lambda old, new: seen.append((old, new, shared.current)))
    shared.subscribe(lambda old, new: goes_on())
    [waited] = shared.replace(2)
    assert seen == [(1, 2, 2)]
    await waited
    assert seen[-1] == "went on"
