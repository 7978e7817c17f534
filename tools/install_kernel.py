"""Install the native kernel into this environment, built once for the same sources.

The wheel stays in ``$XDG_CACHE_HOME/kerolox/kernels`` (``~/.cache``), under a hash of the sources,
of the compiler and of its flags. Another checkout of the same sources takes it from there, and
`build_dist.py` publishes it: a build costs minutes of a processor. Where it has to be built, what
cargo made of the crates of others is taken over and kept (`kept_crates.py`).

It is for every CPython from 3.11 on (abi3); its tag names the oldest glibc that its symbols allow.

    python tools/install_kernel.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kept_crates import TARGET, bring, keep, place
from passed import compiler, kernel_files, state_of
from steps import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.kept import forget_old, kept_folder

__all__ = ["kernel_wheel"]

FLAGS = "--locked --compatibility pypi"
"""Of maturin."""

WHEELS_MAX = 8
"""Those that were made last; older ones go."""


def wheel_folder() -> Path:
    """Where the wheel of these sources is, or is to be."""
    sources = [path for path in kernel_files() if path.suffix != ".xz"]
    return kept_folder("kernels") / state_of(sources, compiler(), os.environ, [[FLAGS]])


def build(folder: Path) -> None:
    """Make the wheel; nobody finds a folder without one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MATURIN_PEP517_ARGS": FLAGS}
    bring(place(), TARGET)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made)
        subprocess.run((*PIP, "wheel", *options, str(ROOT / "kernel")), check=True, env=environment)
        if not folder.exists():  # another checkout may have made it meanwhile
            shutil.copytree(made, f"{made}.whole")
            Path(f"{made}.whole").rename(folder)
    keep(place(), TARGET)
    forget_old(folder.parent.iterdir(), WHEELS_MAX)


PIP = (sys.executable, "-m", "pip")


def kernel_wheel() -> Path:
    """The wheel of these sources, built where it is not there yet.

    Raises:
        subprocess.CalledProcessError: it can't be built; the output says why.
    """
    folder = wheel_folder()
    if folder.exists():
        print("setup: the native kernel of these sources was built before")
    else:
        print("setup: building the native kernel", flush=True)
        build(folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def main() -> int:
    options = ("--quiet", "--no-compile", "--no-deps", "--no-index", "--force-reinstall")
    try:
        subprocess.run((*PIP, "install", *options, str(kernel_wheel())), check=True)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
