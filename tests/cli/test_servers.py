"""``kerolox up``, ``namesrv`` and ``broker``: starting, refusing to start, stopping."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.kernel.choice import kernel_in_use
from kerolox.properties import parse_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.release import __version__
from kerolox.remoting.client import RemotingClient
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.command import Server, kerolox, start
from tests.support.servers.settings import small_store
from tests.support.servers.tls import Authority
from tests.support.servers.up import deaf_address, free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        listening.listen()
        yield listening.getsockname()[1]


def error_line(*arguments: object) -> str:
    """The one line on stderr of a command that fails."""
    done = kerolox(*arguments, "--log-level", "error")
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("kerolox: error: ")
    return line


def up_arguments(folder: Path, **settings: object) -> list[object]:
    configuration = small_store(folder, **settings)
    data = folder / "store"
    return ["up", "--port", 0, "--namesrv-port", 0, "--data", data, "-c", configuration]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_says_where_it_listens_and_stores_and_stops_on_a_signal(
    tmp_path: Path, number: int
) -> None:
    with Server(tmp_path, *up_arguments(tmp_path), fresh=True) as server:
        addresses = server.addresses
        assert list(addresses) == ["namesrv", "broker"]
        for address in addresses.values():
            host, port = address.split(":")
            socket.create_connection((host, int(port)), timeout=SECONDS_MAX).close()
        said = server.log.read_text()
        assert f"broker       listens on {addresses['broker']}" in said
        assert "registered as {broker} with {namesrv}\n".format(**addresses) in said
        assert f"stores in {tmp_path / 'store'}" in said
        assert f"name server  listens on {addresses['namesrv']}" in said
        assert f"             Kerolox {__version__}, kernel {kernel_in_use().text}\n" in said
        server.stop(number)
    assert not server.ready_file.exists()
    assert not (tmp_path / "store" / "abort").exists()


def test_the_name_server_of_up_has_a_settings_file_of_its_own(tmp_path: Path) -> None:
    """What it says is stronger than what the broker's says; the command line is stronger still."""
    port = free_port()
    file = tmp_path / "namesrv.conf"
    lines = {
        "listenPort": port,
        "kvConfigPath": tmp_path / "kv.json",
        "maxConnections": 321,
        "productEnvName": "mine",
        "writerAddresses": "127.0.0.*",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    arguments = up_arguments(tmp_path, maxConnections=123, maxConnectionsPerAddress=45)
    arguments = [each for each in arguments if each != "--namesrv-port"]
    del arguments[3]
    with Server(tmp_path, *arguments, "--namesrv-config", file) as server:
        assert server.addresses["namesrv"] == f"127.0.0.1:{port}"
        assert f"settings of {file}\n" in server.log.read_text()
        shown = settings_of(server)
        assert {shown[key] for key in lines} == {str(value) for value in lines.values()}
        assert shown["maxConnectionsPerAddress"] == "45"
        assert settings_of(server, changed={"productEnvName": "other"})["productEnvName"] == "other"
        assert "productEnvName=other\n" in file.read_text()
        server.stop()
    elsewhere = free_port()
    given = ["--namesrv-config", file, "--namesrv-port", elsewhere]
    with Server(tmp_path, *arguments, *given) as server:
        assert server.addresses["namesrv"] == f"127.0.0.1:{elsewhere}"
        assert settings_of(server)["productEnvName"] == "other"


def settings_of(server: Server, changed: dict[str, str] | None = None) -> dict[str, str]:
    """The settings of a name server, after some were changed."""

    async def asked() -> bytes:
        async with RemotingClient() as client:
            for code in (RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG):
                body = "".join(f"{key}={text}\n" for key, text in (changed or {}).items()).encode()
                if body or code == RequestCode.GET_NAMESRV_CONFIG:
                    request = RemotingCommand.request(code, body=body)
                    answer = await client.invoke(server.addresses["namesrv"], request)
                    assert answer.code == 0, answer.remark
                body = b""
        return answer.body

    return parse_properties(asyncio.run(asked()).decode())


def test_lines_of_tls_in_the_file_of_ups_name_server_are_all_that_it_has(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.files("127.0.0.1")
    file = tmp_path / "namesrv.conf"
    tls = {"tls.server.mode": "enforcing", "tls.server.certPath": certificate}
    arguments = up_arguments(tmp_path, **tls, **{"tls.server.keyPath": key})
    for lines, mode in (("productEnvName=x\n", "enforcing"), ("tls.server.mode=permissive\n", "")):
        file.write_text(lines)
        with Server(tmp_path, *arguments, "--namesrv-config", file) as server:
            options = ["-n", server.addresses["namesrv"]]
            plain = kerolox("topic", "list", *options)
            assert (plain.returncode == 0) is not bool(mode), plain.stderr
            config = tmp_path / "tls.properties"
            config.write_text(f"tls.client.trustCertPath={authority.ca}\n")
            if mode:
                done = kerolox("topic", "list", "--all", *options, "--tls-config", config)
                assert "TBW102" in done.stdout, done.stderr


def test_a_wrong_settings_file_of_ups_name_server_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("writerAddress=127.0.0.1\n")
    line = error_line(*up_arguments(tmp_path), "--namesrv-config", file)
    assert f"{file}" in line
    assert "writerAddresses" in line
    missing = kerolox(*up_arguments(tmp_path), "--namesrv-config", tmp_path / "away")
    assert missing.returncode == 2
    assert "away' does not exist" in missing.stderr


def test_up_is_ready_when_clients_can_find_the_broker(tmp_path: Path) -> None:
    with Server(tmp_path, *up_arguments(tmp_path)) as server:
        done = kerolox("topic", "list", "--all", "-n", server.addresses["namesrv"])
        assert "TBW102" in done.stdout.split()


def test_a_name_server_and_a_broker_in_two_processes(tmp_path: Path) -> None:
    names = ["namesrv", "--port", 0, "--data", tmp_path / "names"]
    with Server(tmp_path / "n", *names) as name_server:
        assert list(name_server.addresses) == ["namesrv"]
        address = name_server.addresses["namesrv"]
        configuration = small_store(tmp_path, brokerClusterName="Mine")
        broker = ["broker", "--port", 0, "-n", address, "-c", configuration]
        with Server(tmp_path / "b", *broker, "--data", tmp_path / "store") as server:
            assert list(server.addresses) == ["broker"]
            done = kerolox("topic", "create", "T", "--cluster", "Mine", "-n", address)
            assert done.stdout == f"topic T has 8 queues on {server.addresses['broker']}\n"
            server.stop()

        def is_forgotten() -> bool:
            done = kerolox("topic", "list", "--all", "-n", address)
            assert done.returncode == 0, done.stderr
            return not done.stdout

        # At the latest when it sees the connection closed.
        wait_until(is_forgotten)
        name_server.stop()


def test_a_broker_says_which_name_servers_know_it_and_which_do_not(tmp_path: Path) -> None:
    names, port = ["namesrv", "--host", "127.0.0.1", "--data", tmp_path / "names"], free_port()
    there, late = tmp_path / "there", tmp_path / "late"
    with Server(there, *names, "--port", 0) as name_server, deaf_address() as deaf:
        address = name_server.addresses["namesrv"]
        servers = f"{address};127.0.0.1:{port};{deaf}"
        arguments = ["broker", "--port", 0, "-n", servers, "-c", small_store(tmp_path)]
        with Server(tmp_path, *arguments, "--data", tmp_path / "store") as server:
            own, said = server.addresses["broker"], server.log.read_text()
            assert f"\n             registered as {own} with {address}\n" in said
            for missing in (f"127.0.0.1:{port}", deaf):
                assert f"\n             NOT registered with {missing}, tried again: " in said
                assert (
                    f"WARNING kerolox.broker.services.registration: name server {missing}: " in said
                )
            assert f"name server {address}: registered as {own}\n" in said
            with Server(late, *names, "--port", port):
                line = f"name server 127.0.0.1:{port}: registered as {own}\n"
                wait_until(lambda: line in server.log.read_text())
                server.stop()


@pytest.mark.parametrize("names", [[], ["-n", "127.0.0.1:1"]])
def test_a_broker_that_no_name_server_knows_does_not_claim_to_be_registered(
    tmp_path: Path, names: list[str]
) -> None:
    arguments = ["broker", "--port", 0, *names, "-c", small_store(tmp_path)]
    with Server(tmp_path, *arguments, "--data", tmp_path / "store") as server:
        said = server.log.read_text()
        assert "registered as" not in said
        assert ("NOT registered with 127.0.0.1:1" if names else "registered nowhere") in said
        server.stop()


def test_a_port_in_use_is_named(tmp_path: Path, taken_port: int) -> None:
    namesrv = error_line("namesrv", "--port", taken_port, "--data", tmp_path)
    assert f"port {taken_port}" in namesrv
    assert "in use" in namesrv
    arguments = up_arguments(tmp_path)
    arguments[2] = taken_port
    assert f"port {taken_port}" in error_line(*arguments)


def test_a_store_that_another_process_holds_is_named(tmp_path: Path) -> None:
    with Server(tmp_path, *up_arguments(tmp_path)):
        line = error_line(*up_arguments(tmp_path))
        assert str(tmp_path / "store") in line
        assert re.search(r"in use|another process|locked", line)


def test_a_data_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, no folder")
    assert str(tmp_path / "store") in error_line(*up_arguments(tmp_path))
    names = error_line("namesrv", "--port", 0, "--data", tmp_path / "store")
    assert f"the folder {tmp_path / 'store' / 'namesrv'} can't be made" in names


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"brokerNam": "x"}, "'brokerNam' (did you mean 'brokerName'?)"),
        ({"listenPort": "10911 #mine"}, "a comment must be on a line of its own"),
        ({"flushDiskType": "SOMETIMES"}, "flushDiskType"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(
    tmp_path: Path, setting: dict[str, object], reason: str
) -> None:
    line = error_line(*up_arguments(tmp_path, **setting))
    assert "broker.conf: " in line
    assert reason in line


def test_a_ready_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    ready = tmp_path / "nowhere" / "ready"
    arguments = ["namesrv", "--port", 0, "--data", tmp_path, "--ready-file", ready]
    assert str(ready) in error_line(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["upp"],
        ["up", "--port", "70000"],
        ["up", "--port", "x"],
        ["up", "-c", "/nonexistent/broker.conf"],
        ["namesrv", "--no-such-option"],
        ["topic"],
        ["topic", "create"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = kerolox(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_names_every_command() -> None:
    done = kerolox("--help")
    assert done.returncode == 0
    for name in ("up", "namesrv", "broker", "topic", "send", "tail", "trace"):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)


def listening() -> socket.socket:
    """A name server that takes connections and never answers."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def test_a_signal_ends_a_start_that_waits(tmp_path: Path) -> None:
    with listening() as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        data = tmp_path / "store"
        # Longer than the test waits.
        configuration = small_store(tmp_path, registerBrokerTimeoutMills=600_000)
        arguments = ["--port", 0, "-n", address, "-c", configuration, "--data", data]
        process = start("broker", *arguments)
        try:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(4)  # it registers, so all else of the start is done
                process.send_signal(signal.SIGTERM)
                said, _ = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert said.splitlines()[-1] == "stopped before the start was done"
    assert not (data / "abort").exists()


def test_a_server_goes_on_when_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Server(tmp_path, *up_arguments(tmp_path), stdout=writing) as server:
        os.close(writing)
        done = kerolox("topic", "create", "T", "-n", server.addresses["namesrv"])
        assert done.returncode == 0, done.stderr
        server.stop()


def test_a_server_without_standard_files_keeps_its_store_clean(tmp_path: Path) -> None:
    with Server(tmp_path, *up_arguments(tmp_path), closed=True) as server:
        targets = [os.readlink(f"/proc/{server.process.pid}/fd/{number}") for number in (0, 1, 2)]
        assert targets == ["/dev/null"] * 3
        done = kerolox("send", "T", "hello", "-n", server.addresses["namesrv"])
        assert done.returncode == 0, done.stderr
        server.stop()


def test_a_server_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        with Server(tmp_path, *up_arguments(tmp_path), fresh=True) as server:
            text = Path(f"/proc/{server.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    match = re.search(r"Max open files +(\w+) +(\w+)", text)
    assert match is not None
    assert match[1] == match[2]


def modes(folder: Path) -> dict[str, int]:
    """Path below the folder → its rights."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("kernel", KERNELS)
def test_files_of_a_server_are_for_its_user_and_group_only(tmp_path: Path, kernel: str) -> None:
    # The tests' own umask may be stricter.
    before = os.umask(0o022)
    try:
        data = tmp_path / "store"
        with Server(tmp_path, *up_arguments(tmp_path), KEROLOX_KERNEL=kernel) as server:
            at = ("-n", server.addresses["namesrv"])
            assert kerolox("topic", "create", "T", "--queues", 1, *at).returncode == 0
            assert kerolox("topic", "create", "T2", "--queues", 1, "--order", *at).returncode == 0
            assert kerolox("send", "T", "x", "--keys", "k", *at).returncode == 0
            running = modes(data) | {"ready": stat.S_IMODE(server.ready_file.stat().st_mode)}
            server.stop()
        found = running | modes(data)
        folders = {name for name in found if (data / name).is_dir()}
    finally:
        os.umask(before)
    wanted = ("commitlog/", "consumequeue/T/0/", "index/", "lock", "abort", "checkpoint")
    wanted += ("config/topics.json", "config/topics.json.bak", "namesrv/kvConfig.json", "ready")
    for begin in wanted:
        assert any(name.startswith(begin) for name in found), begin
    assert {name: mode for name, mode in found.items() if name in folders and mode != 0o750} == {}
    files = {name: mode for name, mode in found.items() if name not in folders}
    assert {name: mode for name, mode in files.items() if mode != 0o640} == {}


def test_a_store_that_is_there_keeps_the_rights_that_it_has(tmp_path: Path) -> None:
    data = tmp_path / "store"
    with Server(tmp_path, *up_arguments(tmp_path)) as server:
        at = ("-n", server.addresses["namesrv"])
        assert kerolox("topic", "create", "Old", *at).returncode == 0
        server.stop()
    topics, log = data / "config" / "topics.json", data / "commitlog"
    topics.chmod(0o604)
    log.chmod(0o755)
    with Server(tmp_path, *up_arguments(tmp_path)) as server:
        at = ("-n", server.addresses["namesrv"])
        assert kerolox("topic", "create", "T", *at).returncode == 0
        server.stop()
    assert '"T"' in topics.read_text()
    assert stat.S_IMODE(topics.stat().st_mode) == 0o604
    assert stat.S_IMODE(topics.with_name("topics.json.bak").stat().st_mode) == 0o604
    assert stat.S_IMODE(log.stat().st_mode) == 0o755


# -- settings that requests change --------------------------------------------------------------
def asked(address: str, code: int, body: str = "") -> dict[str, str]:
    """The settings that an answer shows; it must be a success."""

    async def ask() -> RemotingCommand:
        async with RemotingClient() as client:
            command = RemotingCommand.request(code, body=body.encode())
            return await client.invoke(address, command, timeout_seconds=30)

    answer = asyncio.run(ask())
    assert answer.code == 0, answer.remark
    return parse_properties(answer.body.decode())


def test_up_without_a_file_keeps_what_requests_changed_and_shows_it(tmp_path: Path) -> None:
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", tmp_path / "store"]
    with Server(tmp_path, *arguments) as server:
        at = server.addresses
        asked(
            at["broker"], RequestCode.UPDATE_BROKER_CONFIG, "regionId=north\nsyncFlushTimeout=7\n"
        )
        asked(at["namesrv"], RequestCode.UPDATE_NAMESRV_CONFIG, "orderMessageEnable=true\n")
        shown = asked(at["broker"], RequestCode.GET_BROKER_CONFIG)
        assert shown["regionId"] == "north"
        assert shown["pendingRestart.syncFlushTimeout"] == "7"
        assert "settings that requests changed" not in server.log.read_text()
    with Server(tmp_path, *arguments) as server:
        at = server.addresses
        shown = asked(at["broker"], RequestCode.GET_BROKER_CONFIG)
        assert (shown["regionId"], shown["syncFlushTimeout"]) == ("north", "7")
        assert not [key for key in shown if key.startswith("pendingRestart.")]
        settings = asked(at["namesrv"], RequestCode.GET_NAMESRV_CONFIG)
        assert settings["orderMessageEnable"] == "true"
        said = server.log.read_text()
    kept = tmp_path / "store" / "config" / "broker.properties"
    assert f"settings that requests changed, of {kept}: regionId, syncFlushTimeout\n" in said
    kept = tmp_path / "store" / "namesrv" / "namesrv.properties"
    assert f"settings that requests changed, of {kept}: orderMessageEnable\n" in said
    assert kept.read_text().endswith("\norderMessageEnable=true\n")


def test_up_with_a_file_changes_that_file_and_nothing_else_in_it(tmp_path: Path) -> None:
    arguments = up_arguments(tmp_path)
    conf = Path(str(arguments[-1]))
    conf.write_text("# ours\n" + conf.read_text() + "\n# the end\n")
    before = conf.read_text()
    for region in ("north", "south"):
        with Server(tmp_path, *arguments) as server:
            body = f"regionId={region}\n"
            asked(server.addresses["broker"], RequestCode.UPDATE_BROKER_CONFIG, body)
            assert f"settings of {conf}\n" in server.log.read_text()
        assert conf.read_text() == f"{before}regionId={region}\n"
    assert not (tmp_path / "store" / "config" / "broker.properties").exists()
