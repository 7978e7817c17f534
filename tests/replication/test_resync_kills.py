"""A slave in a process of its own that is killed while it cuts its log, again and again."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest

from tests.replication.members import NameServerProcess, OurMember
from tests.support.clients.peer import Peer, peer_at
from tests.support.eventually import until
from tests.support.servers.command import kerolox

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "haSendHeartbeatInterval": 100,
}
COMMON, OF_MASTER, OF_SLAVE = 600, 700, 2_500


async def send(peer: Peer, count: int, mark: bytes) -> None:
    sends = (peer.send("T", mark * 1_000, queue_id=number % 4) for number in range(count))
    assert {answer.code for answer in await asyncio.gather(*sends)} == {0}


async def written(member: OurMember, count: int, mark: bytes) -> None:
    """Have a broker write to its store by itself."""
    member.start()
    async with peer_at(member.address) as peer:
        await peer.create_topic("T")
        await send(peer, count, mark)
    member.stop()


def parts(slave: OurMember) -> list[Path]:
    return sorted(path.parent for path in slave.store.glob("commitlog-cut/*/cut.json"))


def dumped(folder: Path, begin: int) -> list[dict[str, object]]:
    """What ``kerolox store dump`` shows, as the log says to call it."""
    done = kerolox("store", "dump", folder, "--from", begin)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def same_log(slave: OurMember, master: OurMember) -> bool:
    def content(member: OurMember) -> list[tuple[str, bytes]]:
        files = sorted((member.store / "commitlog").iterdir())
        return [(file.name, file.read_bytes().rstrip(b"\0")) for file in files]

    try:
        own, its = content(slave), content(master)
    except FileNotFoundError:
        # The slave is still at it, or a file that was made ahead is gone.
        return False
    return [each for each in own if each[1]] == [each for each in its if each[1]]


@pytest.mark.parametrize("kernel", ["python", "native"])
async def test_a_slave_that_is_killed_while_it_cuts_loses_nothing(
    tmp_path: Path, kernel: str
) -> None:
    source = random.Random(7)
    with NameServerProcess(tmp_path / "namesrv") as namesrv:
        master = OurMember(tmp_path / "master", namesrv.address, SETTINGS, kernel=kernel)
        role = {"brokerRole": "SLAVE", "brokerId": 1}
        address = {"haMasterAddress": f"127.0.0.1:{master.port + 1}"}
        alone = OurMember(tmp_path / "slave", namesrv.address, SETTINGS, kernel=kernel)
        slave = OurMember(
            tmp_path / "slave", namesrv.address, {**SETTINGS, **role, **address}, kernel=kernel
        )
        try:
            await written(master, COMMON, b"c")
            shutil.copytree(master.store, slave.store)
            await written(alone, OF_SLAVE, b"s")
            await written(master, OF_MASTER, b"m")
            master.start()
            kills = 0
            while kills < 8 and not parts(slave):
                # Counted before it starts: it may restart before its start is seen here.
                before = slave.log.count("restarts in its process")
                slave.start()
                await until(
                    lambda before=before: (
                        slave.log.count("restarts in its process") > before
                        # The kill before this start came after the cut, or this start ends it.
                        or parts(slave) != []
                    )
                )
                await asyncio.sleep(source.uniform(0, 0.05))
                slave.kill()
                kills += 1
            slave.start()
            await until(lambda: parts(slave) != [] and same_log(slave, master))
            assert slave.is_alive()
            slave.stop()
            master.stop()
        finally:
            for member in (slave, alone, master):
                member.end()
    assert kills > 0
    [part] = parts(slave)
    begin = json.loads((part / "cut.json").read_text())["begin"]
    records = dumped(part, begin)
    bodies = [str(record["body"])[0] for record in records if record["topic"] == "T"]
    assert bodies == ["s"] * OF_SLAVE
