"""``kerolox store`` as a command: output, exit codes, errors in one line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.command import Server, kerolox
from tests.support.servers.settings import small_store
from tests.support.servers.terminal import read_to_end
from tests.support.stores.golden import copy_golden


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_golden(tmp_path).folder / "store"


def test_check_says_clean_with_0(root: Path) -> None:
    done = kerolox("store", "check", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "1872 records in 2790649 bytes of log, 1872 queue entries, 3743 index entries, 5 tables",
        "clean",
    ]


def test_check_says_what_it_found_with_1(root: Path) -> None:
    (root / "config" / "delayOffset.json").write_text("{")
    done = kerolox("store", "check", root)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{root}/config/delayOffset.json: can't be read: ")
    assert done.stdout.endswith("findings: 1 (config 1)\n")
    asked = kerolox("store", "check", root, "-o", "json")
    assert asked.returncode == 1
    found = json.loads(asked.stdout)
    assert (found["clean"], found["counts"]) == (False, {"config": 1})
    assert found["findings"][0]["part"] == "config"


def test_check_of_what_can_not_be_read_ends_with_2(tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "is no store"), (tmp_path / "nowhere", "is not there")):
        done = kerolox("store", "check", folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("kerolox: error: ")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = kerolox("store", "check", tmp_path, "-c", tmp_path / "none.conf")
    assert (done.returncode, "none.conf: can't be read" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["dump", "info", "rebuild"])
def test_the_others_end_with_1_when_there_is_no_store(tmp_path: Path, command: str) -> None:
    done = kerolox("store", command, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is no store" in done.stderr


def test_dump_prints_json_lines(root: Path) -> None:
    done = kerolox("store", "dump", root, "--topic", "GoldenA", "--queue", 2, "--offset", "5:7")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["queueOffset"] for line in lines] == [5, 6]
    assert lines[0]["body"].startswith("#23 ")
    [line] = kerolox("store", "dump", root, "--limit", 1, "--body", "none").stdout.splitlines()
    assert json.loads(line)["commitLogOffset"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--offset", "3"], "needs a topic and a queue"),
        (["--offset", "x"], "is no offset and no range"),
        (["--since", "yesterday"], "is no time"),
    ],
)
def test_dump_refuses_what_it_can_not_mean(root: Path, arguments: list[str], words: str) -> None:
    done = kerolox("store", "dump", root, *arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_info_as_text_and_json(root: Path) -> None:
    text = kerolox("store", "info", root).stdout
    assert "not in use, closed cleanly" in text
    assert "1872 messages in 14 queues" in text
    told = json.loads(kerolox("store", "info", root, "-o", "json").stdout)
    assert told["commitLog"]["maxOffset"] == 2790649
    assert told["newest"]["topic"] == "%RETRY%golden-retry"


def test_rebuild_makes_the_store_clean_again(root: Path) -> None:
    (root / "consumequeue" / "GoldenA" / "1" / f"{0:020d}").unlink()
    assert kerolox("store", "check", root).returncode == 1
    done = kerolox("store", "rebuild", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1872 records: 14 queues with 1872 entries, 3743 index entries")
    assert kerolox("store", "check", root).returncode == 0


def test_beside_a_broker_all_but_rebuild_work(tmp_path: Path) -> None:
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", tmp_path / "store"]
    with Server(tmp_path, *arguments, "-c", small_store(tmp_path)) as server:
        name_server = server.addresses["namesrv"]
        for key in ("one", "two"):
            sent = kerolox("send", "-n", name_server, "Beside", "hello", "--keys", key)
            assert sent.returncode == 0, sent.stderr
        check = kerolox("store", "check", tmp_path / "store")
        assert (check.returncode, check.stderr) == (0, ""), check.stdout
        assert json.loads(kerolox("store", "info", tmp_path / "store", "-o", "json").stdout)[
            "inUse"
        ]
        assert len(kerolox("store", "dump", tmp_path / "store").stdout.splitlines()) == 2
        refused = kerolox("store", "rebuild", tmp_path / "store")
        assert refused.returncode == 1
        assert "is in use by another process" in refused.stderr
        taken = kerolox("store", "backup", tmp_path / "store", tmp_path / "backup")
        assert (taken.returncode, taken.stderr) == (0, "")
    assert kerolox("store", "check", tmp_path / "store").returncode == 0
    assert taken.stdout.startswith(f"{tmp_path}/backup: ")
    assert len(kerolox("store", "dump", tmp_path / "backup").stdout.splitlines()) == 2
    assert (tmp_path / "backup" / "commitlog").stat().st_mode & 0o777 == 0o750


def test_a_backup_is_verified_and_restored(root: Path, tmp_path: Path) -> None:
    backup, again = tmp_path / "backup", tmp_path / "again"
    taken = kerolox("store", "backup", root, backup, "-o", "json")
    told = json.loads(taken.stdout)
    assert (taken.returncode, told["logEnd"], told["source"]) == (0, 2790649, str(root))
    verified = kerolox("store", "verify", backup)
    assert (verified.returncode, verified.stderr) == (0, "")
    restored = kerolox("store", "restore", backup, again)
    assert (restored.returncode, restored.stderr) == (0, "")
    assert kerolox("store", "check", again).returncode == 0
    refused = kerolox("store", "restore", backup, again)
    assert refused.returncode == 1
    assert f"{again} is there already" in refused.stderr
    (backup / "config" / "topics.json").write_text("{}")
    verified = kerolox("store", "verify", backup)
    assert verified.returncode == 1
    assert "config/topics.json has 2 bytes, " in verified.stdout
    assert json.loads(kerolox("store", "verify", backup, "-o", "json").stdout)["faults"]
    refused = kerolox("store", "verify", root)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is no backup: it has no backup.json" in refused.stderr


def test_settings_tell_where_the_log_lies(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "one")
    (tmp_path / "two").mkdir()
    file = tmp_path / "one" / f"{1 << 20:020d}"
    file.rename(tmp_path / "two" / file.name)
    assert kerolox("store", "check", root).returncode == 2
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathCommitLog={tmp_path / 'one'}\nreadOnlyCommitLogStorePaths={tmp_path / 'two'}\n"
    )
    assert kerolox("store", "check", root, "-c", conf).returncode == 0
    folders = ["--log-folder", tmp_path / "one", "--log-folder", tmp_path / "two"]
    assert kerolox("store", "check", root, *folders).returncode == 0


def test_progress_is_shown_on_a_terminal_only(root: Path) -> None:
    code = (
        "import kerolox.cli.commands.store as s; s.PROGRESS_SECONDS = 0;"
        "import kerolox.cli as c; c.main()"
    )
    command = [sys.executable, "-c", code, "store", "check", str(root)]
    ours, theirs = pty.openpty()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
    os.close(theirs)
    shown = read_to_end(ours).decode()
    os.close(ours)
    assert "checking" in shown
    assert "% of 3 MiB" in shown
    assert done.stdout.endswith(b"clean\n")


def test_help_has_examples() -> None:
    assert "kerolox store check ~/store" in kerolox("store", "--help").stdout
    for command in ("check", "dump", "info", "rebuild", "backup", "verify", "restore"):
        assert f"kerolox store {command} " in kerolox("store", command, "--help").stdout
