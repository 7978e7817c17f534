from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.client.aio.consumers.offset_store import LocalOffsets
from kerolox.errors import ClientError
from kerolox.message import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def store(folder: Path) -> LocalOffsets:
    return LocalOffsets(folder, "1.2.3.4@DEFAULT", "group")


async def test_offsets_survive_in_the_folder_of_client_and_group(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert await first.load(Q0) == -1
    first.table.update(Q0, 5, increase_only=True)
    await first.persist([Q0, Q1])
    assert (tmp_path / "1.2.3.4@DEFAULT" / "group" / "offsets.json").exists()
    second = store(tmp_path)
    assert await second.load(Q0) == 5
    assert second.table.read(Q0) == 5


async def test_other_queues_of_the_file_are_kept(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    first.table.update(Q0, 5, increase_only=True)
    second.table.update(Q1, 6, increase_only=True)
    await first.persist([Q0])
    await second.persist([Q1])
    third = store(tmp_path)
    assert (await third.load(Q0), await third.load(Q1)) == (5, 6)


async def test_a_torn_file_falls_back_to_its_backup(tmp_path: Path) -> None:
    first = store(tmp_path)
    for offset in (5, 6):
        first.table.update(Q0, offset, increase_only=True)
        await first.persist([Q0])
    first.path.write_bytes(b'{"offsetTa')
    assert await store(tmp_path).load(Q0) == 5
    first.path.unlink()
    assert await store(tmp_path).load(Q0) == 5


async def test_two_unreadable_files_are_an_error_and_stay_as_they_are(tmp_path: Path) -> None:
    broken = store(tmp_path)
    broken.path.parent.mkdir(parents=True)
    for path in (broken.path, broken.path.with_name("offsets.json.bak")):
        path.write_bytes(b"{")
    with pytest.raises(ClientError, match=r"offsets\.json"):
        await broken.load(Q0)
    broken.table.update(Q0, 5, increase_only=True)
    await broken.persist([Q0])
    assert broken.path.read_bytes() == b"{"
