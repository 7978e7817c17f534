"""Every benchmark, one after the other, with its own defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = [
    *("startup.py", "against_java.py", "sync_flush.py", "steady.py", "recovery.py", "scale.py"),
    *("fan_out.py", "idle.py", "delay.py", "spark_read.py"),
]


def main() -> int:
    status = 0
    for script in SCRIPTS:
        print(f"== {script}", flush=True)
        status |= subprocess.run([sys.executable, str(HERE / script)]).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
