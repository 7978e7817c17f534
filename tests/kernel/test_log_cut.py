"""A log that is cut: what stays, what is kept aside, and kills at each step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kerolox.inspect.dump import Selection, select_records
from kerolox.inspect.findings import Findings
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.inspect.rebuild import rebuild_store
from kerolox.kernel.settings import StoreSettings
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable
from kerolox.store.recovery.cut_record import EVERYTHING, INTENT
from kerolox.store.recovery.log_cut import cut_log, finish_cut, kept_parts
from tests.support.faults.shim import Faults
from tests.support.servers import forked
from tests.support.stores.bench import NOW, SMALL_FILES, Bench

pytestmark = pytest.mark.xdist_group("kernel-processes")  # they share a fork server

FILE_SIZE = SMALL_FILES["mapped_file_size_commit_log"]
RECORDS = 300
ROOT = Path(__file__).resolve().parents[2]


def settings_of(bench: Bench, **more: Any) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(bench.path), **{**SMALL_FILES, **more})


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * 700


def fill(bench: Bench) -> list[int]:
    """Some files of records; where each begins, and where the last ends."""
    offsets = []
    for number in range(RECORDS):
        bench.store.set_clock(NOW + number)
        text = f"KEYS\x01k{number}"
        done = bench.append(body(number), text, queue_id=number % 4)
        offsets.append(done.physical_offset)
    return [*offsets, bench.store.max_physical_offset]


def all_bodies(bench: Bench) -> set[bytes]:
    return {each for queue_id in range(4) for each in bench.bodies(queue_id)}


def kept_records(folder: str) -> list[tuple[int, bytes]]:
    """(physical offset, body) of the records in a folder that was kept, as ``dump`` reads them."""
    about = json.loads(Path(folder, "cut.json").read_text())
    places = StorePlaces.find(folder, StoreOptions())
    selection = Selection(from_offset=about["begin"])
    records = select_records(places, selection, Findings())
    return [(record.commit_log_offset, record.body) for record in records]


def reopened(bench: Bench, kernel: Any) -> Bench:
    """The store as the next start of a broker has it."""
    finish_cut(settings_of(bench))
    again = Bench(kernel, bench.path)
    again.open()
    return again


@pytest.fixture
def filled(bench: Bench) -> tuple[Bench, list[int]]:
    offsets = fill(bench)
    bench.wait_indexed()
    bench.store.close()
    assert len(list((bench.path / "commitlog").iterdir())) > 3
    return bench, offsets


def test_epochs_end_with_the_log(filled: tuple[Bench, list[int]]) -> None:
    """Those of RocketMQ's controller mode."""
    bench, offsets = filled
    file = EpochFile(bench.path / EPOCH_FILE)
    epochs = EpochStart(1, 0), EpochStart(2, offsets[40]), EpochStart(5, offsets[90])
    file.save(EpochTable(epochs))
    cut_log(settings_of(bench), offsets[90], why="differs", master="m:1")
    assert file.load().starts == list(epochs[:2])
    bench.open()
    bench.store.close()
    cut_log(settings_of(bench), EVERYTHING, why="anew", master="m:1")
    assert file.load().starts == []


def test_a_cut_leaves_epochs_that_can_not_be_read(filled: tuple[Bench, list[int]]) -> None:
    bench, offsets = filled
    file = EpochFile(bench.path / EPOCH_FILE)
    file.path.write_text("torn")
    assert cut_log(settings_of(bench), offsets[90], why="differs", master="m:1") is not None
    assert file.path.read_text() == "torn"


@pytest.mark.parametrize("count", [1, 40, 151, RECORDS - 1])
@pytest.mark.parametrize("behind", [0, 1, 500])
def test_a_log_ends_where_it_was_cut_and_the_rest_is_kept(
    filled: tuple[Bench, list[int]],
    other_kernel: Any,
    closing: list[Bench],
    count: int,
    behind: int,
) -> None:
    bench, offsets = filled
    cut = cut_log(settings_of(bench), offsets[count] + behind, why="differs", master="m:1")
    assert cut is not None
    again = reopened(bench, other_kernel)
    closing.append(again)
    wanted = {body(number) for number in range(count)}
    assert all_bodies(again) == wanted
    # Behind the last record of a file its blank stays.
    assert cut.begin in (offsets[count], again.store.max_physical_offset)
    assert again.store.max_physical_offset == cut.kept
    kept = kept_records(cut.folder)
    assert [each for _, each in kept] == [body(number) for number in range(count, RECORDS)]
    assert [at for at, _ in kept] == offsets[count:-1]
    assert kept_parts(settings_of(bench)) == [cut.folder]
    assert cut.store_time == NOW + count - 1
    for number in (0, RECORDS - 1):
        found = again.store.query_key("T", f"k{number}", 10, 0, NOW + RECORDS)
        assert bool(found[2]) == (number < count)
    done = again.append(b"next", queue_id=count % 4)
    assert done.queue_offset == len([n for n in range(count) if n % 4 == count % 4])


