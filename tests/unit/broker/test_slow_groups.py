"""Groups that read so far back that the broker switches them off (``protectBroker``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import ResponseCode
from tests.support.clients.peer import peer_of, small_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("is_on", "threshold", "is_refused"),
    [(True, 2_000, True), (True, 4_000, False), (False, 0, False)],
)
async def test_a_group_that_reads_too_far_back_is_switched_off(
    tmp_path: Path, kernel: str, is_on: bool, threshold: int, is_refused: bool
) -> None:
    config = small_config(
        tmp_path,
        disable_consume_if_consumer_read_slowly=is_on,
        consumer_fallbehind_threshold=threshold,
    )
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for _ in range(3):
            await peer.send("T", bytes(1_500))
        assert (await peer.pull("T", group="slow", maxMsgNums=1)).code == ResponseCode.SUCCESS
        assert (await peer.pull("T", group="quick")).code == ResponseCode.SUCCESS
        await broker._protect()
        answer = await peer.pull("T", group="slow", maxMsgNums=1)
        assert (answer.code == ResponseCode.NO_PERMISSION) is is_refused
        assert (await peer.pull("T", group="quick")).code == ResponseCode.SUCCESS
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        # It stays off until an operator switches it on again.
        answer = await peer.pull("T", group="slow")
        assert (answer.code == ResponseCode.NO_PERMISSION) is is_refused
