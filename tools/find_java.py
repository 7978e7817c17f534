"""Find a Java runtime for Spark, or say how to get one. Exit status 1 when there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_MAJOR_MIN = 17


def find_java() -> tuple[str | None, str]:
    """(path of a java that is new enough or None, what was found)."""
    home = os.environ.get("JAVA_HOME")
    candidate = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if candidate is None or not Path(candidate).exists():
        return None, "no java on the PATH and no JAVA_HOME"
    try:
        shown = subprocess.run([candidate, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{candidate} can't be run: {error}"
    match = re.search(r'version "(\d+)', shown.stderr)
    if match is None or int(match.group(1)) < JAVA_MAJOR_MIN:
        return None, f"{candidate} is older than {JAVA_MAJOR_MIN}: {shown.stderr.splitlines()[:1]}"
    return candidate, f"Java {match.group(1)} at {candidate}"


def main() -> int:
    path, found = find_java()
    if path is None:
        print(f"Spark needs Java {JAVA_MAJOR_MIN} or newer: {found}.", file=sys.stderr)
        print(
            "Install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew "
            "install openjdk@17) or set JAVA_HOME, then try again.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
