"""One store, two brokers in turn: their settings, and a turn of Java's on what ours has left."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.store_compat.scenario import (
    DELAY_LEVELS,
    Seen,
    assert_delivered,
    assert_equal,
    assert_keys,
    assert_places,
    look,
    tell,
)
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ONE_FILE", "SMALL", "java_goes_on", "settings_of"]

SMALL = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 30,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 400,
}
ONE_FILE = {**SMALL, "mappedFileSizeCommitLog": 64 << 20, "maxIndexNum": 40_000}
"""Java drops the index files that its checkpoint does not cover, and reads only the last file of
the log again: keys of earlier files are lost then, whoever wrote them."""


def settings_of(sizes: Mapping[str, int]) -> dict[str, object]:
    """Of both brokers, with files of these sizes."""
    return {
        **sizes,
        "brokerName": "broker-a",
        "messageDelayLevel": DELAY_LEVELS,
        "flushConsumerOffsetInterval": 500,
        "flushDelayOffsetInterval": 500,
    }


@contextmanager
def java_goes_on(
    data: Path, settings: Mapping[str, object], seen: Seen
) -> Iterator[tuple[JavaPeer, str, Seen]]:
    """Java opens the store, serves all of it, and is told the second chapter.

    Gives the broker, its address and what is seen now.
    """
    lines = tuple(f"{key}={value}" for key, value in settings.items())
    with JavaPeer(data, settings=lines, with_namesrv=False) as java:
        address = f"127.0.0.1:{java.port}"
        assert_equal(look(address, seen), seen)
        assert_keys(address, seen)
        assert_places(address, seen, by_files_of=data)
        assert_delivered(address, seen)
        tell(address, "second", seen)
        yield java, address, look(address, seen)
