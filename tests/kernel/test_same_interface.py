"""The same input gives the same bytes with every kernel: answers, log, queues, index."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from kerolox.protocol.codes import RequestCode, SerializeType
from tests.support.stores.bench import (
    NOW,
    Bench,
    files,
    holding_pull,
    properties,
    pull,
    request,
    send,
    send_batch,
    send_v1,
)

CHUNKS = 60


def random_frame(source: random.Random, opaque: int, ends: list[int]) -> bytes:
    encoding = source.choice((SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ))
    queue = source.randrange(4)
    values = {"KEYS": f"k{opaque % 50} all", "UNIQ_KEY": f"U{opaque}", "WAIT": "true"}
    values["TAGS"] = source.choice(("a", "b", "ä😀"))
    chosen = {name: value for name, value in values.items() if source.random() < 0.7}
    text = properties(**chosen) + ("\x02" if chosen and source.random() < 0.3 else "")
    body = source.randbytes(source.choice((1, 10, 200, 3_000)))
    kind = source.randrange(9)
    if kind <= 2:
        return send(
            body,
            opaque=opaque,
            encoding=encoding,
            oneway=source.random() < 0.1,
            e=queue,
            i=text,
            h=source.randrange(-5, 5),
            f=source.choice((0, 1, 49)),
            j=source.choice((None, 0, 3)),
            g=NOW - source.randrange(100),
        )
    if kind == 3:
        return send_v1(body, opaque=opaque, e=queue, i=text)
    if kind == 4:
        items = [(n, body[:500], text.encode()) for n in range(source.randint(1, 9))]
        return send_batch(items, opaque=opaque, encoding=encoding, e=queue)
    if kind == 5:
        return request(source.choice((34, 105, 15)), {"topic": "T"}, body[:9], opaque=opaque)
    tags = source.choice(("*", "a", "a || b", "nobody"))
    changes: dict[str, Any] = {"queueId": queue, "subscription": tags, "opaque": opaque}
    changes["queueOffset"] = source.choice((0, 1, 5, 40, 100_000))
    changes["maxMsgNums"] = source.choice((1, 8, 32, 64))
    changes["code"] = source.choice((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
    changes["maxMsgBytes"] = source.choice((None, 262_144))
    if kind == 6:
        changes["queueOffset"] = ends[queue]
        return holding_pull(encoding=encoding, suspendTimeoutMillis=2_000, **changes)
    return pull(encoding=encoding, sysFlag=source.choice((4, 5)), commitOffset=opaque, **changes)


def play(bench: Bench, seed: int) -> list[object]:
    """Feed a random scenario to a kernel; everything that can be seen of it."""
    source = random.Random(seed)
    bench.open()
    bench.store.set_subscription("G", "T", 3, [97])
    wires = [bench.connect() for _ in range(3)]
    seen: list[object] = []
    opaque = 0
    for step in range(CHUNKS):
        bench.store.set_clock(NOW + step * 37)
        data = b""
        ends = [bench.store.queue_bounds("T", queue)[1] for queue in range(4)]
        for _ in range(source.randint(1, 12)):
            opaque += 1
            data += random_frame(source, opaque, ends)
        wire = source.choice(wires)
        cut = source.randrange(len(data))
        for part in (data[:cut], data[cut:]):
            answers, cold, flags, error = wire.connection.feed(part, len(part))
            seen.append((answers, cold, flags, error))
            # In one order, whoever answered first.
            ready: dict[int, bytes] = {}
            for connection_id, frames in bench.store.drain_ready():
                ready[connection_id] = ready.get(connection_id, b"") + frames
            seen.append(sorted(ready.items()))
        if step % 7 == 0:
            bench.append(b"cold", properties(TAGS="a"), queue_id=source.randrange(4))
            bench.store.tick(NOW + step * 37)
            ready = {}
            for connection_id, frames in bench.store.drain_ready():
                ready[connection_id] = ready.get(connection_id, b"") + frames
            seen.append(sorted(ready.items()))
    seen.append(sorted(bench.store.drain_commits()))
    seen.append(sorted(map(tuple, bench.store.queues())))
    seen.append(sorted(bench.store.topic_stats()))
    # without the times, which differ
    seen.append(sorted(each[:6] for each in bench.store.group_stats()))
    bench.wait_indexed()
    seen.append(sorted(bench.store.lag()))
    timeless = ("flush_count", "get_time_max_ms")
    stats = bench.store.stats()
    seen.append({name: stats[name] for name in sorted(stats) if name not in timeless})
    seen.append(bench.store.query_key("T", "all", 64, 0, NOW + 10**6))
    # Any of the records with the nearest time will do.
    found = [bench.store.offset_by_time("T", 1, NOW + 37 * n) for n in range(CHUNKS)]
    seen.append([bench.store.store_time("T", 1, offset) for offset in found])
    bench.store.close()
    seen.append((bench.path / "checkpoint").read_bytes())
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_a_random_scenario_is_the_same_with_both(kernel: Any, tmp_path: Path, seed: int) -> None:
    wanted = play(Bench(reference, tmp_path / "reference"), seed)
    got = play(Bench(kernel, tmp_path / "tested"), seed)
    for one, other in zip(wanted, got, strict=True):
        assert other == one
    assert files(tmp_path / "tested") == files(tmp_path / "reference")


def test_the_scenario_has_everything_in_it(tmp_path: Path) -> None:
    """The scenario is a good one: it rolls files, holds, wakes and finds."""
    bench = Bench(reference, tmp_path)
    seen = play(bench, 0)
    found = files(tmp_path)
    assert len(found["commitlog"]) > 2
    assert sum(len(content) for name, content in found.items() if "queue" in name) >= 4
    assert any(entry and isinstance(entry, list) for entry in seen[:-8])
