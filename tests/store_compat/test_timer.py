"""A store with messages that wait for a moment, had by our broker and by Java's in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.message import encode_properties
from kerolox.protocol.codes import ResponseCode
from kerolox.testing import Clock
from tests.store_compat import moments
from tests.support.clients.peer import peer_at
from tests.support.eventually import until
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.asyncio, pytest.mark.timeout(600)]

COUNT = 200
LATE_MS_MAX = 30_000
"""On a busy machine; a step, when it is not."""


DIFFERENT = {
    "overflow": ("0", "13"),
    "delete of another topic": ("0 waits", "13"),
    "another moment": ("0", "604"),
    "another message": ("0", "604"),
    "cut by 2": ("0", "604"),
    "cut by 4": ("0", "604"),
}
"""Bad input that Java obeys, or takes for something else: its answer and ours. The documented ones:
``docs/differences.md``. A cut handle is that of another message."""


def assert_whole(came: moments.Came) -> None:
    assert came.missing == set()
    assert came.wrong == set()
    assert came.doubled == set()
    assert came.early == set()
    assert max(came.late_ms(), default=0) < LATE_MS_MAX


async def test_what_waits_at_java_5_3_comes_at_ours_once_bad_input_is_told_alike(
    tmp_path: Path,
) -> None:
    came = await moments.java_then_ours(tmp_path, COUNT)
    assert_whole(came)
    assert came.by == {"java": COUNT // 4, "ours": COUNT - COUNT // 4 - 1}
    java, ours = came.answers["java"], came.answers["ours"]
    found = {case: (java[case], ours[case]) for case in java if java[case] != ours[case]}
    assert found == DIFFERENT


async def test_what_waits_at_ours_comes_at_java_5_3_at_its_moment_once(tmp_path: Path) -> None:
    came = await moments.ours_then_java(tmp_path, COUNT)
    assert_whole(came)
    assert came.by == {"ours": COUNT // 4, "java": COUNT // 2, "ours again": COUNT // 4 - 1}


async def test_java_4_9_leaves_what_waits_as_it_is(tmp_path: Path) -> None:
    clock, came = Clock(), moments.Came()
    async with moments.our_broker(tmp_path, clock) as (broker, peer):
        await peer.create_topic(moments.TOPIC, queues=1)
        came.ready_ms = clock()
        later = came.ready_ms + moments.HOUR_MS
        await moments.send_at(peer, came, "later", moments.spread(later, COUNT))
        service = broker.parts.writing.timer
        await until(lambda: service.timer is not None, what="the wheel")
        await service.turn()
    before = files(tmp_path)
    assert len(before) == 4
    lines = tuple(f"{name}={value}" for name, value in moments.SETTINGS.items())
    with JavaPeer(tmp_path, settings=lines, with_namesrv=False) as java:
        async with peer_at(f"127.0.0.1:{java.port}") as peer:
            given = encode_properties({"UNIQ_KEY": "k", "WAIT": "true"})
            answer = await peer.send(moments.TOPIC, b"by 4.9", properties=given)
            assert answer.code == ResponseCode.SUCCESS
            came.due_ms[b"by 4.9"] = came.ready_ms
            await until(lambda: moments.read_all(peer), what="what Java took")
    assert files(tmp_path) == before
    async with moments.our_broker(tmp_path, clock) as (broker, peer):
        await moments.deliver(broker, peer, clock, came, later)
    assert_whole(came)
    assert came.by == {"ours": COUNT + 1}


def files(data: Path) -> dict[str, tuple[int, int]]:
    """When each of the timer's files was written, and how long it is."""
    store = data / "store"
    paths = [store / "timerwheel", *(store / "config").glob("timer*")]
    paths += (store / "timerlog").iterdir()
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}
