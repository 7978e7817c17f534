"""Builds the Java, Go and Node.js client programs, once for the same sources on a machine.

`tests.support.prepared` lists them, so that a run makes them before the tests that need them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.support.kept import digest_of, forget_old, kept_folder

__all__ = [
    "JAVA_VERSIONS",
    "QUICK_JAVA",
    "RUNS_ALL",
    "RUN_STARTERS",
    "RUN_VARIABLE",
    "RUN_VERSIONS",
    "SPRING_STARTERS",
    "build_axe",
    "build_broker_53",
    "build_cpp_client",
    "build_frameworks",
    "build_go_clients",
    "build_go_grpc_client",
    "build_go_tls_clients",
    "build_java",
    "build_java_grpc_client",
    "build_mqadmin_46",
    "build_node_clients",
    "build_node_grpc_client",
    "build_oidc_provider",
    "build_proxy",
    "build_proxy_53",
    "build_python_clients",
    "build_python_grpc_client",
    "build_rust_client",
    "build_rust_grpc_client",
    "classes_of",
    "is_built",
    "java_by_grpc",
    "java_command",
    "java_of",
]

SOURCES = Path(__file__).resolve().parents[1] / "interop"
CACHE = kept_folder("programs")
KEPT_MAX = 4
"""Of each program, made of other sources."""

BUILD_SECONDS_MAX = 600
RUST_SECONDS_MAX = 1_800
"""The Rust client brings 360 crates."""

RUN_VARIABLE = "KEROLOX_RUN"
"""A name of the run of all tests that this process belongs to: what failed to build in it is not
built again."""

MAVEN = ("mvn", "-B", "-q", "-ntp", "process-classes")
MAVEN_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

QUICK_JAVA = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
    *("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"),
)
"""Options of a Java process that lives for a minute: quickly compiled code, no second check of the
jars' bytecode, and no word of shared classes that do not fit."""

COARSE_TIMERS = Path(__file__).with_name("coarse_timers.sh")
"""What a Java program is started by."""

RUNS_ALL = os.environ.get("KEROLOX_SOFTWARE") == "all"
"""Whether all versions run, and all contract tests, against the Java broker too; it takes some ten
minutes."""

PIP = (
    *(sys.executable, "-m", "pip", "install", "-q"),
    *("--no-deps", "--target", ".", "-r", "requirements.txt"),
)

JAVA_VERSIONS = {
    "5.5.0": ("Basics", "Since43", "Since46", "Since5", "Since53"),
    "5.3.3": ("Basics", "Since43", "Since46", "Since5", "Since53"),
    "5.1.4": ("Basics", "Since43", "Since46", "Since5"),
    "4.7.1": ("Basics", "Since43", "Since46"),
    "4.5.2": ("Basics", "Since43"),
    "4.2.0": ("Basics", "Before43"),
}
"""The sources of ``java/versions`` that compile with a version of client and tools."""
SPRING_STARTERS = ("2.3.5", "2.2.3")

RUN_VERSIONS = tuple(JAVA_VERSIONS) if RUNS_ALL else ("5.5.0", "4.2.0")
RUN_STARTERS = SPRING_STARTERS if RUNS_ALL else SPRING_STARTERS[:1]

JAVA_PROGRAMS = (
    "clients",
    *(f"versions-{version}" for version in RUN_VERSIONS),
    *(f"spring-{version}" for version in RUN_STARTERS),
)
"""Folders in ``java``, with the version that the program is built with."""

PARTS = {"java": JAVA_PROGRAMS}
"""What has to be in a program; a build with others is another one."""


def _place_of(name: str) -> Path:
    """Where a program is, or is to be: another one for other sources, parts or interpreter."""
    source = SOURCES / name
    files = [path for path in source.rglob("*") if path.is_file() and "target" not in path.parts]
    more = (sys.implementation.cache_tag or "", *PARTS.get(name, ()))
    return CACHE / f"{name}-{digest_of(files, source, ' '.join(more))[:16]}"


def _copy(source: Path, built: Path) -> None:
    shutil.copytree(source, built, ignore=shutil.ignore_patterns("target"))


def is_built(name: str) -> bool:
    """Whether the cache has a program, with its parts and made of its sources as they are."""
    return (_place_of(name) / "built").exists()


