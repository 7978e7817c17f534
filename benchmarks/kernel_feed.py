"""What one message costs in a kernel's feed(), without sockets: chunks as the load generator sends.

python benchmarks/kernel_feed.py [python|native] [--profile] [--access]

Prints the minimum, median and maximum microseconds per message (or request) over the rounds. With
``--access`` it is what access control adds: the same frames without accounts, from an address of
the global white list, and with each signature checked, in turn.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from kerolox.kernel.choice import load_kernel
from kerolox.kernel.feed import ConnectionKernel
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.values import AccountRules
from kerolox.message import pack_host
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.security.access.accounts import Permission
from kerolox.security.credentials import Credentials, Signer

HOST = pack_host("127.0.0.1", 10911)
FRAMES_PER_CHUNK = 64
ROUNDS = 7
CHUNKS_PER_ROUND = 200
PROPERTIES = "\x02".join(
    (
        "KEYS\x01order-000042",
        "UNIQ_KEY\x017F000001ABCD0123%016X",
        "WAIT\x01true",
        "region\x01eu-1",
        "TAGS\x01tag1",
    )
)


def header(code: int, opaque: int, fields: dict[str, str]) -> bytes:
    """A JSON header as a Java client writes it."""
    members = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def frame(head: bytes, body: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


def send(opaque: int, queue: int, body: bytes, properties: str, batch: bool = False) -> bytes:
    """A send to one of four queues."""
    values = ("loadgen", "T", "TBW102", "4", str(queue), "0", "1763715347000", "0", properties)
    fields = dict(zip("abcdefghi", values, strict=True))
    fields |= {"j": "0", "k": "false", "m": "true" if batch else "false"}
    return frame(header(320 if batch else 310, opaque, fields), body)


def pull(opaque: int, queue: int, offset: int, tags: str) -> bytes:
    """A pull of 32."""
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": tags,
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return frame(header(11, opaque, fields))


def sends(size: int, count: int, properties: str) -> Iterator[bytes]:
    """Chunks of sends."""
    opaque = 1_000_000_000
    while True:
        frames = []
        for _ in range(count):
            opaque += 1
            text = properties % opaque if properties else ""
            frames.append(send(opaque, opaque % 4, bytes(size), text))
        yield b"".join(frames)


def batches(size: int, count: int) -> Iterator[bytes]:
    """One batch per chunk."""
    item = struct.pack(">iIIii", 22 + size, 0, 0, 0, size) + bytes(size) + b"\0\0"
    opaque = 1_000_000_000
    while True:
        opaque += 1
        yield send(opaque, opaque % 4, item * count, "", batch=True)


def pulls(tags: str) -> Iterator[bytes]:
    """One pull per chunk, over the messages that are there."""
    opaque = 1_000_000_000
    while True:
        opaque += 1
        yield pull(opaque, opaque % 4, opaque // 4 * 32 % 2_000, tags)


ACCOUNT = Credentials("loadgen-account", "loadgen-secret")
RULES = AccountRules(
    ACCOUNT.access_key,
    ACCOUNT.secret_key,
    False,
    Permission.DENY,
    Permission.DENY,
    {"T": Permission.PUB | Permission.SUB, "%RETRY%G": Permission.SUB},
)


def signed(frames: Iterator[bytes], encoding: SerializeType, per_chunk: int) -> Iterator[bytes]:
    """Chunks of requests with an account's signature."""
    signer = Signer(ACCOUNT)
    while True:
        chunk = []
        for _ in range(per_chunk):
            command = RemotingCommand.decode(next(frames)[4:])
            command.serialize_type = encoding
            signer.sign(command)
            chunk.append(command.encode())
        yield b"".join(chunk)


