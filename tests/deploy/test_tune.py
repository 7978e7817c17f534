"""``kerolox tune``: what it says of a machine, and that it changes nothing unless it is told to."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from kerolox.cli.app import cli
from kerolox.doctor import tuning
from kerolox.doctor.checks.brokers import FILES_WANTED, MAPS_WANTED

AS_LINUX_HAS_IT = {
    "vm/max_map_count": "65530",
    "vm/swappiness": "60",
    "vm/overcommit_memory": "2",
    "vm/zone_reclaim_mode": "0",
    "vm/min_free_kbytes": "67584",
    "vm/dirty_background_ratio": "10",
    "vm/dirty_ratio": "20",
    "fs/nr_open": "1048576",
    "fs/file-max": "9223372036854775807",
    "net/core/somaxconn": "128",
}
WRONG = {
    "vm.max_map_count": str(MAPS_WANTED),
    "vm.swappiness": "1",
    "vm.overcommit_memory": "1",
    "vm.min_free_kbytes": "160000",
    "vm.dirty_ratio": "50",
    "net.core.somaxconn": "1024",
    "transparent huge pages": "madvise",
    "scheduler of sda": "mq-deadline",
}
"""What is wanted instead, on a machine of 16 GB."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with the settings of a fresh Linux, which the command takes for its own."""
    root = tmp_path / "machine"
    for name, value in AS_LINUX_HAS_IT.items():
        put(root / "proc" / "sys" / name, value)
    put(root / "proc" / "meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB")
    put(root / "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")
    put(root / "sys/devices/sda/queue/scheduler", "none mq-deadline [bfq]")
    partition = root / "sys/devices/sda/sda1"
    partition.mkdir()
    device = tmp_path.stat().st_dev
    link = root / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(partition)
    monkeypatch.setattr(tuning, "read_knobs", functools.partial(tuning.read_knobs, root=root))
    monkeypatch.setattr(tuning, "_files", functools.partial(limited, tuning._files()))
    return root


def limited(knob: tuning.Knob) -> tuning.Knob:
    """Of open files, whose limit is that of the tests, right on any machine."""
    return tuning.Knob(
        name=knob.name, now="1048576", wanted=knob.wanted, is_right=True, why="", advice="x"
    )


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def contents(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in root.rglob("*") if path.is_file()}


def tune(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["tune", *map(str, arguments)], standalone_mode=False)
    assert done.exception is None, done.output
    return done.return_value, done.output


def test_tune_says_what_is_wrong_and_changes_nothing(machine: Path, tmp_path: Path) -> None:
    before = contents(machine)
    status, text = tune("--data", tmp_path / "store" / "of" / "tomorrow", "-o", "json")
    rows = json.loads(text)
    assert {row["setting"]: row["wanted"] for row in rows if row["state"] == "wrong"} == WRONG
    assert all(row["why"] for row in rows if row["setting"] != "open files")
    assert status == 1
    assert contents(machine) == before


def test_tune_sets_what_is_wrong_when_it_is_told_to(machine: Path, tmp_path: Path) -> None:
    status, _ = tune("--data", tmp_path, "--apply")
    # Here /sys is a folder: what Linux shows with brackets, it shows without.
    assert (machine / "sys/devices/sda/queue/scheduler").read_text() == "mq-deadline"
    assert (machine / "proc/sys/vm/max_map_count").read_text() == str(MAPS_WANTED)
    assert (machine / "proc/sys/vm/zone_reclaim_mode").read_text() == "0\n", "it was right"
    assert status == 0
    assert tune("--data", tmp_path)[0] == 0


def test_tune_names_what_can_not_be_set(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "write_text", refuse)
    status, text = tune("--data", tmp_path, "--apply")
    assert status == 1
    assert "vm.swappiness is left as it is" in text
    assert "Operation not permitted" in text


def test_the_file_of_tune_keeps_what_is_wanted_and_what_was_right(
    machine: Path, tmp_path: Path
) -> None:
    file = tmp_path / "60-kerolox.conf"
    before = contents(machine)
    assert tune("--data", tmp_path, "--write", file)[0] == 1
    assert contents(machine) == before
    written = file.read_text()
    lines = [line for line in written.splitlines() if not line.startswith("#")]
    kept = dict(line.split(" = ") for line in lines)
    assert kept["vm.max_map_count"] == str(MAPS_WANTED)
    assert kept["vm.zone_reclaim_mode"] == "0"
    assert kept.keys() == {name.replace("/", ".") for name in AS_LINUX_HAS_IT}
    assert "# scheduler of sda: a rule of udev" in written
    tune("--data", tmp_path, "--apply")
    tune("--data", tmp_path, "--write", file)
    again = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert again == lines


def test_dirty_pages_that_are_limited_in_bytes_are_left_alone(
    machine: Path, tmp_path: Path
) -> None:
    put(machine / "proc/sys/vm/dirty_ratio", "0")
    [knob] = [each for each in tuning.read_knobs(tmp_path) if each.name == "vm.dirty_ratio"]
    assert knob.is_right
    assert "vm.dirty_ratio" not in tuning.sysctl_text([knob])


def test_a_machine_that_shows_nothing_has_nothing_wrong(tmp_path: Path) -> None:
    knobs = tuning.read_knobs(tmp_path, root=tmp_path / "empty")
    assert [each.name for each in knobs if not each.is_right and each.name != "open files"] == []
    assert {each.now for each in knobs if each.is_sysctl} == {""}


def test_tune_and_doctor_want_the_same_limits() -> None:
    knobs = {each.name: each for each in tuning.read_knobs(Path.home())}
    assert knobs["vm.max_map_count"].wanted == str(MAPS_WANTED)
    assert knobs["open files"].wanted == knobs["fs.nr_open"].wanted == str(FILES_WANTED)
    unit = Path(__file__).parents[2] / "deploy" / "systemd" / "kerolox-broker@.service"
    assert f"LimitNOFILE={FILES_WANTED}" in unit.read_text().splitlines()


@pytest.mark.parametrize("name", sorted(AS_LINUX_HAS_IT))
@pytest.mark.parametrize("now", [0, 1, 2, 9, 10, 11, 25, 39, 40, 41, 50, 1 << 40])
def test_a_value_is_right_when_the_words_beside_it_say_so(
    machine: Path, tmp_path: Path, name: str, now: int
) -> None:
    put(machine / "proc" / "sys" / name, str(now))
    rows = json.loads(tune("--data", tmp_path, "-o", "json")[1])
    [row] = [each for each in rows if each["setting"] == name.replace("/", ".")]
    wanted = row["accepted"]
    if row["now"] == tuning.IN_BYTES:
        return
    if wanted.endswith(" or more"):
        fits = now >= int(wanted.split()[0])
    elif wanted.endswith(" or less"):
        fits = now <= int(wanted.split()[0])
    else:
        fits = str(now) in wanted.split(" or ")
    assert (row["state"] == "right") is fits
