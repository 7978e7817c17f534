"""``kerolox store check``: each kind of damage is found, where it is, and nothing else."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import kerolox._pykernel as reference
from kerolox.errors import StoreError
from kerolox.inspect.check import check_store
from kerolox.inspect.info import describe_store
from kerolox.store.layout import ENTRY, EPOCH_FILE
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable
from tests.support.stores.bench import NOW, Bench, properties
from tests.support.stores.golden import Golden, copy_golden
from tests.support.stores.inspected import FILE_BYTES, Made, check, fill, made_store, places_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "store"
    made_store(root, reference)
    return root


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Made:
    return Made.copy(source, tmp_path / "store")


def findings(made: Made) -> list[tuple[str, str, int, str]]:
    """(part, path below the root, byte, sentence) of each finding."""
    found = check(made.root).findings
    assert found.count == len(found.kept)
    root = str(made.root) + "/"
    return [
        (each.part, each.path.removeprefix(root), each.position, each.text) for each in found.kept
    ]


def only(made: Made) -> tuple[str, str, int, str]:
    [finding] = findings(made)
    return finding


def test_a_good_store_is_clean_and_wholly_read(made: Made) -> None:
    report = check(made.root)
    assert report.findings.kept == []
    assert report.findings.notes == []
    assert report.records == 400 + 5 + 8
    assert report.queue_entries == 400 + 5
    assert report.index_entries == 400 * 3 + 5 + 8
    assert len(list((made.root / "commitlog").iterdir())) > 3


def test_the_store_that_java_wrote_is_clean(tmp_path: Path) -> None:
    golden: Golden = copy_golden(tmp_path)
    report = check(golden.folder / "store")
    assert report.findings.kept == []
    assert (report.records, report.queue_entries, report.index_entries) == (1872, 1872, 3743)
    assert report.config_files == 5


def test_a_check_changes_nothing(made: Made) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        paths = [path for path in made.root.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = state()
    check(made.root)
    assert state() == before


# -- the log ------------------------------------------------------------------------------------
def test_a_flipped_bit_in_a_body_is_a_wrong_crc(made: Made) -> None:
    offset, _size, body, _text = made.record(1, 30)
    made.flip(made.log_file(offset // FILE_BYTES), body + 7, 0x10)
    part, path, position, text = only(made)
    assert (part, path, position) == (
        "log",
        f"commitlog/{offset // FILE_BYTES * FILE_BYTES:020d}",
        offset % FILE_BYTES,
    )
    assert f"the body of the record at {offset} does not match its CRC (T, queue 1, 30)" in text


@pytest.mark.parametrize(
    ("at", "bit", "reason"),
    [
        (0, 0x40, "the record's size"),
        (3, 0x01, "the parts of the record do not add up"),
        (4, 0x01, "the magic code is dba320a7, not daa320a7"),
        (35, 0x01, "the record says that it stands at"),
        (39, 0x10, "the parts of the record do not add up"),
        (87, 0x02, "the parts of the record do not add up"),
    ],
)
def test_a_flipped_bit_in_a_head_is_one_finding_over_the_record(
    made: Made, at: int, bit: int, reason: str
) -> None:
    offset, size, _body, _text = made.record(2, 40)
    made.flip(made.log_file(offset // FILE_BYTES), offset % FILE_BYTES + at, bit)
    part, _path, position, text = only(made)
    assert (part, position) == ("log", offset % FILE_BYTES)
    assert text.startswith(f"no whole record from {offset} to {offset + size}: ")
    assert reason in text


def test_a_wrong_queue_offset_in_a_record_is_found(made: Made) -> None:
    offset, _size, _body, _text = made.record(0, 50)
    made.flip(made.log_file(offset // FILE_BYTES), offset % FILE_BYTES + 26, 0x01)
    part, _path, _position, text = only(made)
    assert part == "queue"
    assert text == f"the record at {offset} says queue offset 306, its entry is 50 (T, queue 0)"


def test_a_record_of_another_queue_is_found_once(made: Made) -> None:
    offset, _size, _body, _text = made.record(1, 50)
    made.flip(made.log_file(offset // FILE_BYTES), offset % FILE_BYTES + 15, 0x02)
    found = [text for part, _path, _position, text in findings(made) if part == "queue"]
    assert found
    assert all(str(offset) in text for text in found)


def test_zeros_over_records_are_found_though_the_log_goes_on(made: Made) -> None:
    first, _size, _body, _text = made.record(0, 10)
    behind = made.record(1, 10)[0]
    made.write(made.log_file(), first, bytes(behind - first))
    part, _path, position, text = only(made)
    assert (part, position) == ("log", first)
    assert text == f"no whole record from {first} to {behind}: there are zeros"


def test_a_missing_file_of_the_log_is_found(made: Made) -> None:
    made.log_file(1).unlink()
    found = findings(made)
    assert found[0][0] == "log"
    assert found[0][3] == (
        f"the log ends at {FILE_BYTES} and goes on at {2 * FILE_BYTES}: a file is missing"
    )
    assert {part for part, *_ in found} == {"log"}


def test_a_log_file_that_was_cut_off_is_found(made: Made) -> None:
    with made.log_file(1).open("r+b") as file:
        file.truncate(FILE_BYTES // 2)
    texts = [text for part, *_, text in findings(made) if part == "log"]
    assert f"has {FILE_BYTES // 2} bytes, the log's first file {FILE_BYTES}" in texts


def test_a_wrong_blank_is_found(made: Made) -> None:
    data = made.log_file().read_bytes()
    at = data.rindex(bytes.fromhex("cbd43194")) - 4
    made.flip(made.log_file(), at + 3, 0x40)
    part, _path, position, text = only(made)
    assert (part, position) == ("log", at)
    assert text.startswith(f"the blank at {at} says that it has ")


def test_bytes_behind_the_end_are_a_finding_after_a_clean_stop_only(made: Made) -> None:
    last = sorted((made.root / "commitlog").iterdir())[-1]
    used = len(last.read_bytes().rstrip(b"\0"))
    made.write(last, used, b"\0\0\0\x63\xda\xa3\x20\xa7torn")
    part, _path, _position, text = only(made)
    assert part == "log"
    assert "but bytes stand behind its end" in text
    (made.root / "abort").touch()
    report = check(made.root)
    assert report.is_clean
    assert any("the next start clears them" in note for note in report.findings.notes)


def test_files_made_ahead_are_in_order(made: Made) -> None:
    last = sorted((made.root / "commitlog").iterdir())[-1]
    for number in (1, 2):
        ahead = made.root / "commitlog" / f"{int(last.name) + number * FILE_BYTES:020d}"
        ahead.write_bytes(bytes(FILE_BYTES))
    assert check(made.root).is_clean


# -- queues -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        (7, "names the record at {near}, it is the one at {offset}"),
        (11, "has the size {near_size}, the record is of {size}"),
        (19, "has the tags code {code}, the record at {offset} makes it {right}"),
    ],
)
def test_a_flipped_bit_in_an_entry_is_found(made: Made, at: int, sentence: str) -> None:
    offset, size, *_ = made.record(3, 60)
    path = made.queue_file("T", 3)
    right = ENTRY.unpack_from(path.read_bytes(), 60 * 20)[2]
    made.flip(path, 60 * 20 + at, 0x01)
    wanted = sentence.format(
        offset=offset, near=offset ^ 1, size=size, near_size=size ^ 1, right=right, code=right ^ 1
    )
    assert only(made) == (
        "queue",
        f"consumequeue/T/3/{0:020d}",
        1200,
        f"entry 60 of T, queue 3 {wanted}",
    )


def test_a_wrong_deliver_time_is_found(made: Made) -> None:
    made.flip(made.queue_file("SCHEDULE_TOPIC_XXXX", 2), 2 * 20 + 18, 0x04)
    part, path, position, text = only(made)
    assert (part, path, position) == ("queue", f"consumequeue/SCHEDULE_TOPIC_XXXX/2/{0:020d}", 40)
    assert "has the deliver time" in text


def test_the_levels_of_the_settings_count(made: Made) -> None:
    report = check(made.root, delays_ms=(1_000, 5_000, 11_000))
    assert report.findings.counts == {"queue": 5}


def test_an_empty_entry_is_found(made: Made) -> None:
    offset, *_ = made.record(0, 20)
    made.write(made.queue_file(), 20 * 20, bytes(20))
    part, _path, position, text = only(made)
    assert (part, position) == ("queue", 400)
    assert text == f"entry 20 of T, queue 0 is empty, the record at {offset} belongs there"


def test_missing_entries_at_the_end_are_a_finding_after_a_clean_stop_only(made: Made) -> None:
    made.write(made.queue_file(), 97 * 20, bytes(3 * 20))
    part, _path, _position, text = only(made)
    assert part == "queue"
    assert text.startswith("3 entries of T, queue 0 are empty, from 97 on")
    (made.root / "abort").touch()
    report = check(made.root)
    assert report.is_clean
    assert any("the next start writes them" in note for note in report.findings.notes)


def test_a_missing_queue_is_found(made: Made) -> None:
    offset, *_ = made.record(2, 0)
    shutil.rmtree(made.root / "consumequeue" / "T" / "2")
    assert only(made) == (
        "queue",
        "consumequeue/T/2",
        -1,
        f"T, queue 2 has no files; the log holds 100 records of it, the first at {offset}",
    )


def test_a_missing_file_of_a_queue_is_found(tmp_path: Path) -> None:
    made_store(tmp_path / "store", reference, mapped_file_size_consume_queue=20 * 30)
    made = Made(tmp_path / "store")
    (made.root / "consumequeue" / "T" / "1" / f"{600:020d}").unlink()
    part, _path, _position, text = only(made)
    assert part == "queue"
    assert text == "T, queue 1: files are missing between entry 30 and 60"


def test_an_extra_entry_is_found(made: Made) -> None:
    made.write(made.queue_file("SCHEDULE_TOPIC_XXXX", 2), 5 * 20, ENTRY.pack(123, 456, 7))
    part, _path, position, text = only(made)
    assert (part, position) == ("queue", 100)
    assert text == (
        "entry 5 of SCHEDULE_TOPIC_XXXX, queue 2 names a record of 456 bytes at 123, which the log "
        "does not have"
    )


def test_a_queue_whose_records_are_not_there_is_found(made: Made) -> None:
    folder = made.root / "consumequeue" / "Nobody" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(ENTRY.pack(200, 300, 0).ljust(2000, b"\0"))
    part, path, position, text = only(made)
    assert (part, path, position) == ("queue", f"consumequeue/Nobody/0/{0:020d}", 0)
    assert "names a record of 300 bytes at 200" in text


def made_again(root: Path) -> None:
    """A store whose topic T was deleted and made again."""
    bench = Bench(reference, root)
    bench.open()
    fill(bench)
    bench.store.delete_queues("T")
    for number in range(7):
        bench.append(b"new", properties(KEYS=f"n{number}"), queue_id=1)
    bench.wait_indexed()
    bench.store.close()


def test_a_topic_that_was_made_again_is_in_order(tmp_path: Path) -> None:
    made_again(tmp_path / "store")
    report = check(tmp_path / "store")
    assert report.findings.kept == []
    assert report.findings.notes == ["T: the log holds 400 records of before it was deleted"]


def test_without_the_note_of_the_deletion_only_queues_that_are_gone_are_found(
    tmp_path: Path,
) -> None:
    """As Java leaves it, which notes nothing."""
    made_again(tmp_path / "store")
    (tmp_path / "store" / "deletions").unlink()
    report = check(tmp_path / "store")
    lacking = [each.text for each in report.findings.kept]
    assert [text.split(" has no files")[0] for text in lacking] == [
        "T, queue 0",
        "T, queue 2",
        "T, queue 3",
    ]
    assert any("T, queue 1: 100 records before" in note for note in report.findings.notes)


def multi_dispatch(root: Path) -> None:
    """A store with records that are in further queues too."""
    bench = Bench(reference, root)
    bench.open(enable_multi_dispatch=True, enable_lmq=True)
    for number in range(30):
        text = properties(INNER_MULTI_DISPATCH="Other,%LMQ%one,Other", TAGS=f"t{number % 3}")
        assert bench.append(b"x", text, queue_id=number % 2)[0] == 0
    bench.store.close()


def test_further_queues_of_a_record_are_checked(tmp_path: Path) -> None:
    made = Made(tmp_path / "store")
    multi_dispatch(made.root)
    report = check(made.root)
    assert (report.findings.kept, report.queue_entries) == ([], 90)
    made.flip(made.queue_file("%LMQ%one", 0), 7 * 20 + 7)
    assert only(made)[3].startswith("entry 7 of %LMQ%one, queue 0 names the record at ")


def test_further_queues_that_are_gone_are_found_when_the_settings_say_so(tmp_path: Path) -> None:
    made = Made(tmp_path / "store")
    multi_dispatch(made.root)
    shutil.rmtree(made.root / "consumequeue" / "%LMQ%one")
    assert check(made.root).is_clean
    [finding] = check(made.root, multi_dispatch=True).findings.kept
    assert finding.text.startswith("%LMQ%one, queue 0 has no files; the log holds 30 records")


def test_what_a_deleted_topic_left_in_the_log_is_a_note(made: Made) -> None:
    shutil.rmtree(made.root / "consumequeue" / "T")
    (made.root / "config").mkdir()
    (made.root / "config" / "topics.json").write_text('{"topicConfigTable":{"Other":{}}}')
    report = check(made.root)
    assert report.is_clean
    assert "T, queue 0: the log holds 100 records of a deleted topic" in report.findings.notes


# -- extension files ----------------------------------------------------------------------------
def with_extension(made: Made, code: int) -> None:
    """Let an entry of T, queue 0 lead to an extension unit."""
    folder = made.root / "consumequeue_ext" / "T" / "0"
    folder.mkdir(parents=True)
    unit = struct.pack(">hqqh", 23, code, NOW, 3) + b"\1\2\3"
    (folder / f"{0:020d}").write_bytes(bytes(20) + unit + bytes(1_000))
    made.write(made.queue_file(), 8 * 20 + 12, struct.pack(">q", 20 - (1 << 63)))


def test_an_entry_may_lead_to_its_extension(made: Made) -> None:
    code = ENTRY.unpack_from(made.queue_file().read_bytes(), 8 * 20)[2]
    with_extension(made, code)
    assert check(made.root).is_clean


def test_a_wrong_or_missing_extension_is_found(made: Made) -> None:
    with_extension(made, 12345)
    part, path, _position, text = only(made)
    assert (part, path) == ("extension", "consumequeue_ext/T/0")
    assert "has the tags code 12345" in text
    shutil.rmtree(made.root / "consumequeue_ext")
    assert "names the extension at 20, where none stands" in only(made)[3]


# -- index --------------------------------------------------------------------------------------
ENTRIES_AT = 40 + 64 * 4


def test_a_flipped_bit_in_a_hash_is_one_finding(made: Made) -> None:
    made.flip(made.index_file(1), ENTRIES_AT + 100 * 20 + 3, 0x01)
    part, _path, position, text = only(made)
    assert (part, position) == ("index", ENTRIES_AT + 2000)
    assert "which is of no key of its record at" in text
    assert text.endswith("is not found")


def test_a_wrong_offset_in_the_index_is_found(made: Made) -> None:
    made.flip(made.index_file(0), ENTRIES_AT + 100 * 20 + 5, 0x40)
    found = findings(made)
    assert {part for part, *_ in found} == {"index"}
    assert (found[0][2], len(found)) == (ENTRIES_AT + 2000, 2)
    assert found[0][3].startswith("entry 100 names the record at")
    assert found[1][3].startswith("the key ")


@pytest.mark.parametrize("bit", [0x01, 0x20])
def test_a_broken_chain_is_found(made: Made, bit: int) -> None:
    made.flip(made.index_file(1), ENTRIES_AT + 200 * 20 + 19, bit)
    part, _path, position, text = only(made)
    assert (part, position) == ("index", ENTRIES_AT + 200 * 20 + 16)
    assert text.startswith("entry 200 leads to entry ")


def test_a_wrong_slot_is_found(made: Made) -> None:
    made.flip(made.index_file(0), 40 + 4 * 17 + 3, 0x04)
    part, _path, position, text = only(made)
    assert (part, position) == ("index", 40 + 4 * 17)
    assert text.startswith("slot 17 leads to entry ")


def test_a_wrong_time_in_the_index_is_found(made: Made) -> None:
    made.flip(made.index_file(0), ENTRIES_AT + 77 * 20 + 15, 0x40)
    part, _path, position, text = only(made)
    assert (part, position) == ("index", ENTRIES_AT + 77 * 20)
    assert text.startswith("entry 77 is ")


def test_a_missing_index_is_found_unless_none_is_kept(made: Made) -> None:
    shutil.rmtree(made.root / "index")
    part, path, _position, text = only(made)
    assert (part, path) == ("index", "index")
    assert text.startswith("there are no files, and the log holds 413 records with keys")
    assert check(made.root, has_index=False).is_clean


def test_a_missing_file_of_the_index_is_found(made: Made) -> None:
    made.index_file(2).unlink()
    found = findings(made)
    assert {part for part, *_ in found} == {"index"}
    assert any("records with keys from" in text for *_, text in found)


def test_an_index_of_unknown_shape_says_what_to_give(made: Made) -> None:
    for path in (made.root / "index").iterdir():
        path.write_bytes(path.read_bytes() + b"\0\0\0")
    found = findings(made)
    assert all("give -c broker.conf" in text for *_, text in found)


# -- checkpoint and tables ----------------------------------------------------------------------
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_checkpoint_ahead_of_the_log_is_found(made: Made, number: int) -> None:
    made.write(made.root / "checkpoint", number * 8, struct.pack(">q", NOW + 10**9))
    part, path, position, text = only(made)
    assert (part, path, position) == ("checkpoint", "checkpoint", number * 8)
    assert f"up to {NOW + 10**9}, the log's last record is of" in text


def test_a_log_without_a_record_is_in_order(tmp_path: Path) -> None:
    """As a loss of power leaves it in the first file behind those that expired."""
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    bench.append(b"x" * 60_000, properties(KEYS="k"))
    bench.append(b"x" * 60_000, properties(KEYS="l"), queue_id=1)
    bench.store.flush()
    path = bench.store.drop_log_file()
    assert path is not None
    Path(path).unlink()
    bench.store.close()
    made = Made(tmp_path / "store")
    made.log_file(1).write_bytes(bytes(FILE_BYTES))
    made.queue_file("T", 1).write_bytes(bytes(made.queue_file("T", 1).stat().st_size))
    shutil.rmtree(made.root / "index")
    assert check(made.root).findings.kept == []
    info = describe_store(places_of(made.root))
    assert (info.min_offset, info.max_offset) == (FILE_BYTES, FILE_BYTES)


def test_a_short_or_missing_checkpoint_is_found(made: Made) -> None:
    (made.root / "checkpoint").write_bytes(b"short")
    assert only(made)[3] == "has 5 bytes, at least 24 are wanted"
    (made.root / "checkpoint").unlink()
    assert only(made)[0] == "checkpoint"


def test_epochs_that_can_not_be_are_found(made: Made) -> None:
    log_end = describe_store(places_of(made.root)).max_offset
    file = EpochFile(made.root / EPOCH_FILE)
    file.save(EpochTable((EpochStart(1, 0), EpochStart(2, log_end))))
    assert findings(made) == []
    file.save(EpochTable((EpochStart(1, 0), EpochStart(2, log_end + 1))))
    assert only(made) == (
        "epochs",
        "epochFileCheckpoint",
        -1,
        f"epoch 2 begins at {log_end + 1}, the log ends at {log_end}",
    )
    file.path.write_text("what")
    assert only(made)[3].startswith("can't be read: ")


def test_a_broken_table_is_found(made: Made) -> None:
    folder = made.root / "config"
    folder.mkdir()
    (folder / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:12,1:7}}}')
    (folder / "delayOffset.json").write_text('{"offsetTable":{3:')
    (folder / "topics.json.bak").write_text("[]")
    (folder / "notes.txt").write_text("{")
    found = findings(made)
    assert [(part, path) for part, path, *_ in found] == [
        ("config", "config/delayOffset.json"),
        ("config", "config/topics.json.bak"),
    ]


# -- beside a broker ----------------------------------------------------------------------------
def test_a_store_that_grows_meanwhile_gives_no_false_finding(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    fill(bench, 50)
    try:
        grown = [0]

        def grow(_done: int, _total: int) -> None:
            # In the middle of the check: the walk has begun, and its end is fixed.
            grown[0] += 1
            fill(bench, 60)

        places = places_of(tmp_path / "store")
        assert places.is_in_use
        report = check_store(places, grow)
        assert grown[0]
        assert report.findings.kept == []
        # 50 messages, 5 delayed ones and a half one.
        assert report.records == 50 + 5 + 1
    finally:
        bench.store.close()


def test_the_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    assert places_of(tmp_path / "store").is_in_use
    assert not places_of(tmp_path / "store").is_closed_cleanly
    bench.store.close()
    places = places_of(tmp_path / "store")
    assert (places.is_in_use, places.is_closed_cleanly) == (False, True)


def test_a_topic_deleted_meanwhile_gives_no_false_finding(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    fill(bench, 50)
    bench.wait_indexed()
    try:

        def delete(_done: int, _total: int) -> None:
            bench.store.delete_queues("T")
            bench.append(b"anew", queue_id=1)

        report = check_store(places_of(tmp_path / "store"), delete)
        assert report.findings.kept == []
        assert "T, queue 1 was deleted meanwhile" in report.findings.notes
    finally:
        bench.store.close()


# -- places -------------------------------------------------------------------------------------
def test_a_log_in_several_folders_is_one_log(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in sorted((made.root / "commitlog").iterdir())[1::2]:
        path.rename(other / path.name)
    folders = (str(made.root / "commitlog"), str(other))
    assert check(made.root, log_folders=folders).is_clean
    assert not check(made.root).is_clean


def test_what_is_no_store_is_refused(tmp_path: Path, made: Made) -> None:
    (tmp_path / "file").touch()
    for path, words in (
        (tmp_path / "nowhere", "is not there"),
        (tmp_path / "file", "is no folder"),
        (tmp_path, "is no store: it has no folder commitlog"),
        (made.root / "commitlog", "holds a commit log; give the folder above it"),
    ):
        with pytest.raises(StoreError, match=words):
            places_of(path)
