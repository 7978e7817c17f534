from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.store.layout import ENTRY
from kerolox.store.message_store import MessageStore
from tests.support.stores.message_store import crash, opened, put, read_messages, small_settings

if TYPE_CHECKING:
    from kerolox.kernel.settings import StoreSettings
    from kerolox.kernel.values import RecoveryReport

COUNT = 100


def fill(store: MessageStore, count: int = COUNT, *, start: int = 0) -> list[bytes]:
    """Messages in two queues with keys; the bodies."""
    texts = [b"%d|" % index + b"x" * (index * 53 % 900) for index in range(start, start + count)]
    for index, text in enumerate(texts, start):
        properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d all\x02TAGS\x01t" % (index, index)
        assert put(store, queue_id=index % 2, body=text, properties=properties).status == 0
    return texts


def crashed(settings: StoreSettings, *, same_boot: bool = True) -> list[bytes]:
    """A store that was filled and killed."""
    store = MessageStore(settings)
    store.open()
    texts = fill(store)
    store.files.index.follow(store.files.log, COUNT)
    crash(store)
    if not same_boot:
        (Path(store.files.root) / "abort").write_bytes(b"")
    return texts


def assert_whole(store: MessageStore, texts: list[bytes]) -> None:
    """Every message is in its queue, once, and found by each of its keys."""
    for queue_id in (0, 1):
        assert [message.body for message in read_messages(store, "T", queue_id)] == texts[
            queue_id::2
        ]
    for index, text in enumerate(texts):
        for key in (f"u{index}", f"k{index}"):
            records = store.query_key("T", key, 64, 0, 10**15)[2]
            assert records.count(b"KEYS\x01k%d all" % index) == 1
            assert text in records


def reopen(settings: StoreSettings, texts: list[bytes]) -> RecoveryReport:
    """Open, compare, and see that a second open finds nothing to repair."""
    store = MessageStore(settings)
    report = store.open()
    assert_whole(store, texts)
    store.close()
    with opened(settings) as again:
        assert_whole(again, texts)
    return report


def log_file(settings: StoreSettings) -> Path:
    """The last file of the log."""
    return max((Path(settings.store_path_root_dir) / "commitlog").iterdir())


def test_an_empty_store_recovers_to_nothing(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    for _ in range(2):
        store = MessageStore(settings)
        assert store.open()[:9] == (True, 0, 0, 0, 0, 0, 0, 0, [])
        store.close()


def test_a_clean_stop_leaves_nothing_to_do(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        texts = fill(store)
        end = store.max_physical_offset
    report = reopen(settings, texts)
    assert report.clean
    assert report.max_offset == end
    assert report.scanned_bytes < 1_100
    assert (report.truncated_bytes, report.dispatched, report.indexed) == (0, 0, 0)
    assert (report.queues, report.notes) == (2, [])


@pytest.mark.parametrize("same_boot", [True, False])
def test_after_a_kill_everything_that_was_written_is_there(tmp_path: Path, same_boot: bool) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings, same_boot=same_boot)
    report = reopen(settings, texts)
    assert not report.clean
    assert report.dispatched == 0


@pytest.mark.parametrize("same_boot", [True, False])
def test_missing_queue_entries_are_written_again(tmp_path: Path, same_boot: bool) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings, same_boot=same_boot)
    folder = tmp_path / "store" / "consumequeue" / "T"
    newest = max((folder / "0").iterdir())
    newest.write_bytes(newest.read_bytes()[:40] + bytes(360))
    shutil.rmtree(folder / "1")
    report = reopen(settings, texts)
    assert report.dispatched == 50 + 50 % 20 - 2
    assert any("queue entries that were missing" in note for note in report.notes)


def test_lost_queues_are_rebuilt_after_a_clean_stop_too(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        texts = fill(store)
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    report = reopen(settings, texts)
    assert report.clean
    assert report.dispatched == COUNT


def test_a_hole_in_a_queue_is_filled(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings, same_boot=False)
    first = tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)
    data = first.read_bytes()
    first.write_bytes(data[:100] + bytes(40) + data[140:])
    reopen(settings, texts)


