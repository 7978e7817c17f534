"""What signals do to a server, what systemd hears of it, and where its log goes."""

from __future__ import annotations

import os
import pty
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.command import COMMAND, Server, kerolox
from tests.support.servers.settings import small_store


def up(folder: Path, *options: object, **environment: str) -> Server:
    conf = small_store(folder, fileReservedTime=48)
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", folder / "store", "-c", conf]
    return Server(folder, *arguments, *options, **environment)


def answers(server: Server) -> bool:
    return kerolox("topic", "list", "-n", server.addresses["namesrv"]).returncode == 0


def test_hangup_reads_the_settings_again_and_opens_the_log_anew(tmp_path: Path) -> None:
    log, moved = tmp_path / "broker.log", tmp_path / "broker.log.1"
    with up(tmp_path, "--log-file", log) as server:
        process = server.process
        assert stat.S_IMODE(log.stat().st_mode) == 0o640
        assert "name server listens on" in log.read_text()
        assert "INFO" not in server.log.read_text()
        conf = tmp_path / "broker.conf"
        conf.write_text(conf.read_text().replace("fileReservedTime=48", "fileReservedTime=24"))
        log.rename(moved)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.exists() and "fileReservedTime=24" in log.read_text())
        assert "SIGHUP" in log.read_text()
        assert "SIGHUP" not in moved.read_text()
        # A log that can't be opened anew, and a file with a mistake, change nothing.
        log.rename(tmp_path / "broker.log.2")
        log.mkdir()
        conf.write_text(conf.read_text() + "fileReservedTime=soon\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "'soon' is no" in (tmp_path / "broker.log.2").read_text())
        assert "the old file goes on" in (tmp_path / "broker.log.2").read_text()
        assert answers(server)
        server.stop()
    assert not (tmp_path / "store" / "abort").exists()


def test_files_that_became_pipes_hold_up_no_reload_and_no_stop(tmp_path: Path) -> None:
    log, conf = tmp_path / "broker.log", tmp_path / "broker.conf"
    with up(tmp_path, "--log-file", log) as server:
        old = tmp_path / "broker.log.1"
        log.rename(old)
        os.mkfifo(log)
        conf.unlink()
        os.mkfifo(conf)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "no regular file" in old.read_text())
        assert "the old file goes on" in old.read_text()
        assert answers(server)
        server.stop()
    assert server.process.returncode == 0


STUCK = """
import asyncio, threading
from kerolox.cli.process import loop
async def work():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
loop.STOP_SECONDS_MAX = 0.1
loop.run(work())
"""


def test_a_thread_that_never_returns_does_not_keep_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], timeout=SECONDS_MAX, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "a thread waits for the disk" in done.stderr


def test_a_log_file_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    at = tmp_path / "nowhere" / "log"
    done = kerolox("namesrv", "--port", 0, "--data", tmp_path, "--log-file", at)
    assert done.returncode == 1
    assert f"the log file {at} can't be opened" in done.stderr


def test_usr1_shows_threads_and_tasks_and_usr2_nothing_and_neither_ends_it(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        server.process.send_signal(signal.SIGUSR2)
        server.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "tasks of the event loop" in server.log.read_text())
        wait_until(lambda: "in serve\n" in server.log.read_text())
        assert "Current thread 0x" in server.log.read_text()
        assert answers(server)
        server.stop()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_stops_nothing_does_not_end_a_start_either(
    tmp_path: Path, number: int
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        conf = small_store(tmp_path, registerBrokerTimeoutMills=600_000)
        arguments = ["broker", "--port", 0, "-n", address, "-c", conf, "--data", tmp_path / "d"]
        with subprocess.Popen(
            [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                connection, _ = silent.accept()
                with connection:
                    assert connection.recv(4)  # it registers, and waits for the answer
                    process.send_signal(number)
                    process.send_signal(signal.SIGTERM)
                    said, _ = process.communicate(timeout=SECONDS_MAX)
            finally:
                process.kill()
    assert process.returncode == 0, said
    assert b"stopped before the start was done" in said


def test_a_terminal_that_closes_stops_its_server_cleanly(tmp_path: Path) -> None:
    ready, data = tmp_path / "ready", tmp_path / "store"
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", data, "--ready-file", ready]
    child, ours = pty.fork()
    if not child:
        os.execv(COMMAND[0], [*COMMAND, *map(str, arguments), "-c", str(small_store(tmp_path))])
    try:
        wait_until(ready.exists, what="the ready file")
        assert (data / "abort").exists()
    finally:
        os.close(ours)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not (data / "abort").exists()
    assert not ready.exists()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET, and what listens there."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@kerolox-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.settimeout(SECONDS_MAX)
        yield name, listening


def test_systemd_is_told_of_start_reload_and_stop(
    tmp_path: Path, systemd: tuple[str, socket.socket]
) -> None:
    name, listening = systemd
    with up(tmp_path, NOTIFY_SOCKET=name) as server:
        ready = listening.recv(4096).decode().splitlines()
        assert ready[0] == "READY=1"
        assert ready[1].startswith("STATUS=namesrv 127.0.0.1:")
        server.process.send_signal(signal.SIGHUP)
        reloading = listening.recv(4096).decode().splitlines()
        assert reloading[0] == "RELOADING=1"
        assert int(reloading[1].removeprefix("MONOTONIC_USEC=")) > 0
        assert listening.recv(4096).startswith(b"READY=1\n")
        server.stop()
        assert listening.recv(4096) == b"STOPPING=1"


@pytest.mark.parametrize("name", ["/nowhere/notify", "@" + "x" * 200, "vsock:2:1"])
def test_a_notify_socket_that_nobody_has_holds_up_nothing(tmp_path: Path, name: str) -> None:
    with up(tmp_path, NOTIFY_SOCKET=name) as server:
        assert answers(server)
