"""`tests/support/prepared.py`: what tests need is made once, beside those that do without."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.support import prepared, programs
from tests.support.eventually import SECONDS_MAX

SOURCE = "import pathlib\npathlib.Path('../../runs').open('a').write('x')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs of its own: one that is made, and one that can't be."""
    monkeypatch.setattr(programs, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(programs, "CACHE", tmp_path / "cache" / "programs")
    programs.CACHE.mkdir(parents=True)
    monkeypatch.delenv(programs.RUN_VARIABLE, raising=False)
    for name, text in (("good", SOURCE), ("bad", SOURCE + "raise SystemExit('no network')\n")):
        (tmp_path / "sources" / name).mkdir(parents=True)
        (tmp_path / "sources" / name / "make.py").write_text(text)
    return tmp_path


def build_of(name: str) -> Callable[[], Path]:
    return lambda: programs._build(name, "python3", "make.py")


def runs(folder: Path) -> int:
    return len((folder / "cache" / "runs").read_text())


def test_who_comes_while_a_build_goes_on_waits_for_it(folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(build_of("good")) for _ in range(4)]
    (built,) = {each.result() for each in made}
    assert built.parent == programs.CACHE
    assert runs(folder) == 1
    assert programs.is_built("good")


def test_other_sources_are_another_program_and_the_oldest_goes(folder: Path) -> None:
    source = folder / "sources" / "good" / "make.py"
    made = []
    for number in range(programs.KEPT_MAX + 1):
        source.write_text(f"{SOURCE}# {number}\n")
        assert not programs.is_built("good")
        made.append(build_of("good")())
        os.utime(made[-1], (number, number))
    assert [path.exists() for path in made] == [False] + [True] * programs.KEPT_MAX
    source.write_text(f"{SOURCE}# 1\n")
    assert build_of("good")() == made[1]
    assert runs(folder) == programs.KEPT_MAX + 1


def test_what_failed_to_build_is_not_built_again_in_the_same_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(programs.RUN_VARIABLE, "1")
    for _ in range(2):
        with pytest.raises(AssertionError, match="no network"):
            build_of("bad")()
    assert runs(folder) == 1
    monkeypatch.setenv(programs.RUN_VARIABLE, "2")
    (folder / "sources" / "bad" / "make.py").write_text(SOURCE)
    assert build_of("bad")().is_dir()
    assert runs(folder) == 2


def test_builds_go_on_side_by_side_and_one_that_fails_stops_no_other() -> None:
    both = threading.Barrier(prepared.BUILDS_AT_ONCE)

    def meet() -> None:
        both.wait(SECONDS_MAX)

    def fail() -> None:
        meet()
        raise OSError("no network")

    builds = [prepared.Build("a", "java", fail), prepared.Build("b", None, meet)]
    builds += [prepared.Build("c", "go", fail)]
    report: list[prepared.Made] = []
    made = prepared.prepare(["go"], report.append, builds)
    assert [(each.name, each.error) for each in made] == [("a", "no network"), ("b", "")]
    assert sorted(each.name for each in report) == ["a", "b"]


def test_only_builds_of_tests_that_run_are_missing(folder: Path) -> None:
    def build(name: str, marker: str) -> prepared.Build:
        return prepared.Build(name, marker, build_of(name), name)

    builds = [build("good", "java"), build("bad", "go")]
    assert prepared.late_builds([], builds) == ["good", "bad"]
    builds[0].make()
    assert prepared.late_builds([], builds) == ["bad"]
    assert prepared.late_builds(["go"], builds) == []


def test_each_program_that_has_a_source_is_prepared() -> None:
    sources = {path.name for path in programs.SOURCES.iterdir() if path.is_dir()}
    listed = {build.program for build in prepared.BUILDS if build.program}
    assert listed <= sources
    # Built in a second, and without a marker of its own.
    quick = {"python", "pythongrpc", "cpp"}
    # Built by the tests that run with KEROLOX_SOFTWARE=all alone.
    late = {"frameworks", "proxy", "proxy53", "rust", "rustgrpc"}
    assert sources - listed - {"grpc5", "parity", "__pycache__"} == quick | late


def item(name: str, *markers: str, group: str | None = None) -> SimpleNamespace:
    marks = [SimpleNamespace(name=marker, args=()) for marker in markers]
    groups = [SimpleNamespace(name="xdist_group", args=(group,))] if group else []

    def iter_markers(name: str | None = None) -> list[SimpleNamespace]:
        return groups if name else marks + groups

    return SimpleNamespace(nodeid=name, iter_markers=iter_markers)


def test_a_group_is_late_when_one_of_its_tests_needs_a_build() -> None:
    items = [item("a", group="tls"), item("b", "java", group="tls"), item("c"), item("d", "node")]
    assert conftest.late_scopes(items) == {"tls", "d"}
    assert not prepared.needs_build(item("e", "spark", "slow"))
