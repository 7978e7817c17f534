"""Every benchmark, one after the other, with its own defaults; then the picture of the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = [
    *("startup.py", "against_java.py", "sync_flush.py", "steady.py", "recovery.py", "scale.py"),
    *(
        "fan_out.py",
        "several.py",
        "replication.py",
        "idle.py",
        "bursts.py",
        "consumer_memory.py",
        "delay.py",
        "scrapes.py",
        "spark_read.py",
    ),
]


def main() -> int:
    status = 0
    for script in SCRIPTS:
        print(f"== {script}", flush=True)
        saved = ["--save", str(HERE / "results.json")] if script == "against_java.py" else []
        status |= subprocess.run([sys.executable, str(HERE / script), *saved]).returncode
    status |= subprocess.run([sys.executable, str(HERE / "draw.py")]).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
