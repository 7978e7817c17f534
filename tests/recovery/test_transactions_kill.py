"""kill -9 of broker and producer amid transactions: only what is committed is seen, each once."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from kerolox.client import Producer
from tests.support.clients import transactions
from tests.support.clients.transactions import ProducerProcess, is_committed
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

COUNT = int(os.environ.get("KEROLOX_TRANSACTIONS", "240"))
"""Transactions in all; the long run has 2,000."""

SETTINGS = {
    "transactionCheckInterval": 300,
    "transactionTimeOut": 300,
    # On a busy machine it takes its time until somebody is there again who can be asked.
    "transactionCheckMax": 10_000,
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kernel", KERNELS)
async def test_transactions_end_as_their_producers_say_whoever_is_killed(
    kernel: str, tmp_path: Path
) -> None:
    third = COUNT // 3
    with ExitStack() as stack:
        up = stack.enter_context(Up(tmp_path, settings=SETTINGS, kernel=kernel))
        async with Producer("setup", up.namesrv) as producer:
            await producer.create_topic(transactions.TOPIC, queues=4)

        def started(number: int) -> ProducerProcess:
            made = ProducerProcess(up.namesrv, number * third, third, tmp_path / f"out{number}")
            stack.callback(made.kill)
            return made

        one = started(0)
        one.wait_for(third // 2)
        up.kill()
        up.start()
        two = started(1)
        two.wait_for(third // 2)
        one.kill()
        two.wait_for(third * 3 // 4)
        up.kill()
        two.kill()
        up.start()
        # Nobody but this one can say how the transactions of the dead producers ended.
        three = started(2)
        three.wait_for(third)
        acknowledged = {n for each in (one, two, three) for n in each.acknowledged}
        wanted = {number for number in acknowledged if is_committed(number)}
        await transactions.settled(up.namesrv, SECONDS_MAX)
        found = await transactions.visible(up.namesrv)
    assert len(acknowledged) > COUNT // 2
    assert wanted - found.keys() == set(), "a committed one is not seen"
    assert {number for number in found if not is_committed(number)} == set(), "a stray one is seen"
    assert {number: count for number, count in found.items() if count > 1} == {}, "seen twice"
