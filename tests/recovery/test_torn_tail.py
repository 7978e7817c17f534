"""Damage at the end of a killed broker's log: cut, garbage, zeros, lengths that lie, flipped bits.

What was stored before the damage is there, whatever is there is as it was put, and the store starts
and takes messages. The CRC of a record covers its body, the lengths check each other, and queue id,
queue offset and topic are checked by the queue entry; times, hosts, flags and the property text no
field of the format protects: there alone a flipped bit may stay.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.faults.crashing import Crashable, Kept, Ledger, Loss, copied, rewrite
from tests.support.kernels import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SEEDS = int(os.environ.get("KEROLOX_CRASH_SEEDS", "16"))
FILE_BYTES = 16 * 1024
MESSAGES = 90
LAST = 3
HEAD_BYTES = 88
"""Of a record with IPv4 hosts, before its body."""
UNPROTECTED = [*range(16, 20), *range(36, 84)]
"""Flag, sys flag, born time and host, store time and host, reconsume times, prepared offset."""


class Killed(NamedTuple):
    """A store after a kill."""

    crashable: Crashable
    ledger: Ledger


@pytest.fixture(scope="module", params=KERNELS)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A store that was filled and killed; its last records are queued ones, in one file."""
    kernel = request.param
    crashable = Crashable(kernel, tmp_path_factory.mktemp(f"killed-{kernel}") / "store")
    ledger = Ledger(1)
    crashable.open()
    ledger.fill(crashable, MESSAGES)
    crashable.store.flush()
    ledger.fill(crashable, MESSAGES)
    while crashable.store.max_physical_offset % FILE_BYTES < FILE_BYTES // 8:
        ledger.fill(crashable, 1)
    for topic, queue_id in (("A", 0), ("B", 0), ("A", 1)):
        ledger.put(crashable, topic, queue_id, size=200)
    crashable.kill()
    return Killed(crashable, ledger)


