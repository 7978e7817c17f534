"""A slave whose log is not its master's: what it cuts, keeps aside, and says before it follows."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker import broker as broker_module
from kerolox.broker.broker import Broker, open_store
from kerolox.broker.replication import resync
from kerolox.broker.replication.comparing import DivergedError
from kerolox.errors import StoreError
from kerolox.protocol.codes import PullSysFlag, ResponseCode
from kerolox.store.recovery.log_cut import kept_parts
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

from .pairs import (
    fill,
    ha_port,
    log_of,
    master_config,
    queues_of,
    quick_retries,
    slave_config,
    until_equal,
)

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def written(folder: Path, kernel: str, count: int, mark: bytes = b"x", size: int = 900):
    """Have a master of its own write more to a store."""
    async with Broker(small_config(folder), kernel=kernel) as broker:
        await fill(broker, count, size, mark)


async def two_logs(
    tmp_path: Path, kernel: str, *, common: int = 20, of_master: int = 10, of_slave: int = 15
) -> int:
    """A master's store and a slave's that were the same once; where they ended then."""
    end = 0
    if common:
        async with Broker(small_config(tmp_path / "master"), kernel=kernel) as broker:
            await fill(broker, common)
            end = broker.parts.store.max_physical_offset
        shutil.copytree(tmp_path / "master", tmp_path / "slave")
    if of_master:
        await written(tmp_path / "master", kernel, of_master, b"m")
    if of_slave:
        await written(tmp_path / "slave", kernel, of_slave, b"s")
    return end


async def until_same(master: Broker, slave: Broker) -> None:
    """Wait until the slave, which may restart meanwhile, has its master's log."""

    def is_same() -> bool:
        its = master.parts.store
        mine = slave.parts.store
        return mine.max_physical_offset == its.max_physical_offset > 0 and (
            slave.parts.peers.replication.follower.is_following
        )

    await until(is_same)
    assert log_of(slave) == log_of(master)
    # Where a log begins later, its queues begin with what is in it.
    ends = [[(*queue[:2], queue[3]) for queue in queues_of(each)] for each in (slave, master)]
    assert ends[0] == ends[1]


def parts_of(slave: Broker) -> list[dict[str, Any]]:
    """What ``cut.json`` says of each part that is kept."""
    folders = kept_parts(slave.config.store_settings())
    return [json.loads(Path(folder, "cut.json").read_text()) for folder in folders]


def bytes_kept(part: dict[str, Any]) -> bytes:
    """The part that was cut off, from its files."""
    files = sorted(Path(part["folder"], "commitlog").iterdir())
    data = b"".join(file.read_bytes() for file in files)
    start = int(files[0].name)
    return data[part["begin"] - start : part["end"] - start]


async def test_what_a_master_has_otherwise_is_cut_off_and_kept(tmp_path: Path, kernel: str, caplog):
    end = await two_logs(tmp_path, kernel)
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        config = slave_config(tmp_path, ha_port(master), slave_read_enable=True)
        slave = Broker(config, kernel=kernel)
        await slave.start()
        port = slave.port
        before = log_of(slave)
        await until_same(master, slave)
        assert slave.port == port
        [part] = parts_of(slave)
        assert (part["begin"], part["end"]) == (end, len(before))
        assert bytes_kept(part) == before[end:]
        assert "differ from" in part["why"]
        assert part["master"] == f"127.0.0.1:{ha_port(master)}"
        assert f"its log ends at {end} now" in caplog.text
        assert f"kerolox store dump {part['folder']} --from {end} shows them" in caplog.text
        await slave.parts.peers.replication.tables.sync_from(master.address)
        async with peer_of(slave) as peer:
            bodies = [message.body for message in await peer.messages("T", 1)]
        assert len(bodies) == 8
        assert not any(b"s" in body for body in bodies)
        await fill(master, 20)
        await until_equal(master, slave)
        await slave.stop()


async def test_a_part_that_only_the_slave_has_is_cut_off_and_kept(
    tmp_path: Path, kernel: str, caplog
):
    """The master lost its end in a crash."""
    end = await two_logs(tmp_path, kernel, of_master=0)
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as master,
        Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave,
    ):
        before = log_of(slave)
        await until_same(master, slave)
        [part] = parts_of(slave)
        assert bytes_kept(part) == before[end:] != b""
        assert f"the master has nothing from {end} on" in part["why"]


async def test_a_long_part_is_found_by_looking_further_back(tmp_path: Path, kernel: str):
    end = await two_logs(tmp_path, kernel, of_master=900, of_slave=600)
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as master,
        Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave,
    ):
        await until_same(master, slave)
        [part] = parts_of(slave)
        assert part["begin"] == end


