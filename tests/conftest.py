"""What holds for every run: Hypothesis's profile, the order, and the time of each part."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.nodeid import NodeId

from tests.support import prepared, spark_versions
from tests.support.programs import RUNS_ALL
from tests.support.workers import LATE, MULTIPLE, USED, scope_of

# Compiled modules are kept, here and by all processes that tests start, even where the environment
# forbids it: otherwise each of some hundred processes compiles the whole package again.
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "pycache"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(CACHE))
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]

if spark_versions.VARIABLE in os.environ:
    spark_versions.use_pyspark(os.environ[spark_versions.VARIABLE])

DEAREST_FILES = 20
"""So many the summary names."""

LONG_FIRST = (
    # Each of these is one worker's for minutes, most of which it waits.
    *("spark", "contract", "spark-streams", "console"),
    *(
        "tests/spark",
        "java",
        "docs-spark",
        "java-versions",
        "tests/store_compat",
        "wheels",
        "go",
    ),
    *(
        "tests/replication",
        "tasks",
        "tests/docs",
        "tests/interop",
        "console-actions",
        "node",
        "tests/abuse",
        "tests/recovery",
        "kernel-processes",
    ),
    *("tests/differential", "tests/model", "tests/malformed", "tests/cli", "tests/property"),
    *("tests/doctor", "tests/simulation", "tests/integrations", "tests/deploy", "tests/kernel"),
)
"""Groups of xdist and folders whose tests take longest: begun last, one of them would keep a single
worker busy when all others are done. The order of those that follow does not matter."""


def pytest_configure() -> None:
    """Hypothesis's profile, and interrupts.

    Its modules are imported when it is known where compiled ones are kept: a hundred of them.
    An example of an instant takes its 200 ms now and then on a machine under load. Where a run
    judges a change the examples are the same each time; elsewhere each run has others.
    """
    from hypothesis import settings

    # A shell has what it starts in the background ignore it, and all that tests start with it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_same = os.environ.get("CI") == "true"
    settings.register_profile("ours", deadline=None, derandomize=is_same)
    settings.load_profile("ours")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests that share servers stay together in a run with workers.

    The scheduler of pytest-xdist looks for their group at the end of their name. Its own hook
    writes an attribute that pytest 9.2 does not read, so that each worker would start all servers.
    """
    leave_out_software(config, items)
    is_of_xdist = hasattr(config, "workerinput")
    if is_of_xdist or config.getoption(MULTIPLE.removeprefix("--"), 0):
        for item in items:
            if item.get_closest_marker("xdist_group") is None and (place := shared_by(item)):
                item.add_marker(pytest.mark.xdist_group(place))
        late: frozenset[str] = frozenset()
        if os.environ.get(prepared.LATE_VARIABLE) == "1":
            late = config.stash[LATE] = late_scopes(items)
        items.sort(key=lambda item: (scope_of(item) in late, place_of(item)))
    if is_of_xdist:
        for item in items:
            if (scope := scope_of(item)) != item.nodeid:
                item._id = NodeId.parse(f"{item.nodeid}@{scope}")


def shared_by(item: pytest.Item) -> str:
    """The folder or file whose tests share a fixture that this one uses, so that they are to stay
    together: else each worker would set it up. Empty where it has all for itself."""
    closure = getattr(item, "_fixtureinfo", None)
    made = [each[-1] for each in closure.name2fixturedefs.values()] if closure is not None else []
    folders = {each.baseid for each in made if each.scope in ("package", "session")} - {"", "."}
    if folders:
        return str(min(folders))
    return item.nodeid.partition("::")[0] if any(each.scope == "module" for each in made) else ""


def leave_out_software(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs with ``KEROLOX_SOFTWARE=all`` alone: it fetches a great deal, or repeats much."""
    left_out = [] if RUNS_ALL else [item for item in items if item.get_closest_marker("software")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def late_scopes(items: list[pytest.Item]) -> frozenset[str]:
    """Those with a test that needs a build: a worker that waits for it runs nothing else."""
    return frozenset(scope_of(item) for item in items if prepared.needs_build(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Builds are waited for before a test's own time begins (pytest-timeout)."""
    prepared.wait_for(item)
    return (yield)


def place_of(item: pytest.Item) -> int:
    """Where in the order of a run with workers a test belongs: its first place in `LONG_FIRST`."""
    names = [mark.args[0] for mark in item.iter_markers("xdist_group")]
    names += [name for name in LONG_FIRST if item.nodeid.startswith(name)]
    return min((LONG_FIRST.index(name) for name in names if name in LONG_FIRST), default=10_000)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the garbage collector need not examine it again. What a
    test leaves behind is little, so it comes less often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_report_header() -> str:
    """Say which kernels the run is about."""
    if find_spec("kerolox_kernel") is not None:
        return "kernels under test: python, native"
    return "kernels under test: python (kerolox_kernel is not installed)"


def part_of(nodeid: str) -> str:
    """The part of the suite that a test belongs to: its folder, ``source`` for those outside."""
    _, folder, *below = nodeid.partition("::")[0].split("/")
    return folder if below else "source"


@dataclass
class Sum:
    """Of a part of the suite, or of a file: seconds of all workers together, and those of a
    processor: of a worker and of what it has waited for, so a server counts where it ends."""

    tests: int = 0
    seconds: float = 0.0
    used: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        """Count one of the three reports of a test."""
        self.tests += report.when == "call"
        self.seconds += report.duration
        self.used += sum(value for name, value in report.user_properties if name == USED)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each part has cost, and the files that cost most."""
    parts: dict[str, Sum] = defaultdict(Sum)
    files: dict[str, Sum] = defaultdict(Sum)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                parts[part_of(report.nodeid)].add(report)
                files[report.nodeid.partition("::")[0]].add(report)
    terminalreporter.section("seconds of each part, of a worker and of a processor")
    for name, each in sorted(parts.items(), key=lambda item: -item[1].seconds):
        line = f"{name:<16}{each.tests:>6} tests{each.seconds:>9.1f} s{each.used:>9.1f} s"
        terminalreporter.line(line)
    dearest = sorted(files.items(), key=lambda item: -item[1].used)[:DEAREST_FILES]
    if len(files) > DEAREST_FILES and dearest[0][1].used:
        terminalreporter.section("files that took a processor longest")
        for name, each in dearest:
            line = f"{each.used:>7.1f} s of {each.seconds:>6.1f} s {each.tests:>5} tests  {name}"
            terminalreporter.line(line)
