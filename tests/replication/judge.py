"""What a pair of brokers has in the end: logs byte for byte, queues, tables, promised messages."""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter
from typing import TYPE_CHECKING

from kerolox.message import decode_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.protocol.records import parse_record
from tests.replication.load import (
    Acknowledged,
    body_of,
    delay_of,
    is_committed,
    is_half,
    key_of,
    topic_of,
)
from tests.support.clients.peer import peer_at
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kerolox.protocol.records import RecordView
    from tests.replication.load import Load
    from tests.replication.members import Member
    from tests.support.clients.peer import Peer

__all__ = [
    "LogFiles",
    "assert_all_there",
    "assert_found_by_key",
    "assert_same_files",
    "assert_stored",
    "end_of",
    "until_copied",
    "until_delivered",
    "until_equal",
    "until_same",
]

NAMED = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
TABLES = (*NAMED, RequestCode.GET_ALL_CONSUMER_OFFSET)
ENTRY = struct.Struct(">qiq")


# -- running brokers ----------------------------------------------------------------------------
async def end_of(peer: Peer) -> int:
    """Where the log of a broker ends; -1: it can't say now."""
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer.code != ResponseCode.SUCCESS:
        # Java's has no figures yet in the first second (StoreStatsService).
        assert "NoSuchElementException" in str(answer.remark), answer.remark
        return -1
    return int(fastjson.loads(answer.body)["table"]["commitLogMaxOffset"])


async def until_copied(master: Member, slave: Member, seconds_max: float = SECONDS_MAX) -> None:
    """Wait until the slave has what its master has now."""

    async def is_copied() -> bool:
        async with peer_at(master.address) as one, peer_at(slave.address) as other:
            mark = await end_of(one)
            return await end_of(other) >= mark > 0

    await until(is_copied, seconds=seconds_max, what="a slave that follows")


async def _table(peer: Peer, code: int) -> object:
    return fastjson.loads((await peer.ask(code)).body)


async def until_same(master: Peer, slave: Peer, codes: Iterable[RequestCode] = NAMED) -> None:
    """Wait until the slave has its master's tables, by default those of topics and groups."""
    for code in codes:

        async def is_same(code: int = code) -> bool:
            return await _table(slave, code) == await _table(master, code)

        await until(is_same, what=f"the same table {code.name}")


async def until_equal(master: Peer, slave: Peer, its_store: Path) -> int:
    """Wait until both have the same log and tables; where the log ends.

    Args:
        master: a client of the one.
        slave: a client of the other.
        its_store: the slave's folder. Java's writes delay offsets there and takes them at its next
            start only.
    """
    await until_same(master, slave, TABLES)

    async def is_delay_same() -> bool:
        path = its_store / "config" / "delayOffset.json"
        if not path.exists() or not (text := path.read_text()):
            return False
        at_master = await _table(master, RequestCode.GET_ALL_DELAY_OFFSET)
        return _offsets(fastjson.loads(text)) == _offsets(at_master)

    await until(is_delay_same, what="the same delay offsets")

    async def has_all() -> bool:
        return await end_of(slave) == await end_of(master) > 0

    await until(has_all, what="the same end of both logs")
    return await end_of(master)


def _offsets(table: object) -> dict[int, int]:
    """By level."""
    assert isinstance(table, dict)
    return {int(level): offset for level, offset in table["offsetTable"].items()}


async def until_delivered(address: str) -> None:
    """Wait until every delayed message has left the queues of its level."""
    async with peer_at(address) as peer:
        for level in range(1, 4):
            fields = {"topic": SCHEDULE_TOPIC, "queueId": level - 1}

            async def is_passed(level: int = level, fields: dict[str, object] = fields) -> bool:
                answer = await peer.ask(RequestCode.GET_MAX_OFFSET, fields)
                passed = _offsets(await _table(peer, RequestCode.GET_ALL_DELAY_OFFSET))
                return int(answer.ext_fields["offset"]) == passed.get(level, 0)

            await until(is_passed, what=f"the last message of level {level}")


