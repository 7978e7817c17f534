"""Makes the archive of classes of the Java programs, once for a machine.

With it each name server, broker, client and mqadmin needs half the processor's time to start.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from pathlib import Path

from tests.support.programs import build_java, classes_of, java_command
from tests.support.servers.settings import ANY_DISK_JAVA
from tests.support.servers.up import free_port

__all__ = ["build_java_with_classes"]

SECONDS_MAX = 120

COMMANDS = ("clusterList", "topicList", "topicStatus -t JavaClasses", "brokerStatus -b {broker}")
"""Of mqadmin: what they share is loaded."""


def build_java_with_classes() -> None:
    """Build the Java programs, and make the archive when it is not there.

    All works without one: whoever comes while another makes it returns at once.
    """
    made = classes_of(build_java())
    if made.exists():
        return
    passing = BlockingIOError, subprocess.TimeoutExpired
    with made.with_suffix(".lock").open("w") as lock, contextlib.suppress(*passing):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if made.exists():
            return
        new = made.with_suffix(".new")
        new.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            _load(Path(folder), new)
        if new.exists():
            new.rename(made)


def _load(folder: Path, archive: Path) -> None:
    """A Java process that loads them, and archives them at its end."""
    (folder / "conf").mkdir()
    for name in ("namesrv", "broker", "tools"):
        (folder / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    namesrv, broker = free_port(), free_port()
    settings = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": broker,
        "namesrvAddr": f"127.0.0.1:{namesrv}",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 1 << 20,
        **ANY_DISK_JAVA,
    }
    files = folder / "namesrv.conf", folder / "broker.conf"
    files[0].write_text(f"listenPort={namesrv}\nkvConfigPath={folder / 'kvConfig.json'}\n")
    files[1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    places = f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}"
    options = (f"-XX:ArchiveClassesAtExit={archive}", "-Dtls.server.mode=disabled", *places)
    arguments = (f"127.0.0.1:{namesrv}", *map(str, files))
    asked = [f"0 {each} -n 127.0.0.1:{namesrv}".split() for each in COMMANDS]
    lines = "".join("\t".join(words) + "\n" for words in asked)
    subprocess.run(
        java_command("interop.Classes", *arguments, options=options),
        input=lines.format(broker=f"127.0.0.1:{broker}"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
