"""A random scenario of appends under a fixed clock leaves the same files with every kernel.

Batches over file ends, hosts of both families, delayed records, every type of transaction, keys
enough for several index files, further queues, deletions, stops in between, a clock that goes back.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from kerolox.inspect.check import CheckReport, check_store
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.kernel.values import Batch
from kerolox.message import pack_host
from tests.support.stores.bench import NOW, Bench, files, properties

STEPS = 400
HOSTS = (
    pack_host("10.20.30.41", 54_321),
    pack_host("2001:db8::41", 54_321),
    pack_host("::1", 1),
    pack_host("255.255.255.255", 65_535),
)
DELAYS_MS = delay_levels_ms(DEFAULT_DELAY_LEVELS)
TOPICS = (b"T", b"Other", "%RETRY%größe".encode(), b"x" * 127)
SETTINGS = {"enable_multi_dispatch": True, "enable_lmq": True}


def random_text(source: random.Random, number: int) -> str:
    values = {
        "KEYS": f"k{number} k{number % 40} Schlüssel",
        "UNIQ_KEY": f"0A000001{number:024X}",
        "TAGS": source.choice(("a", "b", "ä😀", "x" * 300)),
        "own": "v" * source.choice((0, 1, 3_000)),
        "INNER_MULTI_DISPATCH": source.choice(("%LMQ%one", "%LMQ%one,Further", "Further,Further")),
    }
    chance = {"own": 0.2, "INNER_MULTI_DISPATCH": 0.15}
    chosen = {
        name: text for name, text in values.items() if source.random() < chance.get(name, 0.7)
    }
    return properties(**chosen) + ("\x02" if chosen and source.random() < 0.2 else "")


def append(bench: Bench, source: random.Random, number: int, now: int) -> tuple[object, ...]:
    """One record of any kind."""
    topic, queue_id = source.choice(TOPICS), source.randrange(3)
    text, code = random_text(source, number), None
    if source.random() < 0.15:
        level = source.randint(1, 20)
        real = properties(REAL_TOPIC="T", REAL_QID="1", DELAY=str(level))
        text = f"{text}\x02{real}" if text else real
        level = min(level, len(DELAYS_MS))
        topic, queue_id = b"SCHEDULE_TOPIC_XXXX", level - 1
        code = now + DELAYS_MS[level - 1]
    return tuple(
        bench.append(
            source.randbytes(source.choice((0, 1, 100, 2_000, 9_000))),
            text,
            topic=topic,
            queue_id=queue_id,
            flag=source.randrange(-(1 << 31), 1 << 31),
            sys_flag=source.choice((0, 0, 0, 1, 2, 4, 8, 12, 0x100)),
            born_timestamp=now - source.randrange(10_000),
            born_host=source.choice(HOSTS),
            store_host=source.choice(HOSTS),
            reconsume_times=source.randrange(17),
            prepared_transaction_offset=source.choice((0, 1 << 40)),
            tags_code=code,
        )
    )


def append_batch(bench: Bench, source: random.Random, number: int, now: int) -> tuple[object, ...]:
    """A batch of up to half a file, so that many do not fit behind what is there."""
    items = []
    for item in range(source.randint(1, 40)):
        text = properties(KEYS=f"b{number}-{item}", TAGS=source.choice("ab"))
        items.append((item, source.randbytes(source.choice((1, 50, 800))), text.encode()))
    return tuple(
        bench.store.append_batch(
            Batch(
                source.choice(TOPICS),
                source.randrange(3),
                source.choice((0, 1, 2)),
                now,
                source.choice(HOSTS),
                source.choice(HOSTS),
                source.randrange(3),
                items,
            )
        )
    )


def play(kernel: Any, root: Path, seed: int) -> list[object]:
    """Tell the scenario; every answer, and where each index file began."""
    source = random.Random(seed)
    bench = Bench(kernel, root)
    bench.open(**SETTINGS)
    seen: list[object] = []
    last = NOW
    for step in range(STEPS):
        # The clock goes back now and then; a store timestamp never does.
        clock = NOW + step * source.randrange(3_000)
        bench.store.set_clock(clock)
        now = max(last, clock)
        kind = source.random()
        if kind < 0.985:
            answer = (append if kind < 0.8 else append_batch)(bench, source, step, now)
            seen.append(answer)
            last = now if answer[0] == 0 else last
        elif kind < 0.995:
            seen.append(bench.store.delete_queues("Other"))
        else:
            bench.wait_indexed()
            bench.store.close()
            # All but how long it took.
            seen.append(tuple(bench.open(now=clock, **SETTINGS))[:-1])
    bench.wait_indexed()
    seen.append(sorted(map(tuple, bench.store.queues())))
    bench.store.close()
    return seen


def all_files(root: Path) -> dict[str, list[bytes]]:
    found = files(root)
    for name in ("checkpoint", "deletions"):
        path = root / name
        found[name] = [path.read_bytes()] if path.exists() else []
    return found


def check(root: Path) -> CheckReport:
    options = StoreOptions(multi_dispatch=True, lmq=True)
    return check_store(StorePlaces.find(str(root), options))


@pytest.mark.parametrize("seed", range(2))
def test_a_random_scenario_of_appends_leaves_the_same_files(
    kernel: Any, tmp_path: Path, seed: int
) -> None:
    wanted = play(reference, tmp_path / "reference", seed)
    got = play(kernel, tmp_path / "tested", seed)
    for one, other in zip(wanted, got, strict=True):
        assert other == one
    assert all_files(tmp_path / "tested") == all_files(tmp_path / "reference")
    assert check(tmp_path / "tested").findings.kept == []


def test_the_scenario_of_appends_has_everything_in_it(tmp_path: Path) -> None:
    play(reference, tmp_path, 0)
    found = files(tmp_path)
    assert len(found["commitlog"]) > 20
    assert len(found["index"]) > 5
    assert len([name for name in found if "SCHEDULE_TOPIC" in name]) > 10
    assert len(found["consumequeue/T/0"]) > 1
    assert "consumequeue/%LMQ%one/0" in found
    log = b"".join(found["commitlog"])
    assert all(host in log for host in HOSTS)
