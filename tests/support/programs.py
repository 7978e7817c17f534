"""Builds the Java, Go and Node.js client programs once per checkout, into ``.cache/interop``."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

__all__ = [
    "build_go_clients",
    "build_java_clients",
    "build_java_version",
    "build_node_clients",
    "build_spring",
    "java_command",
    "java_of",
]

SOURCES = Path(__file__).resolve().parents[1] / "interop"
CACHE = SOURCES.parents[1] / ".cache" / "interop"
BUILD_SECONDS_MAX = 600
MAVEN = ("mvn", "-B", "-q", "-ntp")


def _newest(folder: Path) -> float:
    files = [path for path in folder.rglob("*") if path.is_file() and "target" not in path.parts]
    return max(path.stat().st_mtime for path in files)


def _build(
    name: str,
    command: list[str],
    *,
    marker: str,
    label: str = "",
    left_out: tuple[str, ...] = (),
) -> Path:
    """Copy a source folder into the cache and build it there, unless that was done already.

    Args:
        name: the source folder; the built one is ``label``, or has the same name.
        command: what builds it.
        marker: a file that says that it is built.
        left_out: names of files that are no part of this build.
    """
    source, built = SOURCES / name, CACHE / (label or name.replace("/", "-"))
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{built.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = built / marker
        if stamp.exists() and stamp.stat().st_mtime >= _newest(source):
            return built
        shutil.rmtree(built, ignore_errors=True)
        shutil.copytree(source, built, ignore=shutil.ignore_patterns("target", *left_out))
        done = subprocess.run(
            command, cwd=built, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
        )
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
        stamp.touch()
        return built


def build_java_clients() -> Path:
    """Folder with ``target/classes`` and ``target/lib`` (all of 4.9 in Java, through Maven)."""
    return _build("java/clients", [*MAVEN, "process-classes"], marker="built")


def build_java_version(version: str, left_out: tuple[str, ...]) -> Path:
    """As above: the scenarios of ``versions`` with the client and tools of a version."""
    command = [*MAVEN, f"-Drocketmq.version={version}", "process-classes"]
    return _build(
        "java/versions", command, marker="built", label=f"versions-{version}", left_out=left_out
    )


def build_spring(version: str) -> Path:
    """As above: the Spring application with the starter of a version."""
    command = [*MAVEN, f"-Dstarter.version={version}", "process-classes"]
    return _build("java/spring", command, marker="built", label=f"spring-{version}")


def java_command(main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a class of the Java clients, name server or broker."""
    return java_of(build_java_clients(), main_class, *arguments, options=options)


def java_of(
    built: Path, main_class: str, *arguments: str, options: tuple[str, ...] = ()
) -> list[str]:
    """The command that runs a class of a folder that Maven built."""
    target = built / "target"
    classpath = f"{target / 'classes'}:{target / 'lib'}/*"
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    java.append("-Drocketmq.client.logLevel=ERROR")
    # A client that hangs up when an answer is late leaves its groups for a while.
    java.append("-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false")
    # fastjson and the broker reflect into these on newer runtimes
    opened = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    java += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened]
    java.append("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED")
    return [*java, *options, "-cp", classpath, main_class, *arguments]


def build_go_clients() -> Path:
    """The Go program's binary."""
    return _build("go", ["go", "build", "-o", "interop", "."], marker="interop") / "interop"


def build_node_clients() -> Path:
    """The Node.js program, with the client that its lock file names beside it."""
    command = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    return _build("node", command, marker="built") / "main.js"
