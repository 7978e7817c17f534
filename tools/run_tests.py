"""Lint, then every test that this machine can run; says what is left out and how to get it.

What tests need is built or downloaded beside them (`prepare.py`); where that has to be done first,
the tests that need it come last. What needs one processor (types, clippy, the kernel's own tests)
goes on beside pytest. The summary tells the time of each part. With ``CI=true`` nothing may be left
out: a missing tool is a failure.

    python tools/run_tests.py [--quick] [--anew] [PYTEST OPTION ...]

A test that failed beside the others runs once more, alone, when all else has ended; what passes
there is flaky, and named in the last lines (`second_run.py`). ``.cache/runs.json`` lists the last
runs.

``--quick`` takes the checks of Python's text and the unit tests only (``make check``). Checks of
the kernel that have passed on this machine with the same files are left out; ``--anew`` and
``CI=true`` run them.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec

import kept_modules
from kerolox.errors import ConfigError
from kerolox.spark.java import require_java
from passed import Passed, compiler, kernel_files, state_of
from prepare import prepared
from processors import Processors
from run_lint import (
    built_checks,
    kernel_checks,
    public_checks,
    quick_checks,
    types_of_source,
)
from second_run import FLAKY_MAX, Run, Runs, Verdict, again, run_pytest
from steps import ROOT, Step, StepOutcome, has_rust, run_step, sequence

sys.path.insert(0, str(ROOT))

from tests.support.browser import HEADLESS, chromium
from tests.support.kept import kept_folder
from tests.support.prepared import FIRST_BUILDS, LATE_VARIABLE, late_builds
from tests.support.programs import RUN_VARIABLE
from tests.support.stores.golden import copy_golden
from tests.support.workers import MULTIPLE, SPARES, used_so_far

WORKERS = (MULTIPLE, str((os.cpu_count() or 2) + 3), SPARES, "6")
"""Some more than there are processors: tests wait for timers, disks and other processes. With many
more what all processors do takes each test longer than the time limits of the programs in it, so
the spare ones run tests only while processors are idle."""

QUICK_AT_ONCE = 2
"""Of the checks of a second each, which come first."""

FAILED_COLUMNS = 160
"""Of the line of a test that failed, what the summary repeats: its name and some of its error."""

SIMULATION_SECONDS = "15"

QUICK, ANEW = "--quick", "--anew"

INSTALLS_VARIABLE = "KEROLOX_INSTALL_CHROMIUM"
"""1: the browser that costs the tests least is installed, as root, where it is not there."""

STARTED_VARIABLE = "KEROLOX_STARTED"
"""Unix seconds at which ``make`` began, so that the set-up is in the summary, too."""


@dataclass(frozen=True)
class Result:
    """How the steps of a run went, and what became of the tests that failed."""

    outcomes: list[StepOutcome]
    verdict: Verdict


def missing_tools() -> list[tuple[str, str]]:
    """(marker of the tests that can't run, why) for each tool that is not here."""
    missing = []
    try:
        require_java()
    except ConfigError as error:
        missing += [("java", f"{error}, and Maven"), ("spark", str(error))]
    else:
        if shutil.which("mvn") is None:
            missing += [("java", "no mvn on the PATH; install Maven")]
    if shutil.which("go") is None:
        missing += [("go", "no go on the PATH; install Go 1.20 or newer")]
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing += [("node", "no node and npm on the PATH; install Node.js 18 or newer")]
    if shutil.which(HEADLESS) is None and os.environ.get(INSTALLS_VARIABLE) == "1":
        install_chromium()
    if chromium() is None:
        missing += [("browser", f"no chromium on the PATH; install Debian's package {HEADLESS}")]
    elif shutil.which("npm") is None:
        missing += [("browser", "no npm on the PATH; install Node.js 18 or newer")]
    return missing


def install_chromium() -> None:
    """Debian's package without windows, where this is such a machine and we may."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    print(f"tests: installing Debian's package {HEADLESS}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("update",), ("install", "-y", "--no-install-recommends", HEADLESS)):
        done = subprocess.run(
            ("apt-get", "-qq", *command), env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            print(f"tests: apt-get {command[0]}: {done.stderr.strip()[-500:]}", flush=True)


def kernel_tests() -> list[Step]:
    """The engine's own tests and the corpus of its fuzz targets, with a fresh copy of the golden
    store."""
    if not has_rust():
        return []
    target = ROOT / ".cache" / "golden"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    environment = {"KEROLOX_GOLDEN": str(copy_golden(target).folder)}
    command = ["cargo", "test", "--quiet", "--profile", "suite"]
    command += ["-p", "kerolox-core", "-p", "kerolox-fuzz", "--lib", "--tests"]
    command += ["--", "--include-ignored"]
    return [Step("cargo test", command, ROOT / "kernel", environment)]


def simulation() -> Step:
    """Simulated clusters with fresh seeds, one after the other."""
    command = [sys.executable, "tools/simulate.py", "--seconds", SIMULATION_SECONDS, "--jobs", "1"]
    return Step("simulation", command)


def build_kernel() -> StepOutcome:
    """``make setup``, which builds the native kernel when its sources have changed."""
    outcome = run_step(Step("native kernel", ["make", "--no-print-directory", "setup"]))
    print(outcome.output, end="", flush=True)
    print(f"prepare: native kernel: {outcome.seconds:.0f} s", flush=True)
    importlib.invalidate_caches()
    if outcome.succeeded and has_rust() and find_spec("kerolox_kernel") is None:
        return replace(outcome, succeeded=False, output="the kernel was not built (make setup)")
    return outcome


def kernel_sequence() -> tuple[list[Step], Callable[[StepOutcome], None]]:
    """The checks of the kernel that are left to do, and who is notified of them."""
    steps = [*kernel_checks(), *kernel_tests()]
    if not steps:
        return [], lambda outcome: None
    commands = [step.command for step in steps]
    state = state_of(kernel_files(), compiler(), os.environ, commands)
    passed = Passed(kept_folder("checks") / "passed.json", state)
    if ANEW not in sys.argv and os.environ.get("CI") != "true":
        left = passed.left(steps)
        for step in steps:
            if step not in left:
                print(f"tests: {step.name}: passed here with the same files; {ANEW} runs it again")
        steps = left
    if steps:
        crates = [sys.executable, "tools/kept_crates.py"]
        first, last = ([*crates, word] for word in ("bring", "keep"))
        steps = [Step("crates of others", first), *steps, Step("crates are kept", last)]
    return steps, passed.note


def type_checks(kernel: Future[StepOutcome]) -> Iterator[Step]:
    """All checks of types; most wait for the kernel."""
    yield from public_checks()
    if kernel.result().succeeded:
        yield from built_checks()


def run_tests(*options: str) -> Run:
    """Tests in Python beside each other, printed as they go."""
    colours = ["--color=yes"] if sys.stdout.isatty() else []

    def report(line: str) -> None:
        print(line, end="", flush=True)

    return run_pytest(*colours, *options, report=report)


def report_rerun(line: str) -> None:
    """What the second run of a test says."""
    print(f"tests: {line}", flush=True)


def judged(run: Run | None, outcomes: list[StepOutcome]) -> Result:
    """Try the tests that failed again, now that nothing else runs; ``outcomes`` are of the rest.

    ``run`` is None where it could not begin.
    """
    if run is None:
        return Result(outcomes, Verdict())
    verdict = again(run, report=report_rerun)
    failed = "\n".join(f"{each.name}: {each.text}"[:FAILED_COLUMNS] for each in verdict.failed)
    if len(verdict.flaky) > FLAKY_MAX:
        failed += f"\nmore than {FLAKY_MAX} tests are flaky"
    pytest = StepOutcome("pytest", verdict.is_good, run.seconds, failed.strip(), run.used)
    return Result([*outcomes, pytest], verdict)


def run_quick() -> Result:
    """Formatting, types, structure and the unit tests."""
    with ThreadPoolExecutor() as pool:
        types = sequence(pool, [*types_of_source(), *kernel_checks()[:1]])
        run = run_tests(MULTIPLE, str(os.cpu_count() or 2), "tests/unit", *options_given())
        outcomes = types.result()
    return judged(run, outcomes)


def run_all(missing: list[tuple[str, str]]) -> Result:
    """All tests but those whose tools are missing, and all checks beside them."""
    options = [*WORKERS, "--durations=15"]
    left_out = list(dict(missing))
    if missing:
        options += ["-m", " and ".join(f"not {marker}" for marker, _ in missing)]
    with ThreadPoolExecutor() as pool:
        kernel = pool.submit(build_kernel)
        sequences = [pool.submit(prepared, left_out), sequence(pool, type_checks(kernel))]
        outcomes = [*prepared(left_out, FIRST_BUILDS), kernel.result()]
        sequences.append(sequence(pool, [simulation()]))
        run = None
        if kernel.result().succeeded:
            sequences.append(sequence(pool, *kernel_sequence()))
            if late := late_builds(left_out):
                print(f"tests: what needs them comes last: {', '.join(late)}", flush=True)
                os.environ[LATE_VARIABLE] = "1"
            run = run_tests(*options, *options_given())
        outcomes += [outcome for one in sequences for outcome in one.result()]
    return judged(run, outcomes)


def commit() -> str:
    """The commit that is tested, with a ``+`` where files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "no commit") + ("+" if changed else "")