def _build(
    name: str,
    *command: str,
    copy: Callable[[Path, Path], None] = _copy,
    seconds: float = BUILD_SECONDS_MAX,
    **environment: str,
) -> Path:
    """Copy a source folder into the cache and build it there, unless that was done already.

    Args:
        name: the source folder, and the built one.
        command: what builds it.
        copy: what copies it.
        seconds: how long it may take.
        environment: more variables for the command.
    """
    source, built = SOURCES / name, _place_of(name)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (built / "built").exists():
            os.utime(built)
            return built
        failed = CACHE / f"{name}.failed"
        run = os.environ.get(RUN_VARIABLE)
        if run and failed.exists() and failed.read_text().startswith(f"{run}\n"):
            raise AssertionError(failed.read_text())  # each try would take as long again
        shutil.rmtree(built, ignore_errors=True)
        copy(source, built)
        failed.write_text(f"{run}\n{command} did not end in {seconds:g} s")
        done = subprocess.run(
            command,
            cwd=built,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, **environment},
        )
        told = f"{command} failed:\n{done.stdout}\n{done.stderr}"
        failed.write_text(f"{run}\n{told}")
        assert done.returncode == 0, told
        failed.unlink()
        (built / "built").touch()
        forget_old(CACHE.glob(f"{name}-{'[0-9a-f]' * 16}"), KEPT_MAX)
        return built


def _copy_java(source: Path, built: Path) -> None:
    """Give each program a folder of its own for each version, and name them in the parent."""
    for program in JAVA_PROGRAMS:
        name, _, version = program.partition("-")
        _copy(source / name, built / program)
        if version:
            pom = built / program / "pom.xml"
            text = pom.read_text()
            found = re.search(rf"<artifactId>{name}-([^<]+)<", text)
            assert found is not None, f"{source / name} names no version in its artifact"
            pom.write_text(text.replace(found[1], version))
    every = {name for names in JAVA_VERSIONS.values() for name in names}
    for version in RUN_VERSIONS:
        folder = built / f"versions-{version}" / "src" / "main" / "java" / "versions"
        for left_out in every.difference(JAVA_VERSIONS[version]):
            (folder / f"{left_out}.java").unlink()
    modules = "".join(f"<module>{program}</module>" for program in JAVA_PROGRAMS)
    parent = (source / "pom.xml").read_text()
    parent = re.sub("<modules>.*</modules>", f"<modules>{modules}</modules>", parent, flags=re.S)
    (built / "pom.xml").write_text(parent)


def build_java(program: str = "clients") -> Path:
    """Folder with ``target/classes`` and ``target/lib`` of a program.

    One run of Maven builds all of them: most of its work is its own start.
    """
    built = _build("java", *MAVEN, copy=_copy_java, MAVEN_OPTS=MAVEN_OPTIONS)
    return built / program


