"""Another PySpark than the locked one, by ``KEROLOX_PYSPARK=4.1``; kept in ``.cache``."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["OTHER_VERSIONS", "PATH_VARIABLE", "VARIABLE", "use_pyspark"]

OTHER_VERSIONS = ("4.1", "4.3")
"""That the ``pyspark`` range has beside the locked one."""

VARIABLE = "KEROLOX_PYSPARK"
"""A version, whole or its beginning; not set: the installed one."""

PATH_VARIABLE = "KEROLOX_PYSPARK_PATH"
"""For the processes that tests start: where that version is."""

CACHE = Path(__file__).resolve().parents[2] / ".cache"
BUILD_SECONDS_MAX = 1200


def use_pyspark(version: str) -> Path:
    """Let this process and those that it starts import that version; its folder.

    It is installed when it is not there yet: a download of 450 MB, and a minute.
    """
    folder = _installed(version)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), *paths]))
    os.environ[PATH_VARIABLE] = str(folder)
    return folder


def _installed(version: str) -> Path:
    CACHE.mkdir(exist_ok=True)
    folder = CACHE / f"pyspark-{version}"
    stamp = folder / "installed"
    with (CACHE / f"pyspark-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
            if index := os.environ.get("PIP_INDEX_URL"):
                uv += ["--default-index", index]
            done = subprocess.run(
                [*uv, "--target", str(folder), f"pyspark=={version}.*"],
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS_MAX,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            stamp.touch()
    return folder
