"""What the kernel tests build with: requests as clients write them, and a store that is set up."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Record
from kerolox.message import encode_properties, pack_host
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records, encode_batch
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.kernels import MODULES

NOW = 1_763_715_347_123
STORE_HOST = pack_host("10.20.30.40", 10911)
BORN_HOST = pack_host("10.20.30.41", 54321)
CLUSTER = "DefaultCluster"

SMALL_FILES = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
}


def send_fields(**changes: Any) -> dict[str, str]:
    """Fields of SEND_MESSAGE_V2; None takes one out."""
    fields = {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(NOW - 5),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return changed(fields, changes)


V1_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}


def pull_fields(**changes: Any) -> dict[str, str]:
    """Fields of PULL_MESSAGE that carries its subscription."""
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return changed(fields, changes)


def changed(fields: dict[str, str], changes: dict[str, Any]) -> dict[str, str]:
    merged = {**fields, **changes}
    return {name: str(value) for name, value in merged.items() if value is not None}


def request(
    code: int,
    fields: dict[str, str],
    body: bytes = b"",
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: SerializeType = SerializeType.JSON,
    flag: int | None = None,
) -> bytes:
    """A whole frame."""
    command = RemotingCommand.request(code, fields, body=body, oneway=oneway)
    command.opaque = opaque
    command.serialize_type = encoding
    if flag is not None:
        command.flag = flag
    return command.encode()


def send(
    body: bytes = b"hello",
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: SerializeType = SerializeType.JSON,
    **changes: Any,
) -> bytes:
    """A SEND_MESSAGE_V2 frame."""
    fields = send_fields(**changes)
    code = RequestCode.SEND_MESSAGE_V2
    return request(code, fields, body, opaque=opaque, oneway=oneway, encoding=encoding)


def send_v1(body: bytes = b"hello", *, opaque: int = 1, **changes: Any) -> bytes:
    """A SEND_MESSAGE frame; ``changes`` go by the short names."""
    fields = {V1_NAMES[name]: value for name, value in send_fields(**changes).items()}
    return request(RequestCode.SEND_MESSAGE, fields, body, opaque=opaque)


def send_batch(
    items: list[tuple[int, bytes, bytes]] | bytes,
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: SerializeType = SerializeType.JSON,
    **changes: Any,
) -> bytes:
    """A SEND_BATCH_MESSAGE frame of (flag, body, property text) items, or with a raw body."""
    body = items if isinstance(items, bytes) else encode_batch(items)
    fields = send_fields(**{"m": "true", **changes})
    code = RequestCode.SEND_BATCH_MESSAGE
    return request(code, fields, body, opaque=opaque, oneway=oneway, encoding=encoding)


def pull(
    *,
    code: int = RequestCode.PULL_MESSAGE,
    opaque: int = 1,
    encoding: SerializeType = SerializeType.JSON,
    flag: int = 0,
    **changes: Any,
) -> bytes:
    """A frame of PULL_MESSAGE, or of LITE_PULL_MESSAGE."""
    fields = pull_fields(**changes)
    return request(code, fields, opaque=opaque, encoding=encoding, flag=flag)


def holding_pull(**changes: Any) -> bytes:
    """A PULL_MESSAGE frame that may be held."""
    return pull(**{"sysFlag": 6, **changes})


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame around a header written by hand."""
    size = 4 + len(header) + len(body)
    return struct.pack(">II", size, kind << 24 | len(header)) + header + body


