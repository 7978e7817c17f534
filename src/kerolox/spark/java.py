"""Find the Java that Spark needs, or say how to get one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from kerolox.errors import ConfigError

JAVA_VERSION_MIN = 17
ANSWER_SECONDS_MAX = 60.0

_ADVICE = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer; install it (Debian, Ubuntu: apt-get install "
    "openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; macOS: brew install "
    "openjdk@17) and put it on the PATH or set JAVA_HOME"
)


def require_java() -> str:
    """The java that Spark will run: that of ``JAVA_HOME``, else the one on the path. ConfigError:
    there is none, it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise ConfigError(f"{where}; {_ADVICE}")
    try:
        shown = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} can't be run: {error}; {_ADVICE}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if found is None:
        raise ConfigError(f"{java} -version does not report a version; {_ADVICE}")
    if int(found.group(1)) < JAVA_VERSION_MIN:
        raise ConfigError(f"{java} is Java {found.group(1)}; {_ADVICE}")
    return java