def test_the_checkpoint_saves_most_of_the_walk(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore(settings)
    store.open()
    store.set_clock(1_000_000)
    texts = fill(store)
    store.set_clock(1_010_000)
    texts += fill(store, 2, start=COUNT)
    store.flush()
    crash(store)
    (tmp_path / "store" / "abort").write_bytes(b"")
    report = reopen(settings, texts)
    assert report.scanned_bytes < 3_500


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" + b"\xff" * 200,
        b"\xff\xff\xff\xff\xda\xa3\x20\xa7" + b"\x01" * 200,
        b"\x00\x00\x00\x00\xda\xa3\x20\xa7" + b"\x01" * 200,
        b"\x00\x00\x00\x64\xda\xa3\x20\xa7",
        b"noise" * 40,
    ],
)
def test_garbage_behind_the_last_record_is_cleared(
    tmp_path: Path, garbage: bytes, same_boot: bool
) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings, same_boot=same_boot)
    path = log_file(settings)
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[:end] + garbage + data[end + len(garbage) :])
    report = reopen(settings, texts)
    assert report.truncated_bytes == len(garbage)
    assert path.read_bytes() == data


def test_a_torn_record_costs_itself_only(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings)
    path = log_file(settings)
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - 1] + bytes(len(data) - end + 1))
    report = reopen(settings, texts[:-1])
    assert report.truncated_bytes > 0
    assert any("1 entries behind the end" in note for note in report.notes)
    with opened(settings) as store:
        texts[-1:] = fill(store, 1, start=COUNT - 1)
        assert_whole(store, texts)


def test_a_wrong_crc_ends_the_log(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings)
    path = log_file(settings)
    data = path.read_bytes()
    at = data.rindex(b"%d|" % (COUNT - 3))
    path.write_bytes(data[:at] + b"#" + data[at + 1 :])
    report = reopen(settings, texts[:-3])
    assert any("CRC" in note for note in report.notes)


def test_records_of_an_older_use_of_the_file_are_no_records(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings)
    path = log_file(settings)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    size = int.from_bytes(data[:4], "big")
    data[end : end + size] = data[:size]
    path.write_bytes(bytes(data))
    report = reopen(settings, texts)
    assert report.truncated_bytes == size


