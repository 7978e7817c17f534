"""What cargo has built of the crates that the kernel uses, kept for the next checkout.

    python tools/kept_crates.py bring
    python tools/kept_crates.py keep

They are most of what the kernel's checks build in a fresh checkout. ``bring`` copies them into
``kernel/target`` where that has none; ``keep`` copies them from there. They are kept by lock file,
profiles and compiler (``tests/support/kept.py``).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from passed import compiler
from steps import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.kept import digest_of, forget_old, kept_folder

__all__ = ["TARGET", "bring", "keep", "place"]

KERNEL = ROOT / "kernel"
TARGET = KERNEL / "target"
PROFILES = ("debug", "suite", "release")
"""Folders of ``kernel/target``: by clippy, by the kernel's tests and by `install_kernel.py`."""

OWN = "kerolox"
"""What is in the name of all that is built of our own crates: their paths are the checkout's."""

KEPT_MAX = 2
"""Of lock files, each some 450 MB."""


def place() -> Path:
    """Where they are kept for these dependencies and this compiler."""
    files = [KERNEL / "Cargo.lock", KERNEL / "Cargo.toml"]
    return kept_folder("crates") / digest_of(files, KERNEL, compiler())[:16]


def left_out(folder: str, names: list[str]) -> list[str]:
    """Of a folder, what is not kept."""
    return [name for name in names if OWN in name or name == "incremental"]


def copy(source: Path, target: Path) -> None:
    """Copy a folder with its times to one that is not there; who is first makes it."""
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as fresh:
        copied = Path(fresh) / target.name
        shutil.copytree(source, copied, symlinks=True, ignore=left_out)
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


if __name__ == "__main__":
    {"bring": bring, "keep": keep}[sys.argv[1]](place(), TARGET)
