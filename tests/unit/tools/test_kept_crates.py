"""What a checkout takes over of what cargo has built in another one."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("kept_crates")


def built(target: Path, *names: str) -> None:
    for name in names:
        path = target / "debug" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_crates_of_others_are_kept_and_brought_where_there_is_nothing(
    tool: ModuleType, tmp_path: Path
) -> None:
    one, other, kept = tmp_path / "one", tmp_path / "other", tmp_path / "crates" / "a"
    others = {"deps/libsha1-1.rlib", ".fingerprint/sha1-1/lib"}
    built(one, *others, "deps/libkerolox_core-1.rlib", ".fingerprint/kerolox-core-1/lib")
    built(one, "incremental/x")
    tool.keep(kept, one)
    tool.bring(kept, other)
    assert files_of(other / "debug") == others
    times = [(each / "debug/deps/libsha1-1.rlib").stat().st_mtime_ns for each in (one, other)]
    assert times[0] == times[1], "cargo goes by them"
    (one / "debug/deps/libsha1-1.rlib").unlink()
    tool.bring(kept, one)
    assert not (one / "debug/deps/libsha1-1.rlib").exists(), "what is there is cargo's"


def test_crates_of_few_lock_files_are_kept(tool: ModuleType, tmp_path: Path) -> None:
    built(tmp_path / "target", "deps/liba.rlib")
    for number in range(tool.KEPT_MAX + 2):
        tool.keep(tmp_path / "crates" / str(number), tmp_path / "target")
    assert len(list((tmp_path / "crates").iterdir())) == tool.KEPT_MAX


def test_nothing_is_brought_where_nothing_is_kept(tool: ModuleType, tmp_path: Path) -> None:
    tool.bring(tmp_path / "crates" / "a", tmp_path / "target")
    assert files_of(tmp_path) == set()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of crates with one source, whose target is built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "kernel"
    built(folder / "target", "deps/libkerolox_core-1.rlib", "deps/libsha1-1.rlib", "incremental/x")
    (folder / "lib.rs").write_text("")
    os.utime(folder / "lib.rs", ns=(1, 1))
    return folder


def checked_out_again(kernel: Path) -> None:
    shutil.rmtree(kernel / "target")
    os.utime(kernel / "lib.rs")


def test_a_checkout_with_the_same_sources_gets_all_and_their_times(
    tool: ModuleType, kernel: Path
) -> None:
    whole = tool.Whole(kernel, [kernel / "lib.rs"], "state")
    whole.keep()
    checked_out_again(kernel)
    whole.bring()
    assert files_of(kernel / "target/debug/deps") == {"libkerolox_core-1.rlib", "libsha1-1.rlib"}
    assert not (kernel / "target/debug/incremental").exists()
    assert (kernel / "lib.rs").stat().st_mtime_ns == 1, "cargo would build it again"


def test_a_checkout_that_has_built_keeps_its_times(tool: ModuleType, kernel: Path) -> None:
    whole = tool.Whole(kernel, [kernel / "lib.rs"], "state")
    whole.keep()
    os.utime(kernel / "lib.rs", ns=(2, 2))
    whole.bring()
    assert (kernel / "lib.rs").stat().st_mtime_ns == 2


def test_other_sources_get_nothing(tool: ModuleType, kernel: Path) -> None:
    tool.Whole(kernel, [kernel / "lib.rs"], "state").keep()
    checked_out_again(kernel)
    tool.Whole(kernel, [kernel / "lib.rs"], "other").bring()
    assert not (kernel / "target").exists()
    assert (kernel / "lib.rs").stat().st_mtime_ns > 1
