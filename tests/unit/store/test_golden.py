"""The store of a Java broker, opened by ours."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.records import decode_record
from kerolox.store.message_store import MessageStore
from tests.support.stores.golden import Golden, golden

if TYPE_CHECKING:
    from kerolox.kernel.values import RecoveryReport

__all__ = ["golden"]

MESSAGES = 1_864


def read_back(store: MessageStore, golden: Golden) -> int:
    """Compare every line of the manifest with what the store gives; how many lines."""
    count = 0
    for line in golden.messages():
        record = store.lookup(line["commitLogOffset"])
        assert record is not None, line
        found = store.read(line["topic"], line["queueId"], line["queueOffset"], 1, None)
        assert found.records == record
        message, _end = decode_record(record)
        assert message.topic == line["topic"]
        assert message.properties == line["properties"]
        assert hashlib.sha1(message.body).hexdigest() == line["bodySha1"]
        for key in (message.properties.get("UNIQ_KEY"), *(line["keys"] or "").split()):
            if key:
                assert record in store.query_key(line["topic"], key, 64, 0, 10**15)[2]
        count += 1
    return count


def open_and_compare(golden: Golden) -> RecoveryReport:
    store = MessageStore(golden.settings)
    report = store.open()
    assert read_back(store, golden) == MESSAGES
    store.close()
    return report


def test_every_message_is_read_back_after_a_clean_stop(golden: Golden) -> None:
    report = open_and_compare(golden)
    assert report.clean
    assert (report.truncated_bytes, report.dispatched, report.indexed) == (0, 0, 0)
    assert not report.notes
    assert open_and_compare(golden).clean


def test_every_message_is_read_back_after_a_kill(golden: Golden) -> None:
    (golden.folder / "store" / "abort").write_bytes(b"")
    report = open_and_compare(golden)
    assert not report.clean
    assert (report.truncated_bytes, report.dispatched) == (0, 0)


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint", "consumequeue/GoldenA/1"])
def test_what_can_be_derived_from_the_log_may_be_lost_in_a_kill(golden: Golden, lost: str) -> None:
    store = golden.folder / "store"
    queues = {
        path.relative_to(store): path.read_bytes()
        for path in (store / "consumequeue").rglob("0*")
        if path.is_file()
    }
    index = [path.read_bytes() for path in sorted((store / "index").iterdir())]
    (store / "abort").write_bytes(b"")
    target = store / lost
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    if lost == "consumequeue/GoldenA/1":
        # Without the checkpoint the walk begins where the log does.
        (store / "checkpoint").unlink()
    open_and_compare(golden)
    # Byte for byte what the Java broker had written, deliver times of delayed records included.
    assert queues == {name: (store / name).read_bytes() for name in queues}
    assert index == [path.read_bytes() for path in sorted((store / "index").iterdir())]


def test_opening_and_closing_changes_no_byte_of_log_and_queues(golden: Golden) -> None:
    store = golden.folder / "store"

    def digests() -> dict[str, str]:
        return {
            str(path.relative_to(store)): hashlib.sha1(path.read_bytes()).hexdigest()
            for part in ("commitlog", "consumequeue", "index")
            for path in (store / part).rglob("*")
            if path.is_file()
        }

    before = digests()
    open_and_compare(golden)
    assert digests() == before


def test_the_summary_counts_the_same_messages(golden: Golden) -> None:
    counts: dict[str, dict[str, int]] = {}
    for line in golden.messages():
        queues = counts.setdefault(line["topic"], {})
        queues[str(line["queueId"])] = queues.get(str(line["queueId"]), 0) + 1
    store = MessageStore(golden.settings)
    store.open()
    for bounds in store.queues():
        expected = counts.get(bounds.topic, {}).get(str(bounds.queue_id))
        assert expected is None or bounds.max_offset == expected, json.dumps(counts)
    store.close()
