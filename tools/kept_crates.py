"""What cargo has built for the kernel's checks, kept for the next checkout.

    python tools/kept_crates.py bring
    python tools/kept_crates.py keep

``bring`` copies it into ``kernel/target`` where that has none; ``keep`` copies it from there.
Crates of others are most of it, and are kept by lock file, profiles and compiler
(``tests/support/kept.py``). With our own crates it is kept by the path of the checkout, which they
hold, and by the state of all that the checks read. Cargo goes by the times of sources, so a fresh
checkout gets those that its sources had.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from passed import compiler, kernel_files, state_of
from steps import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.kept import digest_of, forget_old, kept_folder

__all__ = ["TARGET", "Whole", "bring", "keep", "place"]

KERNEL = ROOT / "kernel"
TARGET = KERNEL / "target"
PROFILES = ("debug", "suite", "release")
"""Folders of ``kernel/target``: by clippy, by the kernel's tests and by `install_kernel.py`."""

OWN = "kerolox"
"""What is in the name of all that is built of our own crates: their paths are the checkout's."""

KEPT_MAX = 2
"""Of lock files, and of checkouts with their sources: each some 450 MB."""

TIMES = "times.json"
"""When each source was written, in nanoseconds."""

Ignore = Callable[[str, list[str]], Iterable[str]]


def place() -> Path:
    """Where crates of others are kept for these dependencies and this compiler."""
    files = [KERNEL / "Cargo.lock", KERNEL / "Cargo.toml"]
    return kept_folder("crates") / digest_of(files, KERNEL, compiler())[:16]


def own_and_incremental(folder: str, names: list[str]) -> list[str]:
    """Of a folder, what is not kept for other checkouts."""
    return [name for name in names if OWN in name or name == "incremental"]


def copy(source: Path, target: Path, ignore: Ignore = own_and_incremental) -> None:
    """Copy a folder with its times to one that is not there; who is first makes it."""
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as fresh:
        copied = Path(fresh) / target.name
        shutil.copytree(source, copied, symlinks=True, ignore=ignore)
        if not target.exists():
            copied.rename(target)


def bring(kept: Path, target: Path) -> None:
    """Put what is kept where cargo looks for it."""
    for profile in PROFILES:
        copy(kept / profile, target / profile)
    if kept.exists():
        os.utime(kept)


def keep(kept: Path, target: Path) -> None:
    """Keep what cargo has built, and forget what was used least lately."""
    for profile in PROFILES:
        copy(target / profile, kept / profile)
    forget_old(kept.parent.iterdir(), KEPT_MAX)


class Whole:
    """All that cargo has built in a checkout, with our own crates."""

    def __init__(self, kernel: Path, sources: Sequence[Path], state: str) -> None:
        """``kernel``: the folder of the crates; ``sources``: its files; ``state``: of all that its
        checks read."""
        checkout = hashlib.sha256(str(kernel).encode()).hexdigest()
        self._kernel, self._sources = kernel, sources
        self._kept = kept_folder("targets") / f"{checkout[:16]}-{state[:16]}"

    def bring(self) -> None:
        """Put it where cargo looks for it, and give the sources their times."""
        times = self._kept / TIMES
        if (self._kernel / "target").exists() or not times.exists():
            return
        copy(self._kept / "target", self._kernel / "target", shutil.ignore_patterns())
        for name, nanoseconds in json.loads(times.read_text()).items():
            os.utime(self._kernel / name, ns=(nanoseconds, nanoseconds))
        os.utime(self._kept)

    def keep(self) -> None:
        """Keep it where nothing is kept for these sources."""
        target = self._kernel / "target"
        if (self._kept / TIMES).exists():
            return
        copy(target, self._kept / "target", shutil.ignore_patterns("incremental", "release"))
        times = {
            str(path.relative_to(self._kernel)): path.stat().st_mtime_ns for path in self._sources
        }
        (self._kept / TIMES).write_text(json.dumps(times))
        forget_old(self._kept.parent.iterdir(), KEPT_MAX)


if __name__ == "__main__":
    read = list(kernel_files())
    own = [path for path in read if path.is_relative_to(KERNEL)]
    whole = Whole(KERNEL, own, state_of(read, compiler(), os.environ))
    if sys.argv[1] == "bring":
        whole.bring()
        bring(place(), TARGET)
    else:
        keep(place(), TARGET)
        whole.keep()