def test_files_behind_the_end_are_deleted(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    texts = crashed(settings)
    last = log_file(settings)
    for number in (1, 2):
        spare = last.with_name(f"{int(last.name) + number * 65_536:020d}")
        spare.write_bytes(b"old" * (number - 1) + bytes(65_536 - 3 * (number - 1)))
    report = reopen(settings, texts)
    assert report.truncated_bytes == 3
    assert log_file(settings) == last


def test_a_log_that_ends_with_a_blank_goes_on_in_the_next_file(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        put(store, body=b"x" * 1_900)
        put(store, body=b"y" * 1_900)
    os.unlink(tmp_path / "store" / "commitlog" / f"{2_048:020d}")
    (tmp_path / "store" / "abort").touch()
    with opened(settings) as store:
        assert [message.body[:1] for message in read_messages(store)] == [b"x"]
        assert store.max_physical_offset == 2_048
        put(store, body=b"z" * 1_900)
        assert [message.body[:1] for message in read_messages(store)] == [b"x", b"z"]


def test_without_a_log_the_queues_go_too(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        fill(store)
    shutil.rmtree(tmp_path / "store" / "commitlog")
    (tmp_path / "store" / "abort").touch()
    store = MessageStore(settings)
    report = store.open()
    assert (report.queues, store.queues(), report.max_offset) == (2, [], 0)
    assert any("the log has no files" in note for note in report.notes)
    assert store.query_key("T", "k1", 10, 0, 10**15)[2] == b""
    assert put(store).queue_offset == 0
    store.close()


def test_a_log_without_its_beginning_has_a_later_minimum(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=8_192)
    with opened(settings) as store:
        fill(store)
        total = store.max_physical_offset
    folder = tmp_path / "store" / "commitlog"
    os.unlink(min(folder.iterdir()))
    with opened(settings) as store:
        assert store.min_physical_offset == 8_192
        assert store.max_physical_offset == total
        low, high = store.queue_bounds("T", 0)
        assert 0 < low < high == 50
        assert store.read("T", 0, 0, 1, None).next_offset == low
        assert store.read("T", 0, low, 1, None).count == 1
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    with opened(settings) as store:
        assert store.queue_bounds("T", 0) == (low, high)
        assert store.read("T", 0, low, 1, None).count == 1


def test_an_index_newer_than_the_disk_is_rebuilt_after_a_restart_of_the_machine(
    tmp_path: Path,
) -> None:
    settings = small_settings(tmp_path, max_index_num=60)
    texts = crashed(settings, same_boot=False)
    report = reopen(settings, texts)
    assert report.indexed > 0
    assert any("index" in note for note in report.notes)


def test_the_index_goes_on_where_it_was_after_a_kill(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore(settings)
    store.open()
    texts = fill(store, 60)
    store.files.index.follow(store.files.log, 40)
    with store.files.index.lock:
        store.files.index.is_given_up = True
        done = store.files.index.followed_count
    texts += fill(store, 40, start=60)
    crash(store)
    report = reopen(settings, texts)
    assert report.indexed == COUNT - done


def test_a_key_that_went_to_a_lost_index_file_is_put_again(tmp_path: Path) -> None:
    # Three keys a record and 5 entries a file: the second record's keys lie in two files.
    settings = small_settings(tmp_path, max_index_num=6)
    texts = crashed(settings)
    folder = tmp_path / "store" / "index"
    for path in sorted(folder.iterdir())[1:]:
        path.unlink()
    reopen(settings, texts)


def test_a_topic_that_was_made_again_keeps_its_later_messages(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore(settings)
    store.open()
    fill(store)
    store.delete_queues("T")
    texts = fill(store, 10, start=COUNT)
    crash(store)
    with opened(settings) as again:
        for queue_id in (0, 1):
            assert [m.body for m in read_messages(again, "T", queue_id)] == texts[queue_id::2]
        shutil.rmtree(tmp_path / "store" / "consumequeue")
        crash(again)
    with opened(settings) as rebuilt:
        for queue_id in (0, 1):
            assert [m.body for m in read_messages(rebuilt, "T", queue_id)] == texts[queue_id::2]


def test_delayed_records_get_their_deliver_time_again(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore(settings)
    store.open()
    store.set_clock(1_000_000)
    put(store, "SCHEDULE_TOPIC_XXXX", 2, properties=b"DELAY\x013\x02TAGS\x01t")
    assert store.queue_entry("SCHEDULE_TOPIC_XXXX", 2, 0) == (0, 128, 1_010_000)
    crash(store)
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    with opened(settings) as again:
        assert again.queue_entry("SCHEDULE_TOPIC_XXXX", 2, 0) == (0, 128, 1_010_000)


def test_entries_ahead_of_the_log_are_cut(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        texts = fill(store)
        end = store.max_physical_offset
    path = tmp_path / "store" / "consumequeue" / "T" / "0" / f"{800:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:200] + ENTRY.pack(end + 500, 100, 1) + data[220:])
    report = reopen(settings, texts)
    assert any("1 entries behind the end" in note for note in report.notes)


def test_a_long_tail_of_keys_is_indexed_before_or_after_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.store.recovery.log_recovery.INDEX_AT_OPEN_RECORDS", 10)
    monkeypatch.setattr("kerolox.store.recovery.log_recovery.INDEX_AT_OPEN_SECONDS_MAX", 0.0)
    settings = small_settings(tmp_path)
    texts = crashed(settings, same_boot=False)
    report = reopen(settings, texts)
    assert report.indexed == 10
    assert any("in the background" in note for note in report.notes)