class Case:
    """A copy of the killed store that is damaged and opened again."""

    def __init__(self, killed: Killed, folder: Path, seed: int) -> None:
        self.crashable = copied(killed.crashable, folder)
        self.ledger = killed.ledger.copy()
        self.random = random.Random(seed)
        self.end = self.ledger.records[-1].end
        start = (self.end - 1) // FILE_BYTES * FILE_BYTES
        self.file = folder / "commitlog" / f"{start:020d}"
        self.start = start

    def choose(self) -> Kept:
        """One of the last records."""
        return self.random.choice(self.ledger.records[-LAST:])

    def changed(self) -> dict[int, bytes]:
        """The last records that differ in unprotected fields only, as they are now."""
        file = self.file.read_bytes()
        found: dict[int, bytes] = {}
        for kept in self.ledger.records[-LAST:]:
            at = kept.physical_offset - self.start
            now = file[at : at + len(kept.record)].ljust(len(kept.record), b"\0")
            places = [
                i for i, (old, new) in enumerate(zip(kept.record, now, strict=True)) if old != new
            ]
            (body_size,) = struct.unpack_from(">i", kept.record, HEAD_BYTES - 4)
            properties_at = HEAD_BYTES + body_size + 1 + len(kept.topic) + 2
            if places and all(i in UNPROTECTED or i >= properties_at for i in places):
                found[kept.physical_offset] = now
        return found

    def damage(self, change: Callable[[bytearray], None]) -> None:
        """Change the bytes of the log's last file."""
        rewrite(self.file, change)

    def write(self, physical_offset: int, data: bytes) -> None:
        """Overwrite bytes of the log."""
        at = physical_offset - self.start

        def change(file: bytearray) -> None:
            part = data[: len(file) - at]
            file[at : at + len(part)] = part

        self.damage(change)

    def lose_more(self) -> None:
        """Perhaps queues, index, checkpoint or the boot's name are damaged or gone as well."""
        folder, chance = self.crashable.folder, self.random
        if chance.random() < 0.3:
            shutil.rmtree(folder / "index", ignore_errors=True)
        if chance.random() < 0.3:
            (folder / "checkpoint").write_bytes(chance.choice((b"", b"\xff" * 40, bytes(4_096))))
        if chance.random() < 0.5:
            (folder / "boot").unlink(missing_ok=True)
            (folder / "abort").write_bytes(b"")

    def lose_queues(self) -> None:
        """Perhaps a queue is gone, or its last entries are."""
        queues = sorted((self.crashable.folder / "consumequeue").glob("*/*"))
        for folder in queues:
            kind = self.random.random()
            if kind < 0.2:
                shutil.rmtree(folder)
            elif kind < 0.4:
                newest = max(folder.iterdir())
                kept = self.random.randrange(320 // 20) * 20
                newest.write_bytes(newest.read_bytes()[:kept].ljust(320, b"\0"))

    def check(self, kept_below: int) -> None:
        """Open it: nothing before ``kept_below`` is lost, and it goes on."""
        changed = self.changed()
        self.crashable.open()
        self.ledger.check(self.crashable, Loss(kept_below, changed))
        if not changed:
            self.ledger.check_onward(self.crashable)
        else:
            self.crashable.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_tail_that_is_torn_costs_what_was_torn(
    killed: Killed, seed: int, memory_path: Path
) -> None:
    case = Case(killed, memory_path / "store", seed)
    chance, record = case.random, case.choose()
    at = chance.randrange(record.physical_offset, record.end)
    kind = seed % 6
    if kind == 0:
        case.write(at, bytes(FILE_BYTES))
    elif kind == 1:
        case.damage(lambda file: file.__delitem__(slice(at - case.start, None)))
    elif kind == 2:
        case.write(at, chance.randbytes(chance.choice((1, 8, 100, 2_000))) + b"\1")
    elif kind == 3:
        case.write(at, bytes(chance.choice((8, 64, 300))))
    elif kind == 4:
        case.write(case.end, chance.randbytes(chance.choice((1, 4, 91, 700))))
    else:
        # What an older use of the file would have left: a whole record that names another place.
        case.write(record.end, case.ledger.records[-LAST - 1].record)
    case.lose_more()
    case.lose_queues()
    case.check(case.end if kind == 4 else record.end if kind == 5 else record.physical_offset)


LENGTHS = [-1, -(2**31), 0, 1, 8, 90, 91, 2**31 - 1, 2**30, FILE_BYTES, FILE_BYTES + 1]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_length_that_lies_is_not_followed(killed: Killed, seed: int, memory_path: Path) -> None:
    case = Case(killed, memory_path / "store", 1_000 + seed)
    chance, record = case.random, case.choose()
    size = len(record.record)
    left = FILE_BYTES - (record.physical_offset - case.start)
    length = chance.choice([*LENGTHS, size - 1, size + 1, left, left - 1, left - 8, left + 1])
    (body_size,) = struct.unpack_from(">i", record.record, HEAD_BYTES - 4)
    topic_at = HEAD_BYTES + body_size
    properties_at = topic_at + 1 + record.record[topic_at]
    field, data = chance.choice([
        (0, struct.pack(">i", length)),
        (HEAD_BYTES - 4, struct.pack(">i", length)),
        (topic_at, bytes([chance.choice((0, 2, 3, 127, 128, 255))])),
        (properties_at, struct.pack(">H", chance.choice((0, 1, 32_767, 32_768, 65_535)))),
    ])  # fmt: skip
    if chance.random() < 0.3:
        # A right magic with a garbage length behind the last record.
        case.write(case.end, struct.pack(">i", length) + b"\xda\xa3\x20\xa7" + chance.randbytes(99))
        kept_below = case.end
    else:
        case.write(record.physical_offset + field, data)
        kept_below = record.physical_offset
    case.lose_more()
    case.lose_queues()
    case.check(kept_below)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_flipped_bit_is_found_or_in_no_protected_field(
    killed: Killed, seed: int, memory_path: Path
) -> None:
    case = Case(killed, memory_path / "store", 2_000 + seed)
    chance, record = case.random, case.choose()
    size = len(record.record)
    (body_size,) = struct.unpack_from(">i", record.record, HEAD_BYTES - 4)
    properties_at = HEAD_BYTES + body_size + 1 + len(record.topic) + 2
    ranges = [range(HEAD_BYTES), range(HEAD_BYTES, properties_at), range(size)]
    at = chance.choice(ranges[seed % 3])
    damaged = bytearray(record.record)
    damaged[at] ^= 1 << chance.randrange(8)
    case.write(record.physical_offset, bytes(damaged))
    # That a queue knows a record otherwise is seen where the queue is there.
    case.lose_more()
    case.check(record.physical_offset)
