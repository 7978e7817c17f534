"""Files of the commit log: made ahead, in several folders, read-only ones among them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import wait_until
from tests.support.stores.bench import SMALL_FILES, Bench, files

SIZE = SMALL_FILES["mapped_file_size_commit_log"]
BODY = bytes(8_000)
PER_FILE = SIZE // 8_100


def names(*folders: Path) -> list[str]:
    """The folder and number of each file of the log."""
    found = [
        f"{folder.name}/{int(path.name) // SIZE}"
        for folder in folders
        for path in folder.glob("*")
        if path.name.isdecimal()
    ]
    return sorted(found, key=lambda name: name.split("/")[1])


def fill(bench: Bench, count: int) -> int:
    """That many messages more in queue 0; how many there are now."""
    for _ in range(count):
        assert bench.append(BODY).status == 0
    return len(bench.bodies())


def two_folders(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"store_path_commit_log": f"{tmp_path}/b,{tmp_path}/a", **more}


def kill(bench: Bench, tmp_path: Path) -> None:
    """Set all files back to what they were before the store was closed."""
    shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    bench.store.close()
    shutil.rmtree(tmp_path)
    tmp_path.with_name("killed").rename(tmp_path)


# -- made ahead -------------------------------------------------------------------------------
def test_the_next_file_and_the_one_after_it_are_made_ahead(bench: Bench) -> None:
    folder = bench.path / "commitlog"
    fill(bench, 1)
    assert names(folder) == ["commitlog/0"]
    fill(bench, PER_FILE // 2 + 1)
    wait_until(lambda: names(folder) == ["commitlog/0", "commitlog/1", "commitlog/2"])
    wait_until(lambda: {path.stat().st_size for path in folder.iterdir()} == {SIZE})
    fill(bench, PER_FILE)
    wait_until(lambda: names(folder)[-1] == "commitlog/3")


def test_what_was_made_ahead_and_not_needed_goes_with_a_clean_stop(bench: Bench) -> None:
    folder = bench.path / "commitlog"
    count = fill(bench, PER_FILE // 2 + 2)
    wait_until(lambda: len(names(folder)) == 3)
    bench.store.close()
    assert names(folder) == ["commitlog/0"]
    assert bench.open().clean
    assert len(bench.bodies()) == count


def test_what_was_made_ahead_before_a_kill_does_not_disturb(bench: Bench, tmp_path: Path) -> None:
    folder = bench.path / "commitlog"
    count = fill(bench, PER_FILE // 2 + 2)
    end = bench.store.max_physical_offset
    wait_until(lambda: len(names(folder)) == 3)
    kill(bench, bench.path)
    assert len(names(folder)) == 3
    report = bench.open()
    assert (report.clean, report.max_offset, report.truncated_bytes) == (False, end, 0)
    assert names(folder) == ["commitlog/0"]
    assert fill(bench, 2 * PER_FILE) == count + 2 * PER_FILE


@pytest.mark.parametrize("gone", [(), (1,), (1, 2)])
def test_a_kill_right_after_the_blank_goes_on_in_the_next_file(
    bench: Bench, gone: tuple[int, ...]
) -> None:
    folder = bench.path / "commitlog"
    count = fill(bench, PER_FILE)
    end = bench.store.max_physical_offset
    wait_until(lambda: len(names(folder)) == 3)
    kill(bench, bench.path)
    with (folder / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write((SIZE - end).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    for number in gone:
        (folder / f"{number * SIZE:020d}").unlink()
    assert bench.open().max_offset == SIZE
    assert fill(bench, 1) == count + 1
    assert bench.store.max_physical_offset > SIZE


def test_a_file_that_was_just_being_created_is_removed(bench: Bench) -> None:
    count = fill(bench, 3)
    kill(bench, bench.path)
    for number in (1, 2):
        (bench.path / "commitlog" / f"{number * SIZE:020d}").touch()
    assert len(bench.open().notes) == 2
    assert fill(bench, PER_FILE) == count + PER_FILE


def test_a_file_ahead_that_somebody_deleted_is_made_again(bench: Bench) -> None:
    folder = bench.path / "commitlog"
    count = fill(bench, PER_FILE // 2 + 2)
    wait_until(lambda: len(names(folder)) == 3)
    for number in (1, 2):
        (folder / f"{number * SIZE:020d}").unlink()
    count = fill(bench, 2 * PER_FILE)
    assert names(folder)[:3] == ["commitlog/0", "commitlog/1", "commitlog/2"]
    bench.store.close()
    bench.open()
    assert len(bench.bodies()) == count


def test_warming_up_backs_every_page_of_the_files_ahead(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(warm_maped_file_enable=True, flush_disk_type="SYNC_FLUSH")
    count = fill(bench, PER_FILE // 2 + 2)

    def backed() -> list[int]:
        found = [path.stat().st_blocks * 512 for path in (bench.path / "commitlog").iterdir()]
        return sorted(found)[1:]

    wait_until(lambda: len(backed()) == 2 and all(size >= SIZE for size in backed()))
    assert fill(bench, 3 * PER_FILE) == count + 3 * PER_FILE


def locked_files() -> set[str]:
    """The files whose pages this process keeps in memory."""
    found, path = set(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            path = line.split(None, 5)[5] if line.count("/") else ""
        elif line.startswith("VmFlags:") and "lo" in line.split():
            found.add(path)
    return {each for each in found if each}


def test_warm_files_are_kept_in_memory_until_they_are_full_and_flushed(
    closed_bench: Bench,
) -> None:
    bench = closed_bench
    bench.open(warm_maped_file_enable=True)
    folder = bench.path / "commitlog"
    paths = [str(folder / f"{number * SIZE:020d}") for number in range(3)]
    fill(bench, PER_FILE // 2 + 2)
    wait_until(lambda: locked_files() == {paths[1], paths[2]})
    fill(bench, PER_FILE)
    wait_until(lambda: paths[1] in locked_files())
    bench.store.flush()
    fill(bench, PER_FILE)
    bench.store.flush()
    assert paths[1] not in locked_files()
    assert paths[2] in locked_files()
    bench.store.close()
    assert not any(str(folder) in path for path in locked_files())


# -- several folders --------------------------------------------------------------------------
def test_files_go_to_the_folders_in_turn(closed_bench: Bench, tmp_path: Path) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    count = fill(bench, 3 * PER_FILE)
    bench.store.close()
    assert names(a, b) == ["a/0", "b/1", "a/2"]
    assert not (bench.path / "commitlog").exists()
    report = bench.open(**two_folders(tmp_path))
    assert (report.clean, report.truncated_bytes, report.notes) == (True, 0, [])
    assert fill(bench, PER_FILE) == count + PER_FILE
    bench.store.close()
    assert names(a, b) == ["a/0", "b/1", "a/2", "b/3"]


def test_either_kernel_writes_the_same_bytes_to_the_same_folders(
    kernel: Any, other_kernel: Any, tmp_path: Path
) -> None:
    found = []
    for number, module in enumerate((kernel, other_kernel)):
        bench = Bench(module, tmp_path / str(number))
        a, b = "commitlog/a", "commitlog/b"
        bench.open(store_path_commit_log=f"{bench.path / b},{bench.path / a}")
        fill(bench, 3 * PER_FILE)
        bench.store.close()
        found.append(files(bench.path))
    assert found[0] == found[1]
    assert len(found[0]["commitlog/a"]) == 2


def test_a_killed_store_of_several_folders_is_recovered(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    bench, reader = Bench(kernel, tmp_path / "s"), Bench(other_kernel, tmp_path / "s")
    closing += [bench, reader]
    bench.open(**two_folders(tmp_path / "s"))
    count = fill(bench, 4 * PER_FILE + 1)
    end = bench.store.max_physical_offset
    kill(bench, tmp_path / "s")
    report = reader.open(**two_folders(tmp_path / "s"))
    assert (report.clean, report.max_offset, report.truncated_bytes) == (False, end, 0)
    assert fill(reader, 1) == count + 1


def test_a_folder_that_is_nearly_full_leaves_the_rotation(
    closed_bench: Bench, tmp_path: Path
) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    bench.store.set_full_log_paths([str(b)])
    count = fill(bench, 3 * PER_FILE - 1)
    bench.store.set_full_log_paths([])
    count = fill(bench, PER_FILE)
    bench.store.close()
    assert names(a, b) == ["a/0", "a/1", "a/2", "b/3"]
    bench.open(**two_folders(tmp_path))
    assert len(bench.bodies()) == count


def test_when_every_folder_is_nearly_full_all_stay(closed_bench: Bench, tmp_path: Path) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    bench.store.set_full_log_paths([str(a), str(b)])
    fill(bench, 2 * PER_FILE)
    bench.store.close()
    assert names(a, b) == ["a/0", "b/1"]


def test_a_read_only_folder_is_read_and_gets_no_file(closed_bench: Bench, tmp_path: Path) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(store_path_commit_log=str(a))
    count = fill(bench, 2 * PER_FILE)
    bench.store.close()
    for number in (0, 1):
        os.chmod(a / f"{number * SIZE:020d}", 0o444)
    before = {path: path.read_bytes() for path in a.iterdir() if int(path.name) == 0}
    more = {"store_path_commit_log": f"{a},{b}", "read_only_commit_log_store_paths": str(a)}
    bench.open(**more)
    assert fill(bench, 2 * PER_FILE) == count + 2 * PER_FILE
    bench.store.close()
    assert names(a, b) == ["a/0", "a/1", "b/2", "b/3"]
    assert {path: path.read_bytes() for path in before} == before
    bench.open(**more)
    assert len(bench.bodies()) == count + 2 * PER_FILE


def test_a_file_that_is_in_two_folders_is_refused(closed_bench: Bench, tmp_path: Path) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    count = fill(bench, 2)
    bench.store.close()
    shutil.copy(a / f"{0:020d}", b)
    with pytest.raises(ValueError, match=f"{0:020d}"):
        bench.open(**two_folders(tmp_path))
    with (b / f"{0:020d}").open("r+b") as file:
        file.write(bytes(SIZE))
    bench.open(**two_folders(tmp_path))
    assert len(bench.bodies()) == count
    assert names(b) == []


def test_a_hole_in_the_log_is_refused_and_its_file_is_named(
    closed_bench: Bench, tmp_path: Path
) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    count = fill(bench, 3 * PER_FILE)
    bench.store.close()
    before = {path: path.read_bytes() for folder in (a, b) for path in folder.iterdir()}
    hole = f"no file {SIZE:020d} between .*a/{0:020d} and .*a/{2 * SIZE:020d}: bring it back"
    for clean in (True, False):
        if not clean:
            (bench.path / "abort").touch()
        # The folder is not mounted, or was forgotten in the settings.
        b.rename(tmp_path / "away")
        with pytest.raises(ValueError, match=hole):
            bench.open(**two_folders(tmp_path))
        with pytest.raises(ValueError, match=hole):
            bench.open(store_path_commit_log=str(a))
        b.rmdir()
        (tmp_path / "away").rename(b)
    (bench.path / "abort").unlink()
    assert {path: path.read_bytes() for folder in (a, b) for path in folder.iterdir()} == before
    bench.open(**two_folders(tmp_path))
    assert len(bench.bodies()) == count


def test_a_hole_can_be_closed_by_giving_up_what_is_before_it(
    closed_bench: Bench, tmp_path: Path
) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    count = fill(bench, 3 * PER_FILE)
    bodies = bench.bodies()
    bench.store.close()
    (b / f"{SIZE:020d}").unlink()
    (a / f"{0:020d}").unlink()
    bench.open(**two_folders(tmp_path))
    assert bench.store.min_physical_offset == 2 * SIZE
    assert bench.store.queue_bounds("T", 0) == (2 * PER_FILE, count)
    assert bench.bodies() == bodies[2 * PER_FILE :]


@pytest.mark.parametrize("by_java", [False, True])
@pytest.mark.parametrize("gone", ["b", "a and b"])
def test_a_log_that_was_closed_behind_its_last_file_is_refused(
    closed_bench: Bench, tmp_path: Path, gone: str, *, by_java: bool
) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    count = fill(bench, 2 * PER_FILE - 1)
    bench.store.close()
    if by_java:
        (bench.path / "inventory").unlink()
    away = [tmp_path / name for name in gone.split(" and ")]
    for folder in away:
        folder.rename(folder.with_name(f"{folder.name}-away"))
    # Twice: it must not look like a crash after the first time.
    for _ in range(2):
        with pytest.raises(ValueError, match=f"the file {SIZE:020d} is missing; bring it back"):
            bench.open(**two_folders(tmp_path))
    for folder in away:
        assert list(folder.iterdir()) == []
        folder.rmdir()
        folder.with_name(f"{folder.name}-away").rename(folder)
    assert bench.open(**two_folders(tmp_path)).clean
    assert len(bench.bodies()) == count
    assert names(a, b) == ["a/0", "b/1"]


def test_the_end_of_a_log_can_be_given_up(bench: Bench) -> None:
    fill(bench, 2 * PER_FILE - 1)
    bodies = bench.bodies()
    bench.store.close()
    (bench.path / "commitlog" / f"{SIZE:020d}").unlink()
    with pytest.raises(ValueError, match=f"give up the messages .* {bench.path}/abort"):
        bench.open()
    (bench.path / "abort").touch()
    assert bench.open().cut_entries == PER_FILE - 1
    assert bench.bodies() == bodies[:PER_FILE]


@pytest.mark.parametrize("start", [1, SIZE - 1, SIZE + 1_024])
def test_a_file_of_another_log_is_refused(bench: Bench, start: int) -> None:
    fill(bench, 1)
    bench.store.close()
    (bench.path / "commitlog" / f"{start:020d}").write_bytes(b"\1" * SIZE)
    with pytest.raises(ValueError, match=f"{start:020d} does not start at a multiple of {SIZE}"):
        bench.open()


def test_without_a_folder_for_new_files_the_store_does_not_open(
    closed_bench: Bench, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="readOnlyCommitLogStorePaths"):
        closed_bench.open(
            store_path_commit_log=str(tmp_path), read_only_commit_log_store_paths=str(tmp_path)
        )


def test_damage_in_a_read_only_folder_is_not_cut_off(closed_bench: Bench, tmp_path: Path) -> None:
    bench, a, b = closed_bench, tmp_path / "a", tmp_path / "b"
    bench.open(**two_folders(tmp_path))
    fill(bench, 2 * PER_FILE + 1)
    bench.store.close()
    (bench.path / "abort").touch()
    (bench.path / "checkpoint").unlink()
    with (a / f"{0:020d}").open("r+b") as file:
        file.seek(16_500)
        file.write(b"\xff" * 20_000)
    with pytest.raises(ValueError, match="readOnlyCommitLogStorePaths"):
        bench.open(**two_folders(tmp_path, read_only_commit_log_store_paths=str(b)))
    assert names(a, b) == ["a/0", "b/1", "a/2"]