def java_command(main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a class of the Java clients, name server or broker."""
    return java_of(build_java(), main_class, *arguments, options=options)


def java_of(
    built: Path,
    main_class: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    classes: Path | None = None,
) -> list[str]:
    """The command that runs a class of a folder that Maven built.

    Args:
        built: that folder.
        main_class: the class.
        arguments: of the program.
        options: of Java.
        classes: another such folder whose classes come first, without its libraries.
    """
    folders = dict.fromkeys(each for each in (classes, built) if each is not None)
    jars = [str(_jar_of(each)) for each in folders if (each / "target" / "classes").exists()]
    classpath = ":".join([*jars, f"{built / 'target' / 'lib'}/*"])
    java = [str(COARSE_TIMERS), "java", "-Xmx512m", *QUICK_JAVA]
    if len(folders) == 1 and (shared := classes_of(built)).exists():
        java.append(f"-XX:SharedArchiveFile={shared}")
    java.append("-Drocketmq.client.logLevel=ERROR")
    # A client that hangs up when an answer is late leaves its groups for a while.
    java.append("-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false")
    # fastjson and the broker reflect into these on newer runtimes
    opened = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    java += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened]
    java.append("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED")
    return [*java, *options, "-cp", classpath, main_class, *arguments]


def java_by_grpc(*, home: Path) -> list[str]:
    """The command that drives the Java client of RocketMQ 5; ``home``: below which it may write."""
    return java_of(build_java_grpc_client(), "grpc5.Driver", options=(f"-Duser.home={home}",))


def _jar_of(built: Path) -> Path:
    """The classes of a folder that Maven built: classes of folders can't be shared."""
    folder, jar = built / "target" / "classes", built / "target" / "classes.jar"
    if not jar.exists():
        with tempfile.NamedTemporaryFile(dir=jar.parent) as made:
            with zipfile.ZipFile(made, "w") as archive:
                for path in sorted(folder.rglob("*")):
                    archive.write(path, path.relative_to(folder))
            # Who comes first makes it: shared classes fit the jar that they were loaded from alone.
            with contextlib.suppress(FileExistsError):
                os.link(made.name, jar)
    return jar


@cache
def _java_version() -> str:
    """Changes with the Java of this machine, and with the options that shared classes depend on."""
    java = Path(shutil.which("java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    return hashlib.sha256(f"{java} {changed} {QUICK_JAVA}".encode()).hexdigest()[:8]


def classes_of(built: Path) -> Path:
    """Where the shared classes of a folder that Maven built are, or are to be."""
    return built / "target" / f"classes-{_java_version()}.jsa"


def build_mqadmin_46() -> Path:
    """Folder with ``target/lib`` of mqadmin 4.6."""
    return _build("mqadmin46", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS)


def build_broker_53() -> Path:
    """Folder with ``target/lib`` of the broker and the name server of 5.3.3."""
    return _build("broker53", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS)


def build_java_grpc_client() -> Path:
    """Folder with ``target/classes`` and ``target/lib`` of the official Java client of RocketMQ 5,
    and of what drives it."""
    return _build("javagrpc", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS)


def build_proxy() -> Path:
    """Folder with ``target/lib`` of the proxy of 5.5.0."""
    return _build("proxy", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS)


def build_proxy_53() -> Path:
    """Folder with ``target/lib`` of the proxy of 5.3.3."""
    return _build("proxy53", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS)


def build_frameworks(program: str) -> Path:
    """Folder with ``target/classes`` and ``target/lib`` of a program with a framework: ``camel`` or
    ``stream``."""
    return _build("frameworks", *MAVEN, MAVEN_OPTS=MAVEN_OPTIONS) / program


def build_go_clients() -> Path:
    """The Go program's binary."""
    return _build("go", "go", "build", "-o", "interop", ".") / "interop"


def build_go_grpc_client() -> Path:
    """The binary of the Go program by gRPC."""
    return _build("gogrpc", "go", "build", "-o", "gogrpc", ".") / "gogrpc"


def build_go_tls_clients() -> Path:
    """The binary of the Go program whose client speaks TLS."""
    return _build("gotls", "go", "build", "-o", "gotls", ".") / "gotls"


def _build_rust(name: str, program: str) -> Path:
    """A Rust program's binary. The crates that it needs stay built when the program changes."""
    target = CACHE / f"{name}-target"
    cargo = ("cargo", "build", "--locked", "--quiet")
    _build(name, *cargo, seconds=RUST_SECONDS_MAX, CARGO_TARGET_DIR=str(target))
    return target / "debug" / program


def build_rust_client() -> Path:
    """The Rust program's binary."""
    return _build_rust("rust", "interop")


def build_rust_grpc_client() -> Path:
    """The binary of the Rust program by gRPC."""
    return _build_rust("rustgrpc", "rustgrpc")


def build_node_grpc_client() -> Path:
    """The Node.js program by gRPC, with the client that its lock file names beside it."""
    npm = ("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    return _build("nodegrpc", *npm) / "driver.mjs"


def build_python_clients() -> Path:
    """The program of the Python client ``rocketmq``, with the client beside it."""
    return _build("python", *PIP) / "cases.py"


def build_python_grpc_client() -> Path:
    """The program of the official Python client of RocketMQ 5, with the client beside it."""
    return _build("pythongrpc", *PIP) / "driver.py"


def build_cpp_client() -> Path:
    """The program that loads the C++ client by ctypes, with the client beside it."""
    return _build("cpp", *PIP) / "cases.py"


def build_axe() -> Path:
    """The script that checks a page's accessibility, of the version that its lock file names."""
    npm = ("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    return _build("axe", *npm) / "node_modules" / "axe-core" / "axe.min.js"


def build_oidc_provider() -> Path:
    """The program of a provider of OpenID Connect, with the provider that its lock file names."""
    npm = ("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    return _build("oidc", *npm) / "provider.mjs"


def build_node_clients() -> Path:
    """The Node.js program, with the client that its lock file names beside it."""
    npm = ("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    return _build("node", *npm) / "main.js"