def options_given() -> list[str]:
    """What is meant for pytest."""
    return [option for option in sys.argv[1:] if option not in (QUICK, ANEW)]


def main() -> int:
    started, processors = time.time(), Processors()
    os.environ[RUN_VARIABLE] = f"{started:.0f}-{os.getpid()}"
    before = max(0.0, started - float(os.environ.get(STARTED_VARIABLE, started)))
    kept, compiled = kept_modules.place(), kept_modules.compiled_folder()
    kept_modules.bring(kept, compiled)
    missing = [] if QUICK in sys.argv else missing_tools()
    for marker, why in missing:
        print(f"tests: the {marker} tests are left out: {why}")
    if missing and os.environ.get("CI") == "true":
        print("tests: CI=true, so nothing may be left out")
        return 1
    outcomes = [StepOutcome("set-up", True, before, "")]
    with ThreadPoolExecutor(QUICK_AT_ONCE) as pool:
        outcomes += pool.map(run_step, quick_checks())
    if failed_quick := [outcome for outcome in outcomes if not outcome.succeeded]:
        print(*(f"tests: {outcome}" for outcome in failed_quick), sep="\n")
        return 1
    result = run_quick() if QUICK in sys.argv else run_all(missing)
    outcomes += result.outcomes
    if QUICK not in sys.argv:
        kept_modules.keep(kept, compiled)
    for outcome in outcomes:
        print(f"tests: {outcome}")
    counted = sum(outcome.used for outcome in outcomes)
    used = used_so_far()
    print(f"tests: {used:.0f} s of a processor, {used - counted:.0f} of them in builds")
    if line := processors.line():
        print(f"tests: {line}")
    seconds = before + time.time() - started
    failed = [outcome.name for outcome in outcomes if not outcome.succeeded]
    if QUICK not in sys.argv:
        runs = Runs(ROOT / ".cache" / "runs.json")
        runs.note(commit(), seconds, result.verdict, (name for name in failed if name != "pytest"))
        for line in runs.lines():
            print(f"tests: {line}")
    for failure in result.verdict.flaky:
        print(f"tests: flaky: {failure.name}: {failure.text}"[:FAILED_COLUMNS])
    flaky = f", {len(result.verdict.flaky)} flaky" if result.verdict.flaky else ""
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"tests: {seconds / 60:.1f} min, {verdict}{flaky}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