async def test_a_slave_that_runs_is_restarted_when_another_master_comes(
    tmp_path: Path, kernel: str
):
    end = await two_logs(tmp_path, kernel, of_slave=0)
    shutil.copytree(tmp_path / "master", tmp_path / "other")
    await written(tmp_path / "other", kernel, 30, b"o")
    port = free_port()
    first = Broker(master_config(tmp_path, ha_listen_port=port), kernel=kernel)
    await first.start()
    config = slave_config(tmp_path, port, slave_read_enable=True)
    async with Broker(config, kernel=kernel) as slave:
        await until_same(first, slave)
        await fill(first, 10, mark=b"f")
        await until_same(first, slave)
        await slave.parts.peers.replication.tables.sync_from(first.address)
        async with peer_of(slave) as peer:
            at = slave.parts.store.queue_bounds("T", 0)[1]
            flags = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
            held = asyncio.ensure_future(
                peer.pull("T", offset=at, sys_flag=flags, suspend_ms=60_000)
            )
            await until(lambda: slave.parts.store.stats()["held_pulls"] == 1)
            await first.stop()
            other = small_config(tmp_path / "other", ha_listen_port=port)
            async with Broker(other, kernel=kernel) as second:
                answer = await held
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                await until_same(second, slave)
                assert len(parts_of(slave)) == 1
                assert slave.parts.store.min_physical_offset == 0 < end


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ha_cut_max_size": 0}, r"Nothing in the last 6\d+ bytes|more than haCutMaxSize=0"),
        ({"ha_cut_max_size": 5_000}, "more than haCutMaxSize=5000"),
    ],
)
async def test_a_part_that_is_too_large_is_left_and_told_of(
    tmp_path: Path, kernel: str, caplog, more: dict[str, Any], words: str
):
    await two_logs(tmp_path, kernel)
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as master,
        Broker(slave_config(tmp_path, ha_port(master), **more), kernel=kernel) as slave,
    ):
        before = log_of(slave)
        await until(lambda: re.search(words, caplog.text) is not None)
        assert "nothing was changed" in caplog.text
        assert log_of(slave) == before
        assert parts_of(slave) == []
        await fill(master, 5)


async def test_logs_that_have_nothing_in_common_are_left_and_told_of(
    tmp_path: Path, kernel: str, caplog
):
    await two_logs(tmp_path, kernel, common=0)
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as master,
        Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave,
    ):
        before = log_of(slave)
        await until(lambda: "is it the right master?" in caplog.text)
        assert log_of(slave) == before
        assert parts_of(slave) == []


async def test_a_slave_that_may_begin_anew_keeps_its_old_log_aside(tmp_path: Path, kernel: str):
    await two_logs(tmp_path, kernel, common=0)
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        config = slave_config(tmp_path, ha_port(master), ha_begin_anew=True)
        async with Broker(config, kernel=kernel) as slave:
            before = log_of(slave)
            await until_same(master, slave)
            [part] = parts_of(slave)
            assert bytes_kept(part) == before


async def test_an_empty_master_takes_no_log_from_a_slave_that_may_begin_anew(
    tmp_path: Path, kernel: str, caplog
):
    await two_logs(tmp_path, kernel, common=0, of_master=0)
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        config = slave_config(tmp_path, ha_port(master), ha_begin_anew=True)
        async with Broker(config, kernel=kernel) as slave:
            await until(lambda: "is it the right master?" in caplog.text)
            assert slave.parts.store.max_physical_offset > 0
            assert parts_of(slave) == []


@pytest.mark.parametrize("anew", [False, True])
async def test_a_slave_whose_next_messages_the_master_has_deleted_says_so(
    tmp_path: Path, kernel: str, caplog, anew: bool
):
    await two_logs(tmp_path, kernel, of_master=2_500, of_slave=0)
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        assert master.parts.store.drop_log_file() is not None
        config = slave_config(tmp_path, ha_port(master), ha_begin_anew=anew)
        async with Broker(config, kernel=kernel) as slave:
            before = log_of(slave)
            if not anew:
                await until(lambda: "the messages between them are deleted there" in caplog.text)
                assert "haBeginAnew=true" in caplog.text
                assert log_of(slave) == before
                return
            await until_same(master, slave)
            assert slave.parts.store.min_physical_offset > 0
            [part] = parts_of(slave)
            assert bytes_kept(part) == before


