"""Run an example as a program of its own: ``python -m tests.docs.run_example FOLDER FILE``."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(folder: str, file: str) -> None:
    """In that folder, from where it also imports."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    exec(compile(Path(file).read_text(), file, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main(*sys.argv[1:])
