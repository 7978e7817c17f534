"""The units of systemd: it reads them, they leave a server few rights, and their commands run."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from kerolox.cli.process.loop import STOP_SECONDS_MAX
from tests.deploy.composed import DEPLOY
from tests.support.servers.command import Server, kerolox
from tests.support.servers.up import free_port

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/kerolox/bin/kerolox"
EXPOSURE_MAX = 1.5
"""Of 10, by systemd's own count; a unit without any of these settings has 9.6."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and os.environ.get("CI") != "true",
    reason="no systemd-analyze on the PATH",
)


def service(unit: Path) -> dict[str, str]:
    """Option → value of its part about the process; the last one of those that stand twice."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return dict(parser["Service"])


def analyzed(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def here(unit: Path, folder: Path) -> str:
    """A copy for a machine on which nothing is installed."""
    copy = folder / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    return str(copy)


def test_there_is_a_unit_for_each_server() -> None:
    assert [unit.stem for unit in UNITS] == [
        "kerolox-broker@",
        "kerolox-console",
        "kerolox-controller",
        "kerolox-namesrv",
        "kerolox-up@",
    ]


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_every_line_of_the_unit(unit: Path, tmp_path: Path) -> None:
    said = analyzed("verify", "--man=no", here(unit, tmp_path))
    assert unit.name.removesuffix(".service") not in said


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_leaves_a_server_few_rights(unit: Path, tmp_path: Path) -> None:
    said = analyzed("security", "--offline=true", "--no-pager", here(unit, tmp_path))
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX, said


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_gives_a_server_time_to_stop(unit: Path) -> None:
    options = service(unit)
    # The servers' own stop, and then a thread that waits for a disk.
    assert float(options["TimeoutStopSec"]) > 2 * STOP_SECONDS_MAX
    assert options["Restart"] == "on-failure"
    assert options["ExecReload"].split()[1:] == ["-HUP", "$MAINPID"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_of_the_unit_runs_and_tells_systemd(unit: Path, tmp_path: Path) -> None:
    options = service(unit)
    instance = "2" if "--brokers %i" in options["ExecStart"] else "a"
    state = tmp_path / options["StateDirectory"].replace("%i", instance)
    state.mkdir()
    (tmp_path / "namesrv.conf").write_text("listenPort=0\n")
    peers = f"controllerDLegerPeers=n0-127.0.0.1:{free_port()}\n"
    (tmp_path / "controller.conf").write_text(peers)
    for name in ("a.conf", "brokers.conf"):
        (tmp_path / name).write_text("brokerName=a\nlistenPort=0\n")
    users = ("--users", tmp_path / "users.json")
    added = ("console", "user", "add", "anna", "--password-stdin", *users)
    assert kerolox(*added, stdin=b"a long passphrase\n").returncode == 0
    places = {
        "%i": instance,
        "%S": str(tmp_path),
        "/etc/kerolox": str(tmp_path),
        "${CREDENTIALS_DIRECTORY}": str(tmp_path),
        "$CONSOLE_OPTIONS": "--port 0",
    }
    command = options["ExecStart"]
    for name, place in places.items():
        command = command.replace(name, place)
    program, *arguments = shlex.split(command)
    assert program == PROGRAM
    given = options.get("Environment", "")
    environment = dict(pair.split("=", 1) for pair in given.split())
    hosts = [] if arguments[0] == "console" else ["--host", "127.0.0.1"]
    if arguments[0] == "up":
        hosts += ["--namesrv-port", "0", "--grpc-port", "0"]
        arguments.remove("*")
        arguments.remove("--host")
    # A path of a socket has a hundred characters at most, and pytest's folders have more.
    address = f"\0kerolox-{os.getpid()}-{unit.stem}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(60)
        environment["NOTIFY_SOCKET"] = address.replace("\0", "@")
        with Server(tmp_path / "run", *arguments, *hosts, **environment) as server:
            assert systemd.recv(4096).startswith(b"READY=1")
            server.stop()
        assert systemd.recv(4096) == b"STOPPING=1"
    assert options["Type"] == "notify"
    if arguments[0] not in ("broker", "up"):
        return
    assert (state / "commitlog").is_dir(), "the store lies in the state directory"
