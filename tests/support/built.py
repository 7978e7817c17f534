"""Libraries in C that tests load into processes, built by the first test that needs them."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

__all__ = ["LIBRARIES", "built"]

LIBRARIES = tuple(sorted(Path(__file__).parent.glob("*/*.c")))
"""The C files of all of them."""

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "built"


def built(source: Path) -> Path:
    """The library of a C file, built when it is missing or older than that."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    library = _CACHE / f"{source.stem}.so"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists() or library.stat().st_mtime_ns < source.stat().st_mtime_ns:
            fresh = _CACHE / f"{source.stem}.{os.getpid()}.so"
            command = ["cc", "-O1", "-Wall", "-fPIC", "-shared", "-o", str(fresh), str(source)]
            subprocess.run([*command, "-ldl"], check=True)
            fresh.replace(library)
    return library
