"""Brokers and mqadmin of RocketMQ 5.3.3 under three controllers of ours.

``tests/unit/controller/test_server.py`` holds what they ask for, without Java.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import wait_until
from tests.support.programs import build_broker_53, java_of
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import Server
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.software, pytest.mark.timeout(600)]

HOST = "127.0.0.1"


def mqadmin(home: Path, *arguments: str) -> str:
    options = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command = java_of(build_broker_53(), main, *arguments, options=options)
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def test_brokers_of_java_have_a_master_and_get_another(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(ports))
    addresses = ";".join(f"{HOST}:{port}" for port in ports)
    with contextlib.ExitStack() as stack:
        for number in range(3):
            folder = tmp_path / f"n{number}"
            folder.mkdir()
            conf = folder / "controller.conf"
            conf.write_text(f"controllerDLegerPeers={peers}\ncontrollerDLegerSelfId=n{number}\n")
            arguments = ("--host", HOST, "--data", folder, "-c", conf)
            stack.enter_context(Server(folder, "controller", *arguments))
        settings = (
            "enableControllerMode=true",
            f"controllerAddr={addresses}",
            "brokerId=-1",
            "brokerRole=SLAVE",
        )
        members = []
        names = JavaPeer(tmp_path / "names", with_broker=False, built=build_broker_53)
        stack.enter_context(names)
        for number in range(2):
            folder = tmp_path / f"b{number}"
            folder.mkdir()
            known = f"namesrvAddr={HOST}:{names.namesrv_port}"
            more = (*settings, known, f"haListenPort={free_port()}")
            peer = JavaPeer(folder, settings=more, with_namesrv=False, built=build_broker_53)
            members.append(stack.enter_context(peer))
        home = members[0].data / "home"

        def state() -> tuple[str, str]:
            told = mqadmin(home, "getSyncStateSet", "-a", addresses, "-b", "broker-a")
            found = re.search(r"#MasterAddr\s+(\S+)", told)
            size = re.search(r"#SyncStateSetNums\s+(\d+)", told)
            return found[1] if found else "", size[1] if size else ""

        wait_until(lambda: state()[1] == "2", what="a sync state set of both")
        assert "#ControllerLeaderId\tn" in mqadmin(
            home, "getControllerMetaData", "-a", addresses.split(";")[0]
        )
        first, _ = state()
        master = next(each for each in members if first == f"{HOST}:{each.port}")
        master.kill()
        wait_until(lambda: state()[0] not in ("", first), what="another master")
