"""Every check of the source text: formatting, types, structure, generated files. One line each.

    python tools/run_lint.py [--python]

``--python`` leaves out the kernel's checks, which need cargo.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from steps import BIN, ROOT, Step, StepOutcome, has_rust, sequence

sys.path.insert(0, str(ROOT))

from tests.support.kept import kept_folder

__all__ = ["built_checks", "kernel_checks", "public_checks", "quick_checks", "types_of_source"]

PYTHON_FOLDERS = ("src", "tests", "tools", "benchmarks")

KEEPS_TYPES = {"MYPY_CACHE_DIR": str(kept_folder("mypy"))}
"""What mypy knows of a file holds for the same file of another checkout."""


def quick_checks() -> list[Step]:
    """What takes a second: it comes first."""
    ruff = str(BIN / "ruff")
    return [
        Step("ruff check", [ruff, "check", "--quiet", *PYTHON_FOLDERS]),
        Step("ruff format", [ruff, "format", "--check", "--quiet", *PYTHON_FOLDERS]),
        Step("codespell", [str(BIN / "codespell")]),
        Step("words", [sys.executable, "tools/words.py"]),
        Step("imports go down only", [str(BIN / "lint-imports"), "--no-cache"]),
        Step("kernel modules use down only", [sys.executable, "tools/rust_modules.py"]),
        Step("blocking clients are fresh", [sys.executable, "tools/generate_sync.py", "--check"]),
        Step("stubs of names are fresh", [sys.executable, "tools/generate_names.py", "--check"]),
        Step("gRPC messages are fresh", [sys.executable, "tools/generate_grpc.py", "--check"]),
        Step("native table is fresh", [sys.executable, "tools/generate_rust.py", "--check"]),
        Step("stub is fresh", [sys.executable, "tools/generate_stub.py", "--check"]),
    ]


def types_of_source() -> list[Step]:
    """Types of the packages alone."""
    return [Step("mypy strict", [str(BIN / "mypy")], environment=KEEPS_TYPES)]


def public_checks() -> list[Step]:
    """Types of public names, where there is what pyright is written for; it would download one."""
    if shutil.which("node") is None:
        return []
    return [Step("public types", [sys.executable, "tools/check_public_types.py"])]


def built_checks() -> list[Step]:
    """All types, some of which depend on the built kernel, or on its absence."""
    # One run: most of the time of a second one would go into what the first has read.
    mypy = [str(BIN / "mypy"), *PYTHON_FOLDERS]
    steps = [Step("mypy strict, on tests too", mypy, environment=KEEPS_TYPES)]
    if find_spec("kerolox_kernel") is not None:
        stubtest = [sys.executable, "-m", "mypy.stubtest", "kerolox_kernel"]
        steps.append(Step("stub of the kernel", stubtest, environment=KEEPS_TYPES))
    return steps


def kernel_checks() -> list[Step]:
    """The checks of the Rust text; none where cargo is not."""
    if not has_rust():
        return []
    clippy = ["cargo", "clippy", "--quiet", "--all-targets", "--", "-D", "warnings"]
    kernel = ROOT / "kernel"
    steps = [
        Step("rustfmt", ["cargo", "fmt", "--check"], kernel),
        Step("clippy pedantic", clippy, kernel),
    ]
    if shutil.which("cargo-deny") is not None:  # advisories are for CI: they need the network
        deny = ["cargo", "deny", "--offline", "check", "licenses", "bans", "sources"]
        steps.append(Step("dependencies of the kernel", deny, kernel))
    return steps


def main() -> int:
    def report(outcome: StepOutcome) -> None:
        print(f"lint: {outcome}", flush=True)

    kernel = [] if "--python" in sys.argv[1:] else kernel_checks()
    if not kernel and not has_rust():
        print("lint: cargo is not here; the kernel's checks (clippy, rustfmt) are left out")
    with ThreadPoolExecutor() as pool:
        python = [*quick_checks(), *public_checks(), *built_checks()]
        sequences = [sequence(pool, python, report), sequence(pool, kernel, report)]
    failed = [each.name for one in sequences for each in one.result() if not each.succeeded]
    if failed:
        print(f"lint: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
