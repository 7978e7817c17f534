"""Build what is published: an sdist and a wheel of kerolox, and with cargo those of kerolox-kernel.

    python tools/build_dist.py [--out dist] [--only kerolox|kerolox-kernel]

The wheel of kerolox is built from its sdist, so that both hold the same. The wheel of the kernel is
the one that ``make setup`` installs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from install_kernel import kernel_wheel
from steps import ROOT, has_rust

sys.path.insert(0, str(ROOT))

from tests.support.unpacked import unpack_archive

BIN = Path(sys.executable).parent


def build_kerolox(out: Path) -> None:
    """The sdist, then from it the wheel."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)], ROOT)
    [sdist] = out.glob("kerolox-*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="kerolox-dist-") as folder:
        with tarfile.open(sdist) as archive:
            unpack_archive(archive, folder)
        [source] = Path(folder).iterdir()
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], source)


def build_kernel(out: Path) -> None:
    """The sdist and the wheel."""
    manifest = str(ROOT / "kernel" / "py" / "Cargo.toml")
    run([str(BIN / "maturin"), "sdist", "-m", manifest, "-o", str(out)], ROOT)
    try:
        shutil.copy2(kernel_wheel(), out)
    except subprocess.CalledProcessError as error:
        raise SystemExit(str(error)) from None


def run(command: list[str], folder: Path) -> None:
    """Run it; what it says is shown when it fails."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", choices=["kerolox", "kerolox-kernel"])
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("kerolox*"):
        old.unlink()
    if chosen.only != "kerolox-kernel":
        build_kerolox(out)
    if chosen.only != "kerolox" and not has_rust():
        print("dist: cargo is not here, so kerolox-kernel is left out; install Rust (rustup)")
    elif chosen.only != "kerolox":
        build_kernel(out)
    for file in sorted(out.iterdir()):
        print(f"dist: {file.stat().st_size / 1024:7.0f} KiB  {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
