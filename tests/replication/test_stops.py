"""What clients see of a broker of ours that stops while they send."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.kernel.feed import ALLOWANCE_MAX
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import RequestCode
from tests.replication.rolling import Diary, java_client
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

TOPIC = "T"
SEND = b'"code":%d,' % RequestCode.SEND_MESSAGE_V2


class Lost:
    """Where requests go that were read and are not answered any more."""

    allowance = ALLOWANCE_MAX
    unfinished_bytes = 0
    has_message = False

    def __init__(self) -> None:
        self._end = b""

    def feed(self, data: bytearray, size: int) -> tuple[bytes, None, int, None]:
        # Frames come together or in parts.
        read = self._end + bytes(data[:size])
        self.has_message |= SEND in read
        self._end = read[-len(SEND) :]
        return b"", None, 0, None

    def close(self) -> None:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what has arrived")
async def test_a_java_send_that_a_stopping_broker_never_answers_goes_elsewhere(
    tmp_path: Path,
) -> None:
    diary = Diary(tmp_path / "diary")
    async with contextlib.AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(
            NameServer(NamesrvConfig(listen_host="127.0.0.1", listen_port=0))
        )
        address = f"127.0.0.1:{namesrv.port}"
        brokers = []
        for name in ("broker-a", "broker-b"):
            # Nobody else gets the port of the one that stops, where Java's client may ask again.
            port = free_port()
            settings = {"broker_name": name, "namesrv_addr": address, "listen_port": port}
            config = small_config(tmp_path / name, **settings)
            broker = await stack.enter_async_context(Broker(config))
            async with peer_of(broker) as peer:
                await peer.create_topic(TOPIC)
            brokers.append(broker)
        client = java_client(address, TOPIC, diary)
        stack.callback(client.end)
        await until(lambda: len(diary.words("sent")["java"]) >= 20)
        stopping = brokers[0]
        assert stopping._ports._main is not None
        lost = []
        for connection in stopping._ports._main.connections:
            connection._kernel = Lost()
            lost.append(connection._kernel)
        await until(
            lambda: any(each.has_message for each in lost), what="a message that is not answered"
        )
        sent = len(diary.words("sent")["java"])
        await stopping.stop()
        await until(
            lambda: len(diary.words("sent")["java"]) >= sent + 20 or diary.words("failed"),
            what="further messages",
        )
        await asyncio.to_thread(client.stop_sending)
    assert not diary.words("failed"), diary.words("failed")
