"""What a Java broker of 5.x has out when its slave, one of ours, becomes the master."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.broker.pop.java_log import ACK_TAG, CHECKPOINT_TAG
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.names import REVIVE_GROUP
from tests.support.clients.peer import peer_of
from tests.support.clients.pops import GROUP, Member
from tests.unit.broker.replication.pairs import quick_retries, until_equal
from tests.unit.broker.test_java_pops import LOG, Left, ack, checkpoint, out

from .cluster import pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def test_a_slave_that_is_promoted_takes_over_what_a_java_master_has_out(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        master, slave = cluster["a"], cluster["b"]
        async with peer_of(master) as peer:
            await peer.create_topic("T", 1)
            for number in range(6):
                await peer.send("T", b"%d" % number)
        # As a Java master writes it; ours reads such a log at its start alone.
        master.parts.tables.topics.create_for_group(LOG, 1)
        master.parts.tables.groups.put(SubscriptionGroupConfig(group_name=GROUP))
        log, pop_time = Left(master), master.parts.now_ms()
        log.put(CHECKPOINT_TAG, checkpoint(1, 3, pt=pop_time))
        log.put(ACK_TAG, ack(1, 2, pt=pop_time))
        log.commit(4)
        await until_equal(master, slave)
        await slave.parts.peers.replication.tables.take_from(cluster.at("a"))
        assert out(slave) == []
        await cluster.lose_master("a")
        await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert out(slave) == [1, 3]
        offsets = slave.parts.tables.offsets
        assert offsets.query(GROUP, "T", 0) == 1
        async with peer_of(slave) as peer:
            assert [each.text for each in await Member(peer).pop()] == ["4", "5"]
        # The last record that is done: nothing is read again.
        assert offsets.query(REVIVE_GROUP, LOG, 0) == 1
