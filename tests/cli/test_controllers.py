"""``kerolox controller``: a group is examined and changed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin import Admin
from kerolox.admin.sync import Admin as SyncAdmin
from kerolox.config import setting_keys
from kerolox.controller.config import UNUSED_KEYS, ControllerConfig
from kerolox.errors import BrokerError, ClientError, ConnectError
from kerolox.namesrv.config import CONTROLLER_KEYS, NamesrvConfig
from kerolox.protocol.codes import ResponseCode
from tests.cli.test_completion import completed
from tests.controller.asking import Asking
from tests.support.eventually import until, wait_until
from tests.support.servers.command import Server, kerolox
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HOST = "127.0.0.1"


class Brokers(Asking):
    """Brokers of one controller."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    async def leader_address(self) -> str:
        return self.address

    def addresses(self) -> Iterable[str]:
        return [self.address]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A group of one, which knows two brokers of the name b without a master."""
    folder = tmp_path_factory.mktemp("controller")
    address = f"{HOST}:{free_port()}"
    conf = folder / "controller.conf"
    conf.write_text(f"controllerDLegerPeers=n0-{address}\n")
    arguments = ("controller", "--host", HOST, "--data", folder, "-c", conf)

    async def enter() -> None:
        brokers = Brokers(address)
        try:
            async with Admin(address) as admin:

                async def leads() -> bool:
                    return (await admin.controller_state(address)).role == "leader"

                await until(leads, what="a leader")
            for broker_id in (1, 2):
                await brokers.enter(broker_id, f"{HOST}:{broker_id}")
        finally:
            await brokers.client.close()

    with Server(folder, *arguments):
        asyncio.run(asyncio.wait_for(enter(), 60))
        yield address


def told(*arguments: object) -> Any:
    done = kerolox("controller", *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_controllers_and_brokers_are_listed(controller: str) -> None:
    [row] = told("list", "-a", controller)
    assert (row["id"], row["role"], row["address"]) == ("n0", "leader", controller)
    assert row["appliedIndex"] == row["commitIndex"] > 3
    table = kerolox("controller", "list", KEROLOX_CONTROLLERS=controller).stdout
    assert table.split("\n")[0].split()[:4] == ["ID", "ADDRESS", "ROLE", "TERM"]
    rows = told("describe", "-a", controller)
    assert [(row["brokerName"], row["brokerId"], row["alive"]) for row in rows] == [
        ("b", 1, False),
        ("b", 2, False),
    ]
    missing = kerolox("controller", "describe", "x", "-a", controller)
    assert missing.returncode == 1
    assert "the controllers know no broker x" in missing.stderr


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("describe ", ["plain,b"]),
        ("elect ", ["plain,b"]),
        ("clean ", ["plain,b"]),
        ("members remove ", ["plain,n0"]),
        ("config show listenH", ["plain,listenHost"]),
        ("config set listenH", ["nospace,listenHost="]),
    ],
)
def test_values_of_controllers_are_completed(
    line: str, values: list[str], controller: str, tmp_path: Path
) -> None:
    environment = {"HOME": str(tmp_path), "KEROLOX_CONTROLLERS": controller}
    assert completed(f"kerolox controller {line}", environment) == values


def test_a_master_is_elected_and_a_broker_forgotten(controller: str) -> None:
    tried = kerolox("controller", "elect", "b", 1, "--dry-run", "-a", controller)
    assert tried.stdout.splitlines() == [
        "master of b: none → 1",
        "nothing was changed (--dry-run)",
    ]
    elected = told("elect", "b", 1, "-a", controller)
    assert elected["address"] == f"{HOST}:1"
    assert (elected["oldMaster"], elected["master"], elected["masterEpoch"]) == (None, 1, 1)
    refused = kerolox("controller", "elect", "b", 2, "-a", controller)
    assert refused.returncode == 1
    assert "Failed to elect a new master" in refused.stderr
    assert kerolox("controller", "clean", "b", "--id", 2, "-a", controller).returncode != 0
    told("clean", "b", "--id", 2, "--yes", "-a", controller)
    assert [row["brokerId"] for row in told("describe", "b", "-a", controller)] == [1]


def test_settings_are_changed_while_it_runs(controller: str) -> None:
    key = "enableElectUncleanMaster"
    at = ("-a", controller)
    [row] = told("config", "show", key, *at)
    assert row["value"] == "false"
    told("config", "set", f"{key}=true", *at)
    assert [row["value"] for row in told("config", "show", key, *at)] == ["true"]
    told("config", "set", f"{key}=false", *at)
    for refused in ("controllerSecret=x", "controllerDLegerPeers=n0-a:1", "listenHost=*"):
        done = kerolox("controller", "config", "set", refused, *at)
        assert done.returncode == 1
        assert "Can not update config in black list" in done.stderr


def test_members_are_taken_in_one_by_one_and_a_majority_has_to_be_there(controller: str) -> None:
    new = f"{HOST}:{free_port()}"
    at = ("-a", controller)
    tried = kerolox("controller", "members", "add", "n1", new, "--dry-run", *at)
    assert tried.stdout.splitlines()[0] == f"controller n1: none → {new}"
    for wrong, why in (
        (("add", "n-1", new), "is no id of a controller"),
        (("add", "n1", "nowhere"), "n1: "),
        (("remove", "n7"), "n7 is no controller; they are n0"),
        (("remove", "n0"), "the last controller stays"),
    ):
        done = kerolox("controller", "members", *wrong, *at)
        assert done.returncode == 1
        assert why in done.stderr
    done = kerolox("controller", "members", "add", "n1", new, *at)
    assert done.returncode == 1
    assert "n1 does not answer" in done.stderr


def test_an_admin_says_what_is_wrong(controller: str) -> None:
    nobody = f"{HOST}:{free_port()}"
    with SyncAdmin(controller) as admin:
        with pytest.raises(ClientError, match="no controller is given"):
            admin.sync_state_sets("")
        with pytest.raises(ClientError, match="controllers: "):
            admin.sync_state_sets("x")
        with pytest.raises(ConnectError):
            admin.elect_master(nobody, "b", 1)
        states = admin.controller_states([controller, nobody])
        assert isinstance(states[nobody], str)
        with pytest.raises(BrokerError) as caught:
            admin.clean_broker_metadata([controller, nobody], "x", even_if_alive=True)
        assert caught.value.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


def test_a_name_server_runs_a_controller_with_settings_of_the_same_file(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        "enableControllerInNamesrv=true\n"
        f"listenPort=0\ncontrollerDLegerGroup=g\ncontrollerDLegerPeers=n0-{address}\n"
        "controllerDLegerSelfId=n0\nserverWorkerThreads=8\ncontrollerThreadPoolNums=16\n"
    )
    arguments = ("namesrv", "--host", HOST, "--data", tmp_path, "-c", conf)
    with Server(tmp_path, *arguments) as server:
        assert server.addresses["controller"] == address
        wait_until(lambda: told("list", "-a", address)[0]["role"] == "leader", what="a leader")
        at = ("-n", server.addresses["namesrv"])
        assert kerolox("name-server", "get", "Other", *at).returncode == 0
        told("config", "set", "enableElectUncleanMaster=true", "-a", address)
        assert "enableElectUncleanMaster=true" in conf.read_text()
        assert "enableControllerInNamesrv=true" in conf.read_text()
    assert (tmp_path / "controller").is_dir()
    assert "unknown" not in server.log.read_text()


def test_a_name_server_knows_the_keys_of_a_controller() -> None:
    both = setting_keys(ControllerConfig).keys() & setting_keys(NamesrvConfig).keys()
    known = setting_keys(ControllerConfig).keys() | UNUSED_KEYS.keys()
    assert known - both - NamesrvConfig.unused_keys.keys() == CONTROLLER_KEYS
