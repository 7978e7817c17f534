"""Ports, folders and name servers that can't be used: said clearly, without harm to who uses them.

Permissions are tried for real: where the tests run as root, the command gives up the right that
lets root write everywhere.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.client import Producer, PushConsumer
from kerolox.errors import ConfigError, ConnectError, StoreError, TopicRouteNotFoundError
from kerolox.message import Message
from tests.support.clients.peer import peer_of, small_config
from tests.support.kernels import KERNELS
from tests.support.servers.command import COMMAND, kerolox
from tests.support.servers.settings import small_store
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from kerolox.message import MessageExt

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_CAPBSET_DROP = 24
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 2_000,
}


@pytest.fixture(params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "up", settings=SMALL, kernel=request.param) as started:
        yield started


async def use(up: Up, body: bytes) -> None:
    """Whoever was there first still serves."""
    async with Producer("p", up.namesrv) as producer:
        result = await producer.send(Message("T", body))
        assert result.is_ok


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_store_in_use_by_another_process_is_refused_and_its_owner_goes_on(
    up: Up, kernel: str
) -> None:
    await use(up, b"before")
    log = next((up.data / "store" / "commitlog").iterdir())
    before = log.read_bytes()
    second = Broker(small_config(up.data), kernel=kernel)
    with pytest.raises(StoreError, match=r"is in use by (another )?process.*stop that broker"):
        await second.start()
    assert log.read_bytes() == before
    assert (up.data / "store" / "abort").exists()
    await use(up, b"after")


async def test_a_port_in_use_is_refused_and_its_owner_goes_on(up: Up, tmp_path: Path) -> None:
    await use(up, b"before")
    store = tmp_path / "second"
    for option, port in (("--port", up.port), ("--namesrv-port", up.namesrv_port)):
        ports = {"--port": free_port(), "--namesrv-port": free_port(), option: port}
        arguments = [text for pair in ports.items() for text in pair]
        conf = small_store(tmp_path)
        done = kerolox("up", *arguments, "--data", store, "-c", conf, "--log-level", "error")
        assert done.returncode == 1
        assert f"port {port}" in done.stderr
        assert "in use by another process" in done.stderr
        assert "Traceback" not in done.stderr
    # What had been started was stopped again, cleanly.
    assert not (store / "abort").exists()
    await use(up, b"after")


# -- folders ------------------------------------------------------------------------------------
def give_up_root_s_right_to_write_anywhere() -> None:
    """Root's files and folders are then closed to it by their permissions, as to any user."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def run_unprivileged(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as one that file permissions apply to."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
        preexec_fn=give_up_root_s_right_to_write_anywhere if os.geteuid() == 0 else None,
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("part", ["", "config", "commitlog", "consumequeue", "index"])
def test_a_folder_that_this_user_can_t_write_is_named(
    tmp_path: Path, part: str, kernel: str
) -> None:
    store = tmp_path / "store"
    folders = [store, *(store / n for n in ("config", "commitlog", "consumequeue", "index"))]
    for folder in folders:
        folder.mkdir()
    conf = small_store(tmp_path)
    arguments = ["broker", "--port", 0, "--data", store, "-c", conf, "--log-level", "error"]
    (store / part).chmod(0o555)
    done = run_unprivileged(*arguments, KEROLOX_KERNEL=kernel)
    (store / part).chmod(0o755)
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"kerolox: error: store {store} can't be used")
    assert str(store / part) in line
    assert "Permission denied" in line
    assert "write permission" in line
    assert [path for path in store.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_a_name_server_s_folder_that_this_user_can_t_write_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    done = run_unprivileged("namesrv", "--port", 0, "--data", tmp_path)
    tmp_path.chmod(0o755)
    assert done.returncode == 1
    assert f"the folder {tmp_path / 'namesrv'} can't be made: Permission denied" in done.stderr


# -- name servers -------------------------------------------------------------------------------
async def test_clients_say_which_name_server_is_down(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"

    async def listen(messages: list[MessageExt]) -> None:
        raise AssertionError("there is nothing to listen to")

    async with Producer("p", address) as producer:
        with pytest.raises(ConnectError) as caught:
            await producer.send(Message("T", b"x"))
        assert f"can't connect to {address}: Connection refused" in str(caught.value)
    consumer = PushConsumer("g", address)
    consumer.subscribe("T", "*", listen)
    with pytest.raises(ConnectError, match=address):
        await consumer.start()
    await consumer.close()
    for command in (["topic", "list"], ["send", "T", "hello"], ["tail", "T"]):
        done = kerolox(*command, "-n", address)
        assert done.returncode == 1
        assert f"can't connect to {address}" in done.stderr
        assert "Traceback" not in done.stderr


async def test_one_name_server_of_two_is_enough(up: Up) -> None:
    down = f"127.0.0.1:{free_port()}"
    for addresses in (f"{down};{up.namesrv}", f"{up.namesrv};{down}"):
        async with Producer("p", addresses) as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok


async def test_a_silent_name_server_delays_no_send_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = small_config(tmp_path, namesrv_addr=address, register_broker_timeout_mills=100)
        async with Broker(config) as broker, peer_of(broker) as peer:
            assert broker.parts.peers.registration.failing == [address]

            async def silence(*_: object) -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(broker.parts.peers.registration, "_register", silence)
            assert (await peer.send("New")).code == 0


async def test_a_topic_without_route_is_said_with_what_to_do(tmp_path: Path) -> None:
    with Up(tmp_path, settings={**SMALL, "autoCreateTopicEnable": "false"}) as up:
        async with Producer("p", up.namesrv) as producer:
            with pytest.raises(TopicRouteNotFoundError, match="create the topic"):
                await producer.send(Message("Nowhere", b"x"))


@pytest.mark.parametrize("address", ["", "nowhere", "host:", "host:port", "host:70000", ";"])
def test_an_address_that_is_none_is_a_wrong_setting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError):
        Producer("p", address)