async def test_a_disk_that_takes_no_copy_leaves_the_slave_as_it_is(
    tmp_path: Path, kernel: str, caplog, monkeypatch: pytest.MonkeyPatch
):
    await two_logs(tmp_path, kernel)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "commitlog-cut")

    monkeypatch.setattr("kerolox.store.recovery.log_cut.cut_log", full)
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as master,
        Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave,
    ):
        before = log_of(slave)
        await until(lambda: "tried again after 600 s" in caplog.text)
        assert "the log of the slave is not cut: [Errno 28]" in caplog.text
        assert log_of(slave) == before
        assert caplog.text.count("restarts in its process") == 1


async def test_masters_that_take_turns_do_not_fill_the_disk(
    tmp_path: Path, kernel: str, caplog, monkeypatch: pytest.MonkeyPatch
):
    """Two masters of one name: the slave hears now of the one, now of the other."""
    monkeypatch.setattr(resync, "PARTS_MAX", 3)
    await two_logs(tmp_path, kernel)
    shutil.copytree(tmp_path / "slave", tmp_path / "other")
    async with (
        Broker(master_config(tmp_path), kernel=kernel) as one,
        Broker(small_config(tmp_path / "other"), kernel=kernel) as two,
    ):
        config = slave_config(tmp_path, 1, ha_master_address="")
        async with Broker(config, kernel=kernel) as slave:
            for master in (one, two, one, two):
                address = f"127.0.0.1:{ha_port(master)}"
                slave.parts.peers.replication.follower.set_master(address)

                def is_through(master: Broker = master, address: str = address) -> bool:
                    # A broker that restarts asks its name server again.
                    slave.parts.peers.replication.follower.set_master(address)
                    own = slave.parts.store.max_physical_offset
                    return (
                        own == master.parts.store.max_physical_offset
                        or "do two masters take turns?" in caplog.text
                    )

                await until(is_through)
            await until(lambda: "do two masters take turns?" in caplog.text)
            assert len(parts_of(slave)) == 3


@pytest.mark.parametrize("refusal", ["", "it is being stopped"])
async def test_under_a_controller_the_oldest_part_goes_and_the_slave_follows(
    tmp_path: Path, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it is no fault that masters change: each failover may leave a part."""
    monkeypatch.setattr(resync, "PARTS_MAX", 3)
    config = small_config(
        tmp_path, enable_controller_mode=True, controller_addr="127.0.0.1:1", broker_name="b"
    )
    parts = config.log_folders[0].with_name("commitlog-cut")
    names = [f"2026110{day}-000000-{10 - day}" for day in range(4)]
    for name in names:
        (parts / name).mkdir(parents=True)
        (parts / name / "cut.json").write_text("{}")
    cuts: list[resync.CutRequest] = []

    def restart(request: resync.CutRequest) -> str:
        cuts.append(request)
        return refusal

    decided = resync.Resync(config, restart).decide(DivergedError("others", 5), 9, "master")
    assert [each.equal_to for each in cuts] == [5]
    assert bool(decided) is bool(refusal)
    left = names if refusal else names[2:]
    assert sorted(each.name for each in parts.iterdir()) == left


async def test_a_broker_that_is_stopped_while_it_restarts_stays_stopped(
    tmp_path: Path, kernel: str, caplog
):
    await two_logs(tmp_path, kernel)
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        slave = Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel)
        await slave.start()
        await until(lambda: "restarts in its process" in caplog.text)
        await slave.reload_settings()
        await slave.stop()
        await slave.stop()
        # Nobody holds the store, and the next start goes on.
        async with Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as again:
            await until_same(master, again)
            assert len(parts_of(again)) == 1


@pytest.mark.parametrize("error", [StoreError("in use"), OSError(5, "broken"), KeyError("odd")])
async def test_a_broker_that_does_not_start_again_is_started_until_it_does(
    tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    await two_logs(tmp_path, "python")
    monkeypatch.setattr(broker_module, "START_AGAIN_SECONDS", 0.05)
    real, failures = open_store, [error, error]

    async def ends_badly() -> None:
        raise RuntimeError("a part does not stop")

    async with Broker(master_config(tmp_path), kernel="python") as master:
        config = slave_config(tmp_path, ha_port(master))
        async with Broker(config, kernel="python") as slave:
            slave._cleanup.push_async_callback(ends_badly)

            def opened(*arguments: Any, **named: Any) -> Any:
                if failures:
                    raise failures.pop()
                return real(*arguments, **named)

            monkeypatch.setattr(broker_module, "open_store", opened)
            await until_same(master, slave)
            assert failures == []
        assert caplog.text.count("does not start again") == 2
        assert "the broker did not stop well" in caplog.text