# -- files --------------------------------------------------------------------------------------
class LogFiles:
    """The log of a folder, read from its files, whether its broker runs or not."""

    def __init__(self, store: Path, file_size: int) -> None:
        self._folder, self._file_size = store / "commitlog", file_size

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one file."""
        begin = offset - offset % self._file_size
        try:
            descriptor = os.open(self._folder / f"{begin:020d}", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size, offset - begin)
        finally:
            os.close(descriptor)

    def has(self, message: Acknowledged) -> bool:
        """Whether a message is where it was said to be."""
        body = body_of(message.number)
        data = self.read(message.physical_offset, len(body) + 1_000)
        record = parse_record(data, 0, len(data), message.physical_offset)
        return record is not None and data[record.body_start : record.body_end] == body

    @property
    def end(self) -> int:
        """Behind the last whole record."""
        last = max(self.records(), key=lambda record: record.physical_offset)
        return last.physical_offset + last.size

    def records(self) -> Iterator[RecordView]:
        """All records, to the end of the log."""
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    # Java's makes a file ahead, and its size a moment later.
                    continue
                view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            with view:
                at, begin = 0, int(path.name)
                while record := parse_record(view, at, len(view), begin + at):
                    yield record
                    at += record.size


def assert_stored(acknowledged: Iterable[Acknowledged], stores: Sequence[Path], size: int) -> int:
    """Each acknowledged message is in one of some logs, where it was said to be.

    Args:
        acknowledged: what was said.
        stores: folders.
        size: of a file of their logs.

    Returns:
        How many they are.
    """
    logs = [LogFiles(store, size) for store in stores]
    messages = list(acknowledged)
    lost = [each for each in messages if not any(log.has(each) for log in logs)]
    assert not lost, f"{len(lost)} of {len(messages)} are not in {stores}, first {lost[0]}"
    return len(messages)


def assert_all_there(load: Load, store: Path, file_size: int) -> Counter[str]:
    """Every acknowledged message is in the log, and where consumers find it; records by topic."""
    assert_stored(load.acknowledged, [store], file_size)
    topics: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for record in LogFiles(store, file_size).records():
        topic = record.topic.decode()
        topics[topic] += 1
        found[topic, decode_properties(record.properties.decode()).get("UNIQ_KEY", "")] += 1
    missing, doubled = [], []
    for each in load.acknowledged:
        number = each.number
        wanted = number in load.ended and is_committed(number) if is_half(number) else True
        times = found[topic_of(number), key_of(number)]
        if wanted and not times:
            missing.append(each)
        # A kill makes what it delivered last come again, as in RocketMQ.
        may_double = delay_of(number) or number in load.ended_again
        if times > (1 if wanted else 0) and not may_double:
            doubled.append(each)
    assert not missing, f"{len(missing)} were not delivered, first {missing[0]}"
    assert not doubled, f"{len(doubled)} are there too often, first {doubled[0]}"
    return topics


def _queues(store: Path) -> dict[str, list[tuple[int, int, int]]]:
    """The entries of all queues by topic and queue: physical offset, size, hash of the tags."""
    found = {}
    folder = store / "consumequeue"
    for queue in sorted(folder.glob("*/*")):
        data = b"".join(path.read_bytes() for path in sorted(queue.iterdir())).rstrip(b"\0")
        data += bytes(-len(data) % ENTRY.size)
        if data:
            found[str(queue.relative_to(folder))] = list(ENTRY.iter_unpack(data))
    return found


def assert_same_files(one: Path, other: Path, end: int, *, with_java: bool = False) -> None:
    """Two stopped brokers have the same log up to an offset, and the same queue entries.

    Args:
        one: a folder.
        other: the other one's.
        end: where the log ends.
        with_java: one of them is Java's. It writes the hash of the tags where a delayed message's
            entry has its time, if the entry was missing after a kill: its levels come later.
    """
    for path in sorted((one / "commitlog").iterdir()):
        size = end - int(path.name)
        if size > 0:
            theirs = (other / "commitlog" / path.name).read_bytes()[:size]
            assert path.read_bytes()[:size] == theirs, f"{path} differs"
    queues, others = _queues(one), _queues(other)
    assert queues.keys() == others.keys()
    for name, entries in queues.items():
        columns = 2 if with_java and name.startswith(SCHEDULE_TOPIC) else 3
        pairs = zip(entries, others[name], strict=True)
        different = [(a, b) for a, b in pairs if a[:columns] != b[:columns]]
        assert not different, f"{len(different)} entries of {name}, first {different[0]}"


async def assert_found_by_key(peer: Peer, load: Load) -> None:
    """A broker finds some of the messages by their keys."""
    plain = [each.number for each in load.acknowledged if not is_half(each.number)]
    for number in plain[:: len(plain) // 20]:
        fields = {
            "topic": topic_of(number),
            "key": f"k{number}",
            "maxNum": 32,
            "beginTimestamp": 0,
            "endTimestamp": 2**62,
        }

        async def is_found(fields: dict[str, object] = fields) -> bool:
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, fields)
            return answer.code == ResponseCode.SUCCESS

        await until(is_found, what=f"message {number} by its key")
