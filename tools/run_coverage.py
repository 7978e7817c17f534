"""Which lines the tests run: of Python with coverage.py, of Rust with LLVM's tools.

    python tools/run_coverage.py [PYTEST OPTION ...]

Without options the tests that need no other runtime and start no Spark, or the folders that
``KEROLOX_COVERAGE`` names. Rust needs cargo and ``rustup component add llvm-tools``: an engine that
counts takes the built one's place for these tests, and the engine's own tests are counted, too.
Reports in lines: ``.cache/coverage/python`` and ``.cache/coverage/rust`` (HTML).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from steps import has_rust

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".cache" / "coverage"
KERNEL = ROOT / "kernel"
TARGET = KERNEL / "target" / "coverage"
PARTS = "tests/unit tests/kernel tests/property tests/golden tests/contract tests/cli"
NO_RUNTIME = "not java and not go and not node and not spark"


def llvm_tools() -> Path | None:
    """The folder of the toolchain's own llvm-cov; another LLVM can't read its files."""
    if not has_rust():
        return None
    done = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    found = sorted(Path(done.stdout.strip()).glob("lib/rustlib/*/bin/llvm-cov"))
    return found[0].parent if found else None


def rust_environment() -> dict[str, str]:
    """For cargo and for all that runs what it built."""
    return {
        **os.environ,
        "RUSTFLAGS": "-C instrument-coverage",
        "LLVM_PROFILE_FILE": str(OUT / "profiles" / "%p-%m.profraw"),
        "CARGO_TARGET_DIR": str(TARGET),
    }


def cargo(*arguments: str) -> list[Path]:
    """Run cargo on the instrumented crates; the programs and libraries that it made."""
    command = ["cargo", *arguments, "--message-format=json"]
    done = subprocess.run(
        command, cwd=KERNEL, env=rust_environment(), stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    made = []
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact":
            files = [message.get("executable"), *message.get("filenames", ())]
            made += [Path(file) for file in files if file and not file.endswith((".rlib", ".d"))]
    return [path for path in dict.fromkeys(made) if path.suffix in ("", ".so", ".dylib")]


def instrumented_engine() -> tuple[Path, Path]:
    """A folder with an instrumented ``kerolox_kernel``, and its library."""
    libraries = cargo("build", "-p", "kerolox-kernel")
    [library] = [each for each in libraries if each.stem == "libkerolox_kernel"]
    package = OUT / "engine" / "kerolox_kernel"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(KERNEL / "py" / "python" / "kerolox_kernel", package)
    copied = package / "_kernel.abi3.so"
    shutil.copy(library, copied)
    return package.parent, copied


def rust_report(tools: Path, objects: list[Path]) -> str:
    """The share of lines as text; writes the report."""
    profiles = sorted(str(path) for path in (OUT / "profiles").glob("*.profraw"))
    merged = OUT / "rust.profdata"
    merge = [str(tools / "llvm-profdata"), "merge", "-sparse", "-o", str(merged)]
    (OUT / "profiles.txt").write_text("\n".join(profiles))
    subprocess.run([*merge, "-f", str(OUT / "profiles.txt")], check=True)
    named = [argument for path in objects for argument in ("-object", str(path))]
    common = ["-instr-profile", str(merged), *named, "-ignore-filename-regex", "/(tests|registry)/"]
    sources = [str(KERNEL / "core" / "src"), str(KERNEL / "py" / "src")]
    show = [str(tools / "llvm-cov"), "show", "-format=html", "-output-dir", str(OUT / "rust")]
    subprocess.run([*show, *common, "-sources", *sources], check=True, stdout=subprocess.DEVNULL)
    export = [str(tools / "llvm-cov"), "export", "-summary-only", *common, "-sources", *sources]
    done = subprocess.run(export, check=True, capture_output=True, text=True)
    lines = json.loads(done.stdout)["data"][0]["totals"]["lines"]
    return f"{lines['percent']:.1f} % of {lines['count']} lines"


def python_report() -> str:
    """The share of lines and branches as text; writes the report."""
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "html", "-q", "-d", str(OUT / "python")], cwd=ROOT, check=True)
    command = [*coverage, "json", "-q", "-o", str(OUT / "python.json")]
    subprocess.run(command, cwd=ROOT, check=True)
    totals = json.loads((OUT / "python.json").read_text())["totals"]
    return (
        f"{totals['percent_covered']:.1f} % of {totals['num_statements']} statements and branches"
    )


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "profiles").mkdir(parents=True)
    tools, objects, environment = llvm_tools(), [], dict(os.environ)
    if tools is None:
        print("coverage: no Rust; it needs cargo and: rustup component add llvm-tools")
    else:
        folder, library = instrumented_engine()
        objects = [library, *cargo("test", "-p", "kerolox-core", "--lib", "--tests")]
        environment = rust_environment() | {"PYTHONPATH": str(folder)}
    chosen = sys.argv[1:] or [
        *os.environ.get("KEROLOX_COVERAGE", PARTS).split(),
        *("-n", "auto", "--dist", "loadgroup", "-m", NO_RUNTIME),
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:kerolox",
        "--cov",
        "--cov-report=",
        *chosen,
    ]
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    print(f"coverage: Python {python_report()}")
    if tools is not None:
        print(f"coverage: Rust   {rust_report(tools, objects)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