def commands(data: bytes) -> list[RemotingCommand]:
    """The frames of some answers."""
    found = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">I", data, position)
        assert position + 4 + size <= len(data), "the answers end inside a frame"
        found.append(RemotingCommand.decode(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return found


def properties(**values: str) -> str:
    return encode_properties(values)


def stored(text: str = "") -> str:
    """Property text as it is stored."""
    return f"{text}\x02CLUSTER\x01{CLUSTER}" if text else f"CLUSTER\x01{CLUSTER}"


@dataclass
class Bench:
    """An open store of one kernel, set up with topic T (4 queues) and group G."""

    kernel: Any
    path: Path
    store: Any = None
    next_id: int = 1
    ready: dict[int, bytes] = field(default_factory=dict)

    def open(self, *, now: int | None = NOW, **settings: Any) -> Any:
        """Open the store and give the recovery report."""
        values = {**SMALL_FILES, **settings}
        self.store = self.kernel.Store(StoreSettings(store_path_root_dir=str(self.path), **values))
        self.store.set_clock(now)
        report = self.store.open()
        self.store.set_identity(
            cluster=CLUSTER,
            region="DefaultRegion",
            trace_on=True,
            store_host=STORE_HOST,
            broker_id=0,
        )
        self.store.set_topic("T", 4, 4, 6, True)
        self.store.set_group("G", True, 1)
        return report

    def connect(self, born_host: bytes = BORN_HOST) -> Wire:
        self.next_id += 1
        return Wire(self, self.next_id, self.kernel.Connection(self.store, self.next_id, born_host))

    def drain_ready(self) -> dict[int, list[RemotingCommand]]:
        """Answers that became ready, by connection id."""
        data: dict[int, bytes] = {}
        for connection_id, frames in self.store.drain_ready():
            data[connection_id] = data.get(connection_id, b"") + frames
        return {connection_id: commands(frames) for connection_id, frames in data.items()}

    def wait_notified(self) -> None:
        """Wait until ``notify_fd`` is readable, and read it empty."""
        readable, _, _ = select.select([self.store.notify_fd], [], [], SECONDS_MAX)
        assert readable, "notify_fd stayed silent"
        os.read(self.store.notify_fd, 8)

    def wait_ready(self) -> dict[int, list[RemotingCommand]]:
        """Wait for answers that a thread of the kernel releases."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            self.wait_notified()
            ready = self.drain_ready()
            if ready:
                return ready
        raise AssertionError("no answer became ready")

    def wait_indexed(self) -> None:
        """Wait until the index has caught up."""
        wait_until(lambda: self.store.stats()["index_pending"] == 0)

    def append(self, body: bytes = b"b", text: str = "", **changes: Any) -> Any:
        """``Store.append`` with defaults."""
        values = {
            "topic": b"T",
            "queue_id": 0,
            "flag": 0,
            "sys_flag": 0,
            "born_timestamp": NOW - 5,
            "born_host": BORN_HOST,
            "store_host": STORE_HOST,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            "body": body,
            "properties": text.encode(),
            **changes,
        }
        return self.store.append(Record(**values))

    def bodies(self, queue_id: int = 0, topic: str = "T") -> list[bytes]:
        """The bodies of every message of a queue."""
        found: list[bytes] = []
        offset = self.store.queue_bounds(topic, queue_id)[0]
        while True:
            read = self.store.read(topic, queue_id, offset, 32, None)
            if read[0] != 0:
                return found
            found += [message.body for message in decode_records(read[6])]
            offset = read[1]


@dataclass
class Wire:
    """One connection to the kernel."""

    bench: Bench
    connection_id: int
    connection: Any

    def feed(self, *frames: bytes) -> tuple[bytes, list[bytes], int, str | None]:
        """Feed one chunk."""
        data = b"".join(frames)
        answers, cold, flags, error = self.connection.feed(bytearray(data), len(data))
        assert isinstance(answers, bytes)
        assert cold is None or cold
        return answers, cold or [], flags, error

    def ask(self, *frames: bytes) -> list[RemotingCommand]:
        """Feed one chunk of hot requests; the answers."""
        answers, cold, _flags, error = self.feed(*frames)
        assert error is None
        assert cold == [], "taken for cold"
        return commands(answers)

    def is_cold(self, frame: bytes) -> bool:
        """Whether the kernel hands the request up, untouched and without an answer."""
        answers, cold, _flags, error = self.feed(frame)
        assert error is None
        if not cold:
            return False
        assert answers == b""
        assert cold == [frame[4:]]
        return True


def messages(answer: RemotingCommand) -> list[Any]:
    """The messages in the body of a pull answer."""
    return decode_records(answer.body)


def files(path: Path) -> dict[str, list[bytes]]:
    """What the store's folders hold: content of the files by folder, in order of their names."""
    found: dict[str, list[bytes]] = {}
    for folder in ("commitlog", "consumequeue", "index"):
        for file in sorted((path / folder).rglob("*")):
            if file.is_file():
                name = str(file.parent.relative_to(path))
                found.setdefault(name, []).append(file.read_bytes())
    return found


def assert_same_as_reference(
    kernel: ModuleType, play: Callable[[Bench], list[object]], folder: Path
) -> None:
    """A kernel and the reference do the same from an empty store on: what ``play`` sees, the
    metrics of topics, and the bytes of the files."""
    seen: list[list[object]] = []
    for module, name in ((kernel, "tested"), (import_module(MODULES["python"]), "reference")):
        bench = Bench(module, folder / name)
        bench.open()
        seen.append([*play(bench), sorted(bench.store.topic_stats())])
        bench.wait_indexed()
        bench.store.close()
    assert seen[0] == seen[1]
    assert files(folder / "tested") == files(folder / "reference")
