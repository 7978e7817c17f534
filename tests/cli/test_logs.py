"""What stands in log lines: texts of strangers make no lines of their own."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox.addresses import split_address
from kerolox.cli.process.logs import LINE_CHARACTERS_MAX, JsonFormatter, LogFormatter
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.command import Server
from tests.support.servers.settings import small_store

FORGED = "x\n2026-01-01 00:00:00,000 ERROR kerolox: all is lost\x1b[2J\u202e\x9b31m"


def logged(message: object, *values: object, error: BaseException | None = None) -> list[str]:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("kerolox", logging.WARNING, "", 1, message, values, info)
    return LogFormatter().format(record).split("\n")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(("message", "values"), [(FORGED, ()), ("group %s", (FORGED,))])
def test_a_name_with_a_newline_makes_no_log_line(message: str, values: tuple[object, ...]) -> None:
    [line] = logged(message, *values)
    assert line.isprintable()
    assert "x\\n2026-01-01" in line


def test_a_long_text_is_cut_in_the_log() -> None:
    [line] = logged("%s", "y" * 1_000_000)
    assert len(line) < LINE_CHARACTERS_MAX + 200
    assert "(1000000 characters)" in line


def test_an_exceptions_text_makes_no_log_line_and_its_traceback_keeps_lines() -> None:
    lines = logged("background work failed", error=raised(ValueError(FORGED)))
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].startswith("  File ")
    assert lines[-1].startswith("ValueError: x\\n2026-01-01")
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_causes_groups_and_notes_are_shown_and_escaped_too() -> None:
    cause = raised(KeyError("the cause"))
    error = raised(ExceptionGroup(FORGED, [raised(OSError(FORGED))]))
    error.__cause__ = cause
    error.add_note(FORGED)
    lines = logged("failed", error=error)
    assert "KeyError: 'the cause'" in lines
    assert any(line.startswith("  | OSError: x\\n") for line in lines)
    assert all(line.isprintable() and not line.startswith("2026-01-01") for line in lines)


def test_a_chain_of_exceptions_without_end_is_cut() -> None:
    first, second = raised(ValueError("a")), raised(ValueError("b"))
    first.__context__, second.__context__ = second, first
    assert len(logged("failed", error=first)) < 20


def test_what_ends_a_thread_or_the_process_is_escaped_too() -> None:
    code = (
        "import threading\n"
        "from kerolox.cli.process.logs import configure_logging\n"
        "configure_logging('info')\n"
        f"def fail(): raise ValueError({FORGED!r})\n"
        "thread = threading.Thread(target=fail, name='kerolox-flush-log')\n"
        "thread.start(); thread.join()\n"
        "fail()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=SECONDS_MAX, check=False
    )
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert "ERROR kerolox.cli.process.logs: kerolox-flush-log ended" in lines[0]
    assert sum(line.startswith("ValueError: x\\n2026-01-01") for line in lines) == 2
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026-01-01") for line in lines)


LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (?:DEBUG|INFO|WARNING|ERROR) kerolox[\w.]*: ")


def test_no_client_writes_lines_into_the_log_of_a_server(tmp_path: Path) -> None:
    conf = small_store(tmp_path)
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", tmp_path / "store", "-c", conf]
    log = tmp_path / "server.log"
    with Server(tmp_path, *arguments, "--log-level", "debug", "--log-file", log) as server:
        # A group that can't give messages back is named in the log.
        consumer = {
            "groupName": FORGED + "/",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [],
            "unitMode": False,
        }
        beat = {"clientID": FORGED, "producerDataSet": [], "consumerDataSet": [consumer]}
        broker = {"clusterName": FORGED, "brokerName": FORGED, "brokerAddr": FORGED}
        for command in (
            RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, body=FORGED.encode()),
            RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=FORGED.encode()),
            RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(beat)),
            RemotingCommand.request(RequestCode.REGISTER_BROKER, {**broker, "brokerId": 0}),
            RemotingCommand.request(RequestCode.UNREGISTER_BROKER, {**broker, "brokerId": 0}),
            RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": FORGED}),
            RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": FORGED}),
            RemotingCommand.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": FORGED}),
            RemotingCommand.request(
                RequestCode.PUT_KV_CONFIG, {"namespace": FORGED, "key": FORGED}
            ),
            RemotingCommand.request(99_999, {FORGED: FORGED}),
        ):
            for address in server.addresses.values():
                with socket.create_connection(split_address(address), timeout=60) as connection:
                    connection.sendall(command.encode())
                    assert connection.recv(4)  # it answers
        server.stop()
    lines = log.read_text().splitlines()
    assert len(lines) > 5
    assert [line for line in lines if not LINE.match(line) or not line.isprintable()] == []
    assert any("x\\n2026-01-01" in line for line in lines)
    assert not any(line.startswith("2026-01-01 00:00:00,000 ERROR") for line in lines)


def test_audit_lines_have_a_file_beside_the_log_that_sighup_opens_anew(tmp_path: Path) -> None:
    log, audit = tmp_path / "server.log", tmp_path / "server.audit.log"
    arguments = ["namesrv", "--port", 0, "--data", tmp_path, "--log-file", log]
    with Server(tmp_path, *arguments, "--log-level", "warning") as server:
        put_key_value(server, "first")
        assert '"keyValue":"n:first"' in audit.read_text()
        audit.rename(tmp_path / "moved")
        server.process.send_signal(signal.SIGHUP)
        wait_until(audit.exists)
        put_key_value(server, "second")
        [line] = audit.read_text().splitlines()
    assert json.loads(line)["keyValue"] == "n:second"
    assert "keyValue" not in log.read_text()


def test_a_json_line_has_its_exception_and_no_forged_line() -> None:
    error = raised(ValueError(FORGED))
    info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("kerolox.x", logging.WARNING, "", 1, "of %s", (FORGED,), info)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    members = json.loads(line)
    assert members.keys() == {"time", "level", "logger", "message", "exception"}
    assert (members["level"], members["logger"]) == ("warning", "kerolox.x")
    assert members["message"].startswith("of x\\n2026")
    assert members["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert members["exception"].splitlines()[-1].startswith("ValueError: x\\n2026-01-01")


def test_all_lines_are_json_and_go_on_where_a_moved_file_was(tmp_path: Path) -> None:
    log, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    arguments = ["namesrv", "--port", 0, "--data", tmp_path, "--log-file", log]
    with Server(tmp_path, *arguments, "--log-format", "json") as server:
        log.rename(moved)
        (tmp_path / "server.audit.log").unlink()
        put_key_value(server, "first")
        set_log_level(server, "error")
        server.stop()
    before, after = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (moved, log)
    )
    assert any("listens on" in line["message"] for line in before)
    assert any("set logLevel=error" in line["message"] for line in after)
    audited = (tmp_path / "server.audit.log").read_text().splitlines()
    assert json.loads(audited[0])["keyValue"] == "n:first"


def test_without_a_log_file_audit_lines_are_json_within_json(tmp_path: Path) -> None:
    arguments = ["namesrv", "--port", 0, "--data", tmp_path, "--log-format", "json"]
    with Server(tmp_path, *arguments) as server:
        put_key_value(server, FORGED)
        server.stop()
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line[0] == "{"]
    [audit] = [line["audit"] for line in lines if line["logger"] == "kerolox.audit"]
    assert audit["new"] == "v"


def test_the_log_level_changes_while_a_server_runs_and_stays_after(tmp_path: Path) -> None:
    def lines() -> list[str]:
        return log.read_text().splitlines()

    log = tmp_path / "server.log"
    arguments = ["namesrv", "--port", 0, "--data", tmp_path, "--host", "127.0.0.1"]
    arguments += ["--log-file", log]
    with Server(tmp_path, *arguments, "--log-level", "warning") as server:
        assert lines() == []
        set_log_level(server, "info")
        set_setting(server, "orderMessageEnable", "true")
        wait_until(lambda: any("set orderMessageEnable=true" in line for line in lines()))
        set_log_level(server, "error")
        set_setting(server, "orderMessageEnable", "false")
        server.stop()
    assert not any("set orderMessageEnable=false" in line for line in lines())
    settings = tmp_path / "namesrv" / "namesrv.properties"
    assert "logLevel=error" in settings.read_text()
    log.unlink()
    with Server(tmp_path, *arguments):
        pass
    assert lines() == [], "what was set counts at the next start"
    with Server(tmp_path, *arguments, "--log-level", "info"):
        pass
    assert any("listens on" in line for line in lines()), "an option is stronger"


def test_without_a_log_file_audit_lines_stand_among_the_others(tmp_path: Path) -> None:
    with Server(tmp_path, "namesrv", "--port", 0, "--data", tmp_path) as server:
        put_key_value(server, FORGED)
        server.stop()
        [line] = [
            each for each in server.log.read_text().splitlines() if " kerolox.audit: " in each
        ]
    assert line.isprintable()
    assert json.loads(line.partition(" kerolox.audit: ")[2])["new"] == "v"


def put_key_value(server: Server, key: str) -> None:
    fields = {"namespace": "n", "key": key, "value": "v"}
    command = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields)
    address = split_address(server.addresses["namesrv"])
    with socket.create_connection(address, timeout=SECONDS_MAX) as connection:
        connection.sendall(command.encode())
        assert connection.recv(4)


def set_log_level(server: Server, level: str) -> None:
    set_setting(server, "logLevel", level)


def set_setting(server: Server, key: str, value: str) -> None:
    body = f"{key}={value}".encode()
    command = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    address = split_address(server.addresses["namesrv"])
    with socket.create_connection(address, timeout=SECONDS_MAX) as connection:
        connection.sendall(command.encode())
        assert b'"code":0' in connection.recv(4096)
