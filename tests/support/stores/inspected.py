"""A small store for the tests of ``kerolox store``: made once, copied for each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kerolox.inspect.check import CheckReport, check_store
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.protocol.records import parse_record
from tests.support.stores.bench import NOW, Bench, properties

__all__ = ["FILE_BYTES", "Made", "check", "fill", "made_store", "places_of"]

FILE_BYTES = 64 * 1024
MESSAGES = 400
DELAYED = 5


def fill(bench: Bench, messages: int = MESSAGES) -> None:
    """Messages of T in 4 queues with tags and keys, some delayed, over several files."""
    for number in range(messages):
        bench.store.set_clock(NOW + number * 100)
        text = properties(UNIQ_KEY=f"U{number:05d}", KEYS=f"k{number} all", TAGS=f"t{number % 3}")
        answer = bench.append(b"%d " % number * 100, text, queue_id=number % 4)
        assert answer[0] == 0
        if number % (messages // DELAYED) == 0:
            text = properties(DELAY="3", REAL_TOPIC="T", REAL_QID="0", UNIQ_KEY=f"D{number}")
            bench.append(b"later", text, topic=b"SCHEDULE_TOPIC_XXXX", queue_id=2)
        if number % 50 == 0:
            bench.append(b"half", properties(UNIQ_KEY=f"P{number}"), sys_flag=4)


def made_store(root: Path, kernel: object, **settings: object) -> None:
    """Make the store in a folder and stop cleanly."""
    bench = Bench(kernel, root)
    bench.open(**settings)
    fill(bench)
    bench.wait_indexed()
    bench.store.close()


@dataclass(frozen=True)
class Made:
    """A copy of the store."""

    root: Path

    @classmethod
    def copy(cls, source: Path, target: Path) -> Made:
        shutil.copytree(source, target)
        return cls(target)

    def log_file(self, number: int = 0) -> Path:
        return self.root / "commitlog" / f"{number * FILE_BYTES:020d}"

    def queue_file(self, topic: str = "T", queue_id: int = 0, number: int = 0) -> Path:
        return self.root / "consumequeue" / topic / str(queue_id) / f"{number * 2000:020d}"

    def index_file(self, number: int = 0) -> Path:
        return sorted((self.root / "index").iterdir())[number]

    def record(self, queue_id: int, queue_offset: int) -> tuple[int, int, int, int]:
        """(physical offset, size, position of the body, of the property text) of a record of T."""
        path = self.queue_file("T", queue_id, queue_offset // 100)
        at = queue_offset % 100 * 20
        entry = path.read_bytes()[at : at + 20]
        offset, size = int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:12], "big")
        data = self.log_file(offset // FILE_BYTES).read_bytes()
        view = parse_record(data, offset % FILE_BYTES, FILE_BYTES, offset)
        assert view is not None
        return offset, size, view.body_start, view.body_end + 2 + len(view.topic) + 1

    def flip(self, path: Path, position: int, bit: int = 0x01) -> None:
        """Turn one bit of a file."""
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ bit]))

    def write(self, path: Path, position: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)


def places_of(root: Path, **options: object) -> StorePlaces:
    return StorePlaces.find(str(root), StoreOptions(**options))  # type: ignore[arg-type]


def check(root: Path, **options: object) -> CheckReport:
    return check_store(places_of(root, **options))
