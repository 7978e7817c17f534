"""`tools/rust_modules.py` on small crates."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rust_modules", ROOT / "tools/rust_modules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def crate(folder: Path, **files: str) -> Path:
    """A crate's source of modules `a__b` (file `a/b.rs`) and their texts."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".rs")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_engine_and_binding_have_their_order_and_no_circle(tool: ModuleType) -> None:
    for source, layers in tool.CRATES.items():
        assert tool.complaints(source, layers) == []
    core, binding = map(tool.uses, tool.CRATES)
    assert set(core["queues::consume_queue"]) >= {"files::map", "queues::entry"}
    assert set(binding["sending::channel"]) >= {"buffer", "sending::sender"}


@pytest.mark.parametrize(
    "use",
    [
        "use crate::high::thing::X;",
        "pub(crate) use crate::high::thing::X;",
        "use crate::{\n    high::{\n        thing::{X as Y, Z},\n    },\n};",
        "fn f() { crate::high::thing::f() }",
        "use super::high;\nfn f() { super::super::high::thing::f() }",
    ],
)
def test_a_use_of_a_layer_above_is_named_with_both_modules(
    tool: ModuleType, tmp_path: Path, use: str
) -> None:
    source = crate(tmp_path, low__mod="mod part;", low__part=use, high__mod="", high__thing="")
    wrong = tool.complaints(source, ["low", "high"])
    assert any(line.startswith("low::part uses high") for line in wrong)
    assert tool.complaints(source, ["high", "low"]) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("use super::other::Y;", "use super::one::X;"),
        ("use crate::layer::{other};", "fn f() { super::one::g(); }"),
    ],
)
def test_a_circle_inside_a_layer_is_found(
    tool: ModuleType, tmp_path: Path, one: str, other: str
) -> None:
    source = crate(tmp_path, layer__mod="mod one;\nmod other;", layer__one=one, layer__other=other)
    assert tool.complaints(source, ["layer"]) == [
        "circle: layer::one -> layer::other -> layer::one"
    ]


def test_a_child_that_uses_its_folder_is_a_circle_when_used_by_it(
    tool: ModuleType, tmp_path: Path
) -> None:
    mod = "mod part;\npub use self::part::Name;\nstruct Whole;"
    source = crate(tmp_path, layer__mod=mod, layer__part="use super::Whole;")
    assert tool.complaints(source, ["layer"]) == []
    (tmp_path / "layer/mod.rs").write_text(mod + "\nfn f() { part::g() }")
    assert tool.complaints(source, ["layer"]) == ["circle: layer -> layer::part -> layer"]


def test_comments_tests_and_other_crates_do_not_count(tool: ModuleType, tmp_path: Path) -> None:
    text = (
        "//! [`crate::high::X`]\nuse std::high::X;\n#[cfg(test)]\nmod tests { use crate::high::X; }"
    )
    source = crate(tmp_path, low=text, high="", low_tests="use crate::high::X;")
    assert tool.complaints(source, ["low", "high"]) == []


def test_a_layer_without_a_place_in_the_order_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    [line] = tool.complaints(crate(tmp_path, fresh=""), ["other"])
    assert line.startswith("fresh: not in CRATES")


def test_the_binding_has_no_logic(tool: ModuleType) -> None:
    assert tool.logic(tool.BINDING) == []


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("let at = Instant::now();", "reads a clock"),
        ("let ms = SystemTime::now();", "reads a clock"),
        ("open: AtomicI64,", "counts"),
        ("open: HashMap<i32, Send>,", "keeps a table"),
        ("self.count += 1;", "counts"),
        ("loop {", "decides when to end"),
        ("while self.len() > 1 {", "decides when to end"),
    ],
)
def test_logic_in_a_binding_is_named_with_its_line(
    tool: ModuleType, tmp_path: Path, line: str, does: str
) -> None:
    source = crate(tmp_path, part__one=f"use core::X;\n{line}")
    assert tool.logic(source) == [f"part/one.rs:2 {does}: that belongs to kernel/core"]


def test_conversions_comments_and_texts_are_no_logic(tool: ModuleType, tmp_path: Path) -> None:
    text = (
        "// a loop that reads Instant\n"
        'let name = "while HashMap += 1";\n'
        "while let Some(it) = records.next() {\n"
        "match it { 0..=3 if a <= b && c != d => PyOnceLock::new(), _ => () }"
    )
    assert tool.logic(crate(tmp_path, one=text)) == []
