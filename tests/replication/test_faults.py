"""A SYNC_MASTER and its slaves through faults of network, process and disk: a success is never a
lie, RocketMQ's codes say what is not on a slave, and all is well soon after the fault ends."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import ResponseCode
from tests.replication.judge import (
    assert_all_there,
    assert_same_files,
    until_delivered,
    until_equal,
)
from tests.replication.scene import FILE_SIZE, scene_of
from tests.support.clients.peer import peer_at
from tests.support.faults.network import why_no_network
from tests.support.faults.small_disk import disk_kinds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replication.scene import Scene

IS_LONG = int(os.environ.get("KEROLOX_REPLICATED_MIB", "0")) >= 256
SECONDS = 20.0 if IS_LONG else 1.0
"""How long each fault lasts at least."""
QUICK: dict[str, object] = {
    "slaveTimeout": 700,
    "haHousekeepingInterval": 2_000,
    "haSendHeartbeatInterval": 300,
}
SETTINGS = {} if IS_LONG else QUICK

OK = ResponseCode.SUCCESS
LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT
AWAY = ResponseCode.SLAVE_NOT_AVAILABLE

JAVA_PAIRS = (("ours", "java"), ("java", "ours"), ("java", "java"))

WHY_NOT = why_no_network() or ("" if "tmpfs" in disk_kinds() else "nothing can be mounted here")

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(1_800 if IS_LONG else 600),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


async def judge(scene: Scene, *, with_java: bool = False) -> None:
    """In the end all brokers have the same log, with all that was promised."""
    load, members = scene.load, [scene.master, *scene.slaves]
    await load.rest()
    await load.end_transactions()
    await until_delivered(scene.master.address)
    for slave in scene.slaves:
        async with peer_at(scene.master.address) as one, peer_at(slave.address) as other:
            end = await until_equal(one, other, slave.store)
    for member in members:
        await asyncio.to_thread(member.stop)
    for slave in scene.slaves:
        assert_same_files(scene.master.store, slave.store, end, with_java=with_java)
    assert_all_there(load, scene.slaves[0].store, FILE_SIZE)
    print(f"well after {scene.seconds} s; answers {scene.codes}; refused {dict(load.refused)}")


async def test_a_success_is_on_a_slave_whatever_fails(tmp_path: Path):
    async with scene_of(["ours", "ours", "ours"], tmp_path, SETTINGS) as scene:
        through, lines, (one, other) = scene.through, scene.bad_lines, scene.slaves
        slow = lines([0, 1], delay=0.03, loss=0.02)
        # Any slave is enough; on a busy machine it is late now and then.
        enough = {"must": [OK], "may": [LATE, AWAY], "seconds": SECONDS}
        await through("slow lines", slow, **enough)
        await through("one cut off", lines([0], cut=True), **enough)
        await through("one paused", scene.paused(one), **enough)
        await through("one dead", scene.dead(one), **enough)
        await through("one full", scene.full(1), late=0, **enough)
        # Those that were sent already are late, if there are any: after a large body the load sends
        # nothing for a while. After haHousekeepingInterval there is no slave.
        cut, paused = lines([0, 1], cut=True), scene.paused(one, other)
        await through("both cut off", cut, must=[AWAY], may=[OK, LATE], seconds=SECONDS)
        await through("both paused", paused, must=[AWAY], may=[OK, LATE], seconds=SECONDS)
        dead, full = scene.dead(one, other), scene.full(1, 2)
        await through("both dead", dead, must=[AWAY], may=[OK, LATE], seconds=SECONDS)
        await through("both full", full, must=[AWAY], may=[OK, LATE], seconds=SECONDS)
        for name, fault in (
            ("the master paused", scene.paused(scene.master)),
            ("the master alone", scene.alone()),
            ("the master dead", scene.dead(scene.master)),
        ):
            await through(name, fault, may=[OK, LATE, AWAY], seconds=SECONDS)
        await through(
            "the master full", scene.full(0), refuses=True, may=[OK, LATE, AWAY], seconds=SECONDS
        )
        await judge(scene)


@pytest.mark.java
@pytest.mark.parametrize("kinds", JAVA_PAIRS if IS_LONG else JAVA_PAIRS[:2], ids="-".join)
async def test_beside_java_the_answers_are_the_same(tmp_path: Path, kinds: tuple[str, str]):
    async with scene_of(kinds, tmp_path, SETTINGS) as scene:
        through, lines, [slave] = scene.through, scene.bad_lines, scene.slaves
        every = {"may": [OK, LATE], "seconds": SECONDS}
        await through("cut off", lines([0], cut=True), must=[AWAY], **every)
        await through("paused", scene.paused(slave), must=[AWAY], **every)
        if IS_LONG:
            slow = lines([0], delay=0.03, loss=0.02)
            await through("slow lines", slow, must=[OK], may=[LATE, AWAY], seconds=SECONDS)
            await through("dead", scene.dead(slave), must=[AWAY], **every)
            for name, fault in (
                ("the master paused", scene.paused(scene.master)),
                ("the master alone", scene.alone()),
                ("the master dead", scene.dead(scene.master)),
            ):
                await through(name, fault, may=[OK, LATE, AWAY], seconds=SECONDS)
        await judge(scene, with_java=True)
