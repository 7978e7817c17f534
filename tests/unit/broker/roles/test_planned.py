"""Master and slave change places while clients go on."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest

from kerolox.broker.replication import replication
from kerolox.broker.roles.record import RoleFile, RoleRecord
from kerolox.client import Producer, PullConsumer
from kerolox.errors import ClientError
from kerolox.message import Message, MessageQueue
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import log_of, quick_retries

from .cluster import NAME, Cluster, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def bodies(cluster: Cluster, topic: str = "T") -> list[bytes]:
    """What a topic has, queue by queue."""
    found = []
    async with PullConsumer("lookers", cluster.address) as consumer:
        for number in range(4):
            queue = MessageQueue(topic, NAME, number)
            offset = 0
            while True:
                result = await consumer.pull(queue, offset)
                if not result.messages:
                    break
                found += [each.body for each in result.messages]
                offset = result.next_offset
    return found


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_master_and_slave_change_places_and_clients_see_no_error(
    tmp_path: Path, kernel: str, role: str
) -> None:
    async with pair_of(tmp_path, kernel, role) as cluster:
        async with Producer("PG", cluster.address) as producer:
            sent: list[bytes] = []
            is_over = False

            async def send() -> None:
                while not is_over:
                    body = b"%d" % len(sent)
                    sent.append(body)
                    await producer.send(Message("T", body))

            senders = [asyncio.create_task(send()) for _ in range(4)]
            await until(lambda: len(sent) > 100)
            names = ["a", "b"]
            for turn in range(1, 5):
                old, new = names
                before = len(sent)
                changed = await cluster.admin.promote_broker(cluster.at(new))
                assert changed.not_told == {}
                assert (changed.master, changed.former_master) == (cluster.at(new), cluster.at(old))
                assert (changed.role, changed.epoch) == (role, turn)
                assert cluster.route == {0: cluster.at(new), 1: cluster.at(old)}
                await until(lambda before=before: len(sent) > before + 50)
                await cluster.until_following(old)
                names.reverse()
            is_over = True
            await asyncio.gather(*senders)
        await until(
            lambda: (
                cluster["a"].parts.store.max_physical_offset
                == cluster["b"].parts.store.max_physical_offset
            )
        )
        assert log_of(cluster["a"]) == log_of(cluster["b"])
        assert sorted(await bodies(cluster)) == sorted(sent)


@pytest.mark.parametrize("is_at_it", [False, True])
async def test_a_slave_that_examines_its_master_amid_the_change_takes_its_place(
    tmp_path: Path, kernel: str, is_at_it: bool
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:

        def poll(step: str) -> None:
            if step.endswith("becomes the master"):
                status = cluster["a"].parts.roles.status()
                if is_at_it:
                    # What it is now is on its disk, and it does not follow yet.
                    status = msgspec.structs.replace(status, is_paused=True, master_address="")
                cluster["b"].parts.roles.note_master(status)

        changed = await cluster.admin.promote_broker(cluster.at("b"), on_step=poll)
        assert (changed.master, changed.epoch) == (cluster.at("b"), 1)


async def test_demotion_of_a_master_promotes_its_only_slave(tmp_path: Path, kernel: str) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        changed = await cluster.admin.demote_broker(cluster.at("a"))
        assert changed is not None
        assert changed.master == cluster.at("b")
        assert cluster.route == {0: cluster.at("b"), 1: cluster.at("a")}


async def test_a_former_master_knows_at_once_what_its_new_master_is(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        monkeypatch.setattr(replication, "FIRST_SYNC_SECONDS", 60.0)
        await cluster.admin.promote_broker(cluster.at("b"))
        await until(lambda: cluster["a"].parts.roles.status().master_role == "SYNC_MASTER")
        tables = cluster["a"].parts.peers.replication.tables
        assert tables is not None
        assert tables.complete_below == cluster["b"].parts.store.max_physical_offset


def full_for(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch, *steps: str) -> None:
    """The disk of a broker refuses these steps of its role."""
    path = cluster[name].parts.roles._file.path

    def refusing(real: object) -> object:
        def step(file: RoleFile, record: RoleRecord) -> None:
            if file.path == path:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file, record)  # type: ignore[operator]

        return step

    for step in steps:
        monkeypatch.setattr(RoleFile, step, refusing(getattr(RoleFile, step)))


async def test_a_slave_that_has_no_room_for_its_role_leaves_its_master_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(tmp_path, "python") as cluster:
        full_for(cluster, "b", monkeypatch, "prepare", "save")
        steps: list[str] = []
        with pytest.raises(ClientError, match="No space left on device; nothing was changed"):
            await cluster.admin.promote_broker(cluster.at("b"), on_step=steps.append)
        # It was not even paused.
        assert len(steps) == 1
        assert cluster.route == {0: cluster.at("a"), 1: cluster.at("b")}


async def test_a_slave_that_can_not_take_the_place_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(tmp_path, "python") as cluster:
        full_for(cluster, "b", monkeypatch, "save")
        with pytest.raises(ClientError, match=r"No space left on device; .* is the master again"):
            await cluster.admin.promote_broker(cluster.at("b"))
        assert cluster.route == {0: cluster.at("a"), 1: cluster.at("b")}
        async with Producer("PG", cluster.address) as producer:
            await producer.send(Message("T", b"1"))
        monkeypatch.undo()
        await cluster.until_following("b")
        changed = await cluster.admin.promote_broker(cluster.at("b"))
        assert changed.master == cluster.at("b")
