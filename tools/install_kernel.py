"""Install the native kernel into this environment, built once for the same sources.

The wheel stays in ``$XDG_CACHE_HOME/kerolox/kernels`` (``~/.cache``), under a hash of the sources,
of the compiler and of its flags. Another checkout of the same sources takes it from there: a build
costs minutes of a processor.

    python tools/install_kernel.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from passed import compiler, kernel_files, state_of
from steps import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.kept import forget_old, kept_folder

WHEELS_MAX = 8
"""Those that were made last; older ones go."""


def wheel_folder() -> Path:
    """Where the wheel of these sources is, or is to be."""
    sources = [path for path in kernel_files() if path.suffix != ".xz"]
    return kept_folder("kernels") / state_of(sources, compiler(), os.environ)


def build(folder: Path) -> None:
    """Make the wheel; nobody finds a folder without one.

    Raises:
        subprocess.CalledProcessError: it can't be built; the output says why.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made)
        subprocess.run((*PIP, "wheel", *options, str(ROOT / "kernel")), check=True)
        if not folder.exists():  # another checkout may have made it meanwhile
            shutil.copytree(made, f"{made}.whole")
            Path(f"{made}.whole").rename(folder)
    forget_old(folder.parent.iterdir(), WHEELS_MAX)


PIP = (sys.executable, "-m", "pip")


def main() -> int:
    folder = wheel_folder()
    try:
        if folder.exists():
            print("setup: the native kernel of these sources was built before")
        else:
            print("setup: building the native kernel", flush=True)
            build(folder)
        options = ("--quiet", "--no-compile", "--no-deps", "--no-index", "--force-reinstall")
        subprocess.run((*PIP, "install", *options, *map(str, folder.glob("*.whl"))), check=True)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
