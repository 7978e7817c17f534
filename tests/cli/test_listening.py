"""Where servers listen, under which address they are registered, and what they warn of."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kerolox.addresses import local_address, split_address
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import Server, kerolox
from tests.support.servers.listeners import listens
from tests.support.servers.settings import small_store


def settings_file(folder: Path, **settings: object) -> Path:
    """As ``small_store``, without an address of its own."""
    path = small_store(folder, **settings)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if line != "brokerIP1=127.0.0.1\n"))
    return path


def up(folder: Path, *options: object, **settings: object) -> Server:
    conf = settings_file(folder, **settings)
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", folder / "store", "-c", conf]
    return Server(folder, *arguments, *options)


def is_open(server: Server, host: str, address: str) -> bool:
    """Whether the server takes connections to that host and the port of the address."""
    port = split_address(address)[1]
    if not listens(server.process.pid, host, port):
        return False
    socket.create_connection((host, port), timeout=SECONDS_MAX).close()
    return True


def has_own_address() -> bool:
    return local_address() != "127.0.0.1"


def test_up_listens_on_the_loopback_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        for address in server.addresses.values():
            assert address.startswith("127.0.0.1:")
            assert is_open(server, "127.0.0.1", address)
            assert not is_open(server, "127.0.0.2", address)
            assert not (has_own_address() and is_open(server, local_address(), address))
        said = server.log.read_text()
    assert f"listens on {server_line(said)} (this machine only)" in said
    assert "WARNING" not in said


def server_line(said: str) -> str:
    """The broker's address, as the screen has it."""
    [line] = [line for line in said.splitlines() if line.startswith("broker   ")]
    return line.split("listens on ")[1].split(" ")[0].rstrip(",")


@pytest.mark.parametrize("how", ["option", "setting"])
def test_both_servers_of_up_listen_where_they_are_told_to(tmp_path: Path, how: str) -> None:
    options = ["--host", "127.0.0.2", "--host", "127.0.0.3"] if how == "option" else []
    settings = {} if options else {"listenHost": "127.0.0.2;127.0.0.3"}
    with up(tmp_path, *options, **settings) as server:
        for address in server.addresses.values():
            assert address.startswith("127.0.0.2:")
            assert is_open(server, "127.0.0.3", address)
            assert not is_open(server, "127.0.0.1", address)
        at = ("-n", server.addresses["namesrv"])
        assert kerolox("send", "T", "x", *at).returncode == 0


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_whoever_lets_strangers_in_is_warned_that_they_may_do_anything(
    tmp_path: Path, host: str
) -> None:
    with up(tmp_path, "--host", host) as server:
        assert is_open(server, "127.0.0.1", server.addresses["broker"])
        assert is_open(server, "::1", server.addresses["namesrv"]) == (host == "*")
        assert server.addresses["broker"].startswith(local_address() + ":")
        said = server.log.read_text()
    assert "WARNING kerolox.cli.commands.starting: whoever reaches 0.0.0.0:" in said
    assert "there is no access control" in said


def test_a_name_server_and_a_broker_of_their_own_listen_on_all_addresses(tmp_path: Path) -> None:
    names = ["namesrv", "--port", 0, "--data", tmp_path / "names"]
    with Server(tmp_path / "n", *names) as name_server:
        address = name_server.addresses["namesrv"]
        assert is_open(name_server, "127.0.0.2", address)
        assert is_open(name_server, "::1", address)
        assert "no access control" in name_server.log.read_text()
        conf = settings_file(tmp_path)
        arguments = ["broker", "--port", 0, "-n", address, "-c", conf, "--data", tmp_path / "data"]
        with Server(tmp_path / "b", *arguments) as server:
            assert server.addresses["broker"].startswith(local_address() + ":")
            assert is_open(server, "::1", server.addresses["broker"])


def test_clients_come_and_go_by_ipv6_alone(tmp_path: Path) -> None:
    with up(tmp_path, "--host", "::1") as server:
        name_server, broker = server.addresses["namesrv"], server.addresses["broker"]
        assert name_server.startswith("[::1]:")
        assert broker.startswith("[::1]:")
        at = ("-n", name_server)
        made = kerolox("topic", "create", "Six", "--queues", 1, *at)
        assert f"on {broker}" in made.stdout, made.stderr
        assert kerolox("send", "Six", "by six", *at).returncode == 0
        tailed = kerolox("tail", "Six", "--from-start", "--count", 1, "-o", "json", *at)
        assert '"body": "by six"' in tailed.stdout, tailed.stderr
        assert f'"storeHost": "{broker}"' in tailed.stdout


@pytest.mark.parametrize("how", ["option", "setting"])
def test_name_servers_tell_clients_the_address_that_is_advertised(tmp_path: Path, how: str) -> None:
    options = ["--advertise", "127.0.0.9:7777"] if how == "option" else []
    settings = {} if options else {"advertisedAddress": "127.0.0.9:7777"}
    with up(tmp_path, *options, **settings) as server:
        assert server.addresses["broker"] == "127.0.0.9:7777"
        at = ("-n", server.addresses["namesrv"])
        listed = kerolox("topic", "describe", "TBW102", *at)
        assert "127.0.0.9:7777" in listed.stderr + listed.stdout
        assert "WARNING" not in server.log.read_text()


def test_an_address_that_nobody_listens_on_is_warned_of(tmp_path: Path) -> None:
    with up(tmp_path, brokerIP1="203.0.113.9") as server:
        said = server.log.read_text()
    assert "WARNING kerolox.cli.commands.starting: clients are sent to 203.0.113.9:" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "a b"], "listenHost: 'a b' is neither an IP address nor a host name"),
        (["--host", "192.0.2.1"], "of 192.0.2.1 can't be listened on"),
        (["--advertise", "nowhere"], "advertisedAddress: 'nowhere' is no address"),
        (["--advertise", "[::1]:0"], "no valid port"),
    ],
)
def test_a_wrong_address_is_named(tmp_path: Path, options: list[str], reason: str) -> None:
    arguments = ["--port", 0, "--namesrv-port", 0, "--data", tmp_path / "store"]
    done = kerolox("up", *arguments, *options, "--log-level", "error")
    assert done.returncode == 1
    assert reason in done.stderr.splitlines()[-1]