def rounds_of_access(
    store: StoreKernel, connection: ConnectionKernel, chunks: list[bytes]
) -> dict[str, list[float]]:
    """Microseconds of CPU per chunk, by what is checked; all of it in turn."""
    times: dict[str, list[float]] = {"no accounts": [], "white address": [], "signature": []}
    for _ in range(4 * ROUNDS):
        for name, of_name in times.items():
            store.set_accounts(None if name == "no accounts" else [RULES])
            connection.set_white(name == "white address", ())
            start = time.process_time_ns()
            for chunk in chunks:
                _answers, slow, _flags, _error = connection.feed(chunk, len(chunk))
                assert slow is None
            of_name.append((time.process_time_ns() - start) / len(chunks) / 1_000)
    return times


def measure_access(store: StoreKernel, connection: ConnectionKernel) -> None:
    """Print what a send or a pull costs, and how much of that is access control."""
    chunk = FRAMES_PER_CHUNK
    for encoding in SerializeType:
        cases = (
            (128, chunk, sends(128, 1, "")),
            (128, chunk, sends(128, 1, PROPERTIES)),
            (1_024, chunk, sends(1_024, 1, PROPERTIES)),
            (0, 1, pulls("nobody")),
        )
        for size, per_chunk, frames in cases:
            ready = list(islice(signed(frames, encoding, per_chunk), CHUNKS_PER_ROUND))
            times = rounds_of_access(store, connection, ready)
            what = f"send of {size} B" if size else "pull, none found"
            least = {name: min(found) / per_chunk for name, found in times.items()}
            middle = {name: statistics.median(found) / per_chunk for name, found in times.items()}
            for name in times:
                added = middle[name] - middle["no accounts"]
                print(
                    f"{encoding.name:8} {what:17} {len(ready[0]) // per_chunk:5} B {name:14}"
                    f" {least[name]:6.3f} {middle[name]:6.3f} us {added:+6.3f}",
                    flush=True,
                )


def measure(name: str, feed: Callable[..., Any], chunks: Iterator[bytes], per_chunk: int) -> None:
    """Print one line."""
    times = []
    for _ in range(ROUNDS):
        ready = [next(chunks) for _ in range(CHUNKS_PER_ROUND)]
        start = time.perf_counter()
        for chunk in ready:
            feed(chunk, len(chunk))
        times.append((time.perf_counter() - start) / CHUNKS_PER_ROUND / per_chunk * 1e6)
    middle = statistics.median(times)
    print(
        f"{name:34} {min(times):7.2f} {middle:7.2f} {max(times):7.2f} us   {1e6 / middle:9.0f} /s",
        flush=True,
    )


def main() -> None:
    """Measure, or profile sends of 128 bytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernel", nargs="?", default="python")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--access", action="store_true")
    arguments = parser.parse_args()
    kernel: Any = load_kernel(arguments.kernel)
    with tempfile.TemporaryDirectory() as folder:
        store = kernel.Store(StoreSettings(store_path_root_dir=folder, max_index_num=1_000_000))
        store.open()
        store.set_identity(
            cluster="DefaultCluster",
            region="DefaultRegion",
            trace_on=True,
            store_host=HOST,
            broker_id=0,
        )
        store.set_topic("T", 4, 4, 6, True)
        store.set_group("G", True, 1)
        connection = kernel.Connection(store, 1, HOST)
        feed = connection.feed
        if arguments.access:
            measure_access(store, connection)
        elif arguments.profile:
            profile = cProfile.Profile()
            ready = [next(sends(128, FRAMES_PER_CHUNK, PROPERTIES)) for _ in range(500)]
            profile.enable()
            for chunk in ready:
                feed(chunk, len(chunk))
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        else:
            for size in (128, 1_024):
                measure(f"send {size} B, 64 a chunk", feed, sends(size, 64, ""), 64)
            measure("send 128 B, 1 a chunk", feed, sends(128, 1, ""), 1)
            measure("batch of 32 x 128 B, per message", feed, batches(128, 32), 32)
            measure("pull of 32, per request", feed, pulls("*"), 1)
            measure("pull by tag, none of 800 found", feed, pulls("tag1"), 1)
            # Last, since their index is built beside them and for some time afterwards.
            measure("send 128 B with properties, 64", feed, sends(128, 64, PROPERTIES), 64)
        store.close()


if __name__ == "__main__":
    main()