def test_what_says_why_names_the_master_and_the_offsets(filled: tuple[Bench, list[int]]) -> None:
    bench, offsets = filled
    cut = cut_log(settings_of(bench), offsets[7], why="it differs", master="10.1.2.3:10912")
    assert cut is not None
    about = json.loads(Path(cut.folder, "cut.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", about.pop("time"))
    assert about == {
        "begin": offsets[7],
        "end": offsets[-1],
        "logEnd": offsets[7],
        "storeTimestamp": NOW + 6,
        "why": "it differs",
        "master": "10.1.2.3:10912",
        "folder": cut.folder,
    }
    assert Path(cut.folder).parent == bench.path / "commitlog-cut"


def test_several_cuts_have_each_a_folder(
    filled: tuple[Bench, list[int]], kernel: Any, closing: list[Bench]
) -> None:
    bench, offsets = filled
    for count in (200, 100):
        assert cut_log(settings_of(bench), offsets[count], why="", master="") is not None
        again = reopened(bench, kernel)
        assert again.store.max_physical_offset == offsets[count]
        again.store.close()
    first, second = kept_parts(settings_of(bench))
    assert {len(kept_records(first)), len(kept_records(second))} == {100}


def test_a_log_that_begins_anew_keeps_all_of_the_old_one(
    filled: tuple[Bench, list[int]], other_kernel: Any, closing: list[Bench]
) -> None:
    bench, offsets = filled
    cut = cut_log(settings_of(bench), EVERYTHING, why="gone", master="m:1")
    assert cut is not None
    assert len(kept_records(cut.folder)) == RECORDS
    again = reopened(bench, other_kernel)
    closing.append(again)
    assert (again.store.min_physical_offset, again.store.max_physical_offset) == (0, 0)
    assert all_bodies(again) == set()
    again.store.append_log(7 * FILE_SIZE, b"")
    assert again.append(b"first").queue_offset == 0
    assert offsets[-1] == cut.end


def test_nothing_is_done_where_nothing_stands_behind(filled: tuple[Bench, list[int]]) -> None:
    bench, offsets = filled
    before = sorted(bench.path.rglob("*"))
    for offset in (offsets[-1], offsets[-1] + 1, offsets[-1] + 10 * FILE_SIZE):
        assert cut_log(settings_of(bench), offsets[-1], why="", master="") is None, offset
    assert finish_cut(settings_of(bench)) is None
    assert sorted(bench.path.rglob("*")) == before


def test_a_store_that_is_open_or_was_killed_is_not_cut(
    filled: tuple[Bench, list[int]], kernel: Any
) -> None:
    bench, offsets = filled
    with pytest.raises(ValueError, match="no record of the log ends before 100"):
        cut_log(settings_of(bench), 100, why="", master="")
    again = Bench(kernel, bench.path)
    again.open()
    with pytest.raises(BlockingIOError, match="in use"):
        cut_log(settings_of(bench), offsets[5], why="", master="")
    again.store.close()
    (bench.path / "abort").touch()
    with pytest.raises(ValueError, match="not closed cleanly"):
        cut_log(settings_of(bench), offsets[5], why="", master="")
    (bench.path / "abort").unlink()
    (bench.path / INTENT).write_text("{}")
    with pytest.raises(ValueError, match="is no cut of a log"):
        finish_cut(settings_of(bench))


def test_files_that_are_only_read_are_not_cut(
    kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    bench = Bench(kernel, tmp_path / "store")
    closing.append(bench)
    bench.open()
    offsets = fill(bench)
    bench.store.close()
    old = tmp_path / "old"
    old.mkdir()
    for file in sorted((bench.path / "commitlog").iterdir())[:3]:
        file.rename(old / file.name)
    settings = settings_of(bench, read_only_commit_log_store_paths=str(old))
    with pytest.raises(ValueError, match="readOnlyCommitLogStorePaths"):
        cut_log(settings, offsets[5], why="", master="")
    cut = cut_log(settings, offsets[-2], why="", master="")
    assert cut is not None
    assert len(kept_records(cut.folder)) == 1


CALLS = ("create", "pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir")


def cut_by_process(bench: Bench, offset: int, faults: Faults, paths: str = "") -> int:
    arguments = [bench.path, FILE_SIZE, offset, paths]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    path = os.pathsep.join([str(ROOT / "src"), *sys.path])
    environment = {**os.environ, **faults.environment, "PYTHONPATH": path}
    with forked.start(
        "tests.kernel.cut_me",
        arguments,
        environment,
        preloaded=("kerolox.store.recovery.log_cut",),
        cwd=ROOT,
        **quiet,
    ) as process:
        return process.wait(timeout=60)


def steps_of(path: Path, notes: list[tuple[str, str]]) -> list[str]:
    """A rule for each call of a run that changed something of a store."""
    seen: dict[str, int] = {}
    rules = []
    for call, where in notes:
        if str(path) in where:
            seen[call] = seen.get(call, 0) + 1
            rules.append(f"{call}:{path}:{seen[call]}")
    return rules


def copied(bench: Bench, folder: Path) -> Bench:
    subprocess.run(["cp", "-a", str(bench.path), str(folder)], check=True)
    return Bench(bench.kernel, folder)


def test_a_kill_at_any_step_leaves_the_old_log_or_the_new_one(
    filled: tuple[Bench, list[int]], kernel: Any, tmp_path: Path
) -> None:
    bench, offsets = filled
    count = 100
    faults = Faults(tmp_path)
    first = copied(bench, tmp_path / "first")
    faults.set(*(f"{call}:{first.path}:*:note" for call in CALLS))
    assert cut_by_process(first, offsets[count], faults) == 0
    rules = steps_of(first.path, faults.fired())
    assert len(rules) > 20
    everything = {body(number) for number in range(RECORDS)}
    outcomes = set()
    for number, rule in enumerate(rules):
        one = copied(bench, tmp_path / f"store-{number:03}")
        rule = rule.replace(str(first.path), str(one.path))
        faults.set(f"{rule}:kill-before")
        assert cut_by_process(one, offsets[count], faults) == -signal.SIGKILL, rule
        again = reopened(one, kernel)
        found = all_bodies(again)
        again.store.close()
        parts = kept_parts(settings_of(one))
        outcomes.add(len(found))
        if found == everything:
            assert parts == [], rule
            # The next try is not disturbed by what the first one left.
            cut = cut_log(settings_of(one), offsets[count], why="", master="")
            assert cut is not None
            parts = [cut.folder]
        else:
            assert found == {body(number) for number in range(count)}, rule
        [part] = parts
        assert [at for at, _ in kept_records(part)] == offsets[count:-1], rule
        assert os.listdir(one.path / "commitlog-cut") == [Path(part).name], rule
        assert not (one.path / INTENT).exists()
    assert outcomes == {count, RECORDS}


def test_a_disk_that_takes_no_copy_leaves_the_log_as_it_is(
    filled: tuple[Bench, list[int]], kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    bench, offsets = filled
    faults = Faults(tmp_path)
    faults.set("pwrite:commitlog-cut:1+:ENOSPC")
    assert cut_by_process(bench, offsets[100], faults) == 1
    again = reopened(bench, kernel)
    closing.append(again)
    assert len(all_bodies(again)) == RECORDS
    assert kept_parts(settings_of(bench)) == []


def test_records_that_come_after_a_cut_survive_a_loss_of_power(
    filled: tuple[Bench, list[int]], kernel: Any, closing: list[Bench]
) -> None:
    """They are older than those that were cut off, so the checkpoint must not vouch for them."""
    bench, offsets = filled
    cut_log(settings_of(bench), offsets[10], why="", master="")
    again = reopened(bench, kernel)
    closing.append(again)
    times = (bench.path / "checkpoint").read_bytes()[:24]
    physic, logics, index = (int.from_bytes(times[at : at + 8], "big") for at in (0, 8, 16))
    assert max(physic, logics, index) <= NOW + 9


def test_a_log_in_two_folders_keeps_each_file_beside_its_own(
    kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    paths = ",".join(str(tmp_path / name) for name in ("one", "two"))
    bench = Bench(kernel, tmp_path / "store")
    closing.append(bench)
    bench.open(store_path_commit_log=paths)
    offsets = fill(bench)
    bench.store.close()
    settings = settings_of(bench, store_path_commit_log=paths)
    cut = cut_log(settings, offsets[100], why="", master="")
    assert cut is not None
    name = Path(cut.folder).name
    folders = [tmp_path / f"{each}-cut" / name / "commitlog" for each in ("one", "two")]
    starts = sorted(int(file.name) for folder in folders for file in folder.iterdir())
    first = offsets[100] // FILE_SIZE * FILE_SIZE
    assert starts == list(range(first, offsets[-1], FILE_SIZE))
    again = Bench(kernel, bench.path)
    closing.append(again)
    again.open(store_path_commit_log=paths)
    assert len(all_bodies(again)) == 100


def test_entries_that_a_topic_lost_in_the_cut_part_come_back_by_a_rebuild(
    kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    """A slave deletes the queue of a topic that was made anew; the cut does not bring it back."""
    bench = Bench(kernel, tmp_path / "store")
    closing.append(bench)
    bench.open()
    for number in range(10):
        bench.append(b"old %d" % number)
    for number in range(200):
        bench.store.set_clock(NOW + 10_000 + number * 100)
        bench.append(b"x" * 700, topic=b"Other")
    bench.store.flush()
    end = bench.store.max_physical_offset
    bench.store.delete_queue("T", 0)
    for _ in range(3):
        bench.append(b"new")
    bench.store.close()
    cut = cut_log(settings_of(bench), end, why="", master="")
    assert cut is not None
    assert cut.begin == end
    rebuild_store(StorePlaces.find(str(bench.path), StoreOptions()))
    again = reopened(bench, kernel)
    closing.append(again)
    assert again.bodies() == [b"old %d" % number for number in range(10)]
