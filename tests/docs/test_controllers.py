"""The guide of controllers works, block by block; its brokers are no more than connections."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    ElectMasterHeader,
)
from tests.docs.examples import ROOT, Block, blocks_of
from tests.docs.shell import PageShell

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.protocol.headers import Header

GUIDE = ROOT / "docs" / "guides" / "controllers.md"
HOST = "127.0.0.1"
IDS = {"cluster_name": "c", "broker_name": "broker-a"}
CONTROLLERS = ("9878", "9888", "9898")

pytestmark = pytest.mark.timeout(300)


class Brokers:
    """Connections to all controllers, over which two brokers say that they are alive."""

    def __init__(self, addresses: list[str], stack: contextlib.ExitStack) -> None:
        self._sockets: dict[str, socket.socket] = {}
        for address in addresses:
            host, port = address.split(":")
            connection = socket.create_connection((host, int(port)), timeout=30)
            self._sockets[address] = stack.enter_context(connection)

    def ask(self, code: RequestCode, header: Header, body: bytes = b"", *, at: str) -> None:
        self._sockets[at].sendall(
            RemotingCommand.request(code, header.encode(), body=body).encode()
        )
        assert self._sockets[at].recv(1 << 16)

    def enter(self, leader: str) -> None:
        for broker_id in (1, 2):
            address = f"{HOST}:{broker_id}"
            applied = ApplyBrokerIdHeader(
                **IDS, applied_broker_id=broker_id, register_check_code=f"{address};1"
            )
            self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, applied, at=leader)
            alive = BrokerHeartbeatHeader(
                **IDS,
                broker_addr=address,
                broker_id=broker_id,
                epoch=0,
                heartbeat_timeout_mills=600_000,
            )
            for each in self._sockets:
                self.ask(RequestCode.BROKER_HEARTBEAT, alive, at=each)
        elect = ElectMasterHeader(**IDS, broker_id=1)
        self.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect, at=leader)
        self.let_both_be_in_sync(leader, master=1, epoch=1, set_epoch=1)

    def let_both_be_in_sync(self, leader: str, *, master: int, epoch: int, set_epoch: int) -> None:
        self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetHeader(
                broker_name="broker-a", master_broker_id=master, master_epoch=epoch
            ),
            b'{"syncStateSet":[1,2],"syncStateSetEpoch":%d}' % set_epoch,
            at=leader,
        )


def test_controllers_are_started_examined_changed_and_replaced(tmp_path: Path) -> None:
    first, look, in_python, upgrade = [b for b in blocks_of(GUIDE) if b.needs]
    with contextlib.ExitStack() as stack:
        shell = stack.enter_context(PageShell(tmp_path))
        shell.run(first)
        addresses = [f"{HOST}:{shell.ports[each]}" for each in CONTROLLERS]
        with Admin(addresses) as admin:
            leader = admin.controller_state(addresses[0]).leader_address
        brokers = Brokers(addresses, stack)
        brokers.enter(leader)
        shell.run(look)
        brokers.let_both_be_in_sync(leader, master=2, epoch=2, set_epoch=3)
        shell.run(Block("sh", "shell", f"python - <<'END'\n{in_python.code}END\nuntil_whole\n"))
        shell.run(upgrade)
        with Admin(addresses) as admin:
            info = admin.sync_state_sets(addresses)["broker-a"]
        # The third epoch is of the election in Python; later the silent master is taken back.
        assert info.master_epoch >= 3
        assert [each.broker_id for each in info.replicas] == [1]
    assert "master of broker-a: 1 → 2" in shell.output
