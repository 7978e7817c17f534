"""Completion: values of the cluster and of this machine, in the shells that are here."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.cli.completing import CACHE_SECONDS
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import Server, kerolox
from tests.support.servers.settings import small_store

ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: shop-service
  secretKey: shop-secret
"""

INTERACTIVE = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(kerolox completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -U compinit; compinit -u; eval "$(kerolox completion zsh)"'),
    "fish": (["--no-config", "-i"], "kerolox completion fish | source"),
}
SHELLS = [shell for shell in INTERACTIVE if shutil.which(shell)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    configuration = small_store(folder, aclEnable="true", aclFile=folder / "plain_acl.yml")
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", folder / "store"]
    with Server(folder, *arguments, "-c", configuration) as server:
        at = ("-n", server.addresses["namesrv"])
        assert kerolox("topic", "create", "Orders", *at).returncode == 0
        assert kerolox("group", "create", "shop", *at).returncode == 0
        yield server


@pytest.fixture
def environment(cluster: Server, tmp_path: Path) -> dict[str, str]:
    """Of a user with a home of his own who works with the cluster."""
    return {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "NAMESRV_ADDR": cluster.addresses["namesrv"],
    }


def completed(line: str, environment: dict[str, str]) -> list[str]:
    """What bash is told at the end of a line: its type and the value."""
    asked = {
        "COMP_LINE": line,
        "COMP_BREAKS": " \t\n\"'@><=;|&(:",
        "_KEROLOX_COMPLETE": "bash_complete",
    }
    done = kerolox(**environment, **asked)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def kept_files(environment: dict[str, str]) -> list[Path]:
    return sorted(Path(environment["XDG_CACHE_HOME"], "kerolox", "completion").iterdir())


# -- in real shells -------------------------------------------------------------------------------
class Terminal:
    """A shell that somebody types in, with ``kerolox`` on its path; a context manager."""

    def __init__(self, shell: str, folder: Path, environment: dict[str, str]) -> None:
        program = folder / "kerolox"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kerolox.cli "$@"\n')
        program.chmod(0o755)
        arguments, self._setting_up = INTERACTIVE[shell]
        self._ours, theirs = pty.openpty()
        self._read = ""
        self._process = subprocess.Popen(
            [shell, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={
                **os.environ,
                **environment,
                "PATH": f"{folder}:{os.environ['PATH']}",
                "TERM": "dumb",
                "PS1": "$ ",
            },
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        self.type(f"{self._setting_up}; echo set''up\n")
        self.read_until("setup")
        return self

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, wanted: str) -> None:
        """Read what the terminal shows until it has a text, and forget what was before."""
        deadline = time.monotonic() + SECONDS_MAX
        while wanted not in self._read:
            ready, _, _ = select.select([self._ours], [], [], deadline - time.monotonic())
            assert ready, f"no {wanted!r} in {self._read!r}"
            self._read += os.read(self._ours, 65_536).decode()
        self._read = self._read.partition(wanted)[2]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(SECONDS_MAX)
        os.close(self._ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_a_command_and_a_topic(
    shell: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with Terminal(shell, tmp_path, environment) as terminal:
        terminal.type("kerolox topic descr\t")
        terminal.read_until("describe")
        terminal.type("Ord\t")
        terminal.read_until("Orders")
        terminal.type("-o '{topic} is there'\n")
        terminal.read_until("Orders is there")


def test_bash_completes_behind_an_at_sign_and_leaves_no_blank_behind_a_key(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Terminal("bash", tmp_path, environment) as terminal:
        terminal.type("kerolox broker config set maxMessageS\t")
        terminal.read_until("maxMessageSize=")
        terminal.type("1048576 --dry-run -o '{key}={new}!'\n")
        terminal.read_until("maxMessageSize=1048576!")


def test_bash_keeps_what_stands_before_a_break_of_a_word(environment: dict[str, str]) -> None:
    line = "kerolox broker describe broker-a"
    assert completed(line, environment) == ["plain,broker-a"]
    [kept] = kept_files(environment)
    told = json.loads(kept.read_text())
    slave = ["broker-a@1", "127.0.0.1:1", False]
    kept.write_text(json.dumps(told | {"values": [*told["values"], slave]}))
    assert completed(line, environment) == ["plain,broker-a", "plain,broker-a@1"]
    assert completed(f"{line}@", environment) == ["plain,1"]
    assert completed("kerolox broker config set maxMessageSize=", environment) == ["nospace,"]


# -- values ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("kerolox topic describe ", ["plain,Orders"]),
        ("kerolox tail Ord", ["plain,Orders"]),
        ("kerolox send --queue x/0 ", ["plain,Orders"]),
        ("kerolox topic describe TBW", ["plain,TBW102"]),
        ("kerolox group describe sh", ["plain,shop"]),
        ("kerolox group reset shop ", ["plain,Orders"]),
        ("kerolox dlq list -n ", []),
        ("kerolox broker describe ", ["plain,broker-a"]),
        ("kerolox topic update Orders --broker br", ["plain,broker-a"]),
        ("kerolox topic update Orders --cluster ", ["plain,DefaultCluster"]),
        ("kerolox acl show ", ["plain,shop-service"]),
        ("kerolox broker config show broker-a maxMessageS", ["plain,maxMessageSize"]),
        ("kerolox broker config set maxMessageS", ["nospace,maxMessageSize="]),
        ("kerolox topic list -o ndj", ["plain,ndjson"]),
        ("kerolox tail Orders --from be", ["plain,beginning"]),
        ("kerolox topic permission Orders ", ["plain,R", "plain,W", "plain,RW"]),
        ("kerolox store info /t", ["dir,/t"]),
        ("kerolox name", ["plain,namesrv", "plain,name-server"]),
        ("kerolox name-server get ", ["plain,ORDER_TOPIC_CONFIG"]),
    ],
)
def test_a_value_of_each_kind_is_completed(
    line: str, values: list[str], environment: dict[str, str]
) -> None:
    assert completed(line, environment) == values


def test_contexts_are_completed_and_choose_the_cluster(
    cluster: Server, environment: dict[str, str]
) -> None:
    environment = environment | {"NAMESRV_ADDR": ""}
    at = ("-n", cluster.addresses["namesrv"])
    assert kerolox("context", "add", "near", *at, **environment).returncode == 0
    assert kerolox("context", "add", "deaf", "-n", "127.0.0.1:1", **environment).returncode == 0
    assert completed("kerolox context select ", environment) == ["plain,near", "plain,deaf"]
    line = "kerolox topic describe --context"
    assert completed(f"{line} ne", environment) == ["plain,near"]
    assert completed(f"{line} near Ord", environment) == ["plain,Orders"]
    assert completed(f"{line} deaf Ord", environment) == []
    assert completed(f"{line} near Ord", environment) == ["plain,Orders"]


# -- the cache ------------------------------------------------------------------------------------
def test_a_cluster_is_asked_again_when_its_answer_is_old(environment: dict[str, str]) -> None:
    line = "kerolox topic describe "
    assert completed(line, environment) == ["plain,Orders"]
    [kept] = kept_files(environment)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    told = json.loads(kept.read_text())
    kept.write_text(json.dumps(told | {"values": [["Remembered", "", False]]}))
    assert completed(line, environment) == ["plain,Remembered"]
    old = time.time() - CACHE_SECONDS
    os.utime(kept, (old, old))
    assert completed(line, environment) == ["plain,Orders"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"key": 7}', "nonsense"])
def test_a_file_of_the_cache_that_is_broken_is_asked_for_anew(
    text: str, environment: dict[str, str]
) -> None:
    line = "kerolox topic describe "
    assert completed(line, environment) == ["plain,Orders"]
    [kept] = kept_files(environment)
    kept.write_text(text)
    assert completed(line, environment) == ["plain,Orders"]


def test_a_name_that_a_shell_would_obey_is_not_completed(environment: dict[str, str]) -> None:
    line = "kerolox topic describe "
    assert completed(line, environment) == ["plain,Orders"]
    [kept] = kept_files(environment)
    names = ["$(date)", "a;b", "`x`", "a b", "a\nb", "a|b", "plain-one"]
    told = json.loads(kept.read_text())
    kept.write_text(json.dumps(told | {"values": [[name, "", False] for name in names]}))
    assert completed(line, environment) == ["plain,plain-one"]


def test_another_account_is_not_shown_what_one_was_told(environment: dict[str, str]) -> None:
    line = "kerolox topic describe "
    assert completed(line, environment) == ["plain,Orders"]
    keys = {"KEROLOX_ACCESS_KEY": "shop-service", "KEROLOX_SECRET_KEY": "shop-secret"}
    assert completed(line, environment | keys) == ["plain,Orders"]
    assert len(kept_files(environment)) == 2


def test_another_context_of_a_cluster_is_not_shown_what_one_was_told(
    cluster: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    at = ("-n", cluster.addresses["namesrv"])
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: shop-service\nsecretKey: shop-secret\n")
    kerolox("context", "add", "open", *at, **environment)
    kerolox("context", "add", "shop", *at, "--credentials", keys, **environment)
    environment = environment | {"NAMESRV_ADDR": ""}
    for name in ("open", "shop"):
        named = environment | {"KEROLOX_CONTEXT": name}
        assert completed("kerolox topic describe ", named) == ["plain,Orders"]
    assert len(kept_files(environment)) == 2
    for name in ("open", "shop"):
        assert kerolox("context", "select", name, **environment).returncode == 0
        assert completed("kerolox topic describe ", environment) == ["plain,Orders"]
    assert len(kept_files(environment)) == 2


def test_a_cache_that_cannot_be_written_is_done_without(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    environment = environment | {"XDG_CACHE_HOME": str(tmp_path / "file")}
    assert completed("kerolox topic describe ", environment) == ["plain,Orders"]


def test_a_cluster_that_does_not_answer_gives_no_values(environment: dict[str, str]) -> None:
    environment = environment | {"NAMESRV_ADDR": "127.0.0.1:1"}
    assert completed("kerolox topic describe ", environment) == []
    assert completed("kerolox topic list -n not-an-address -o ta", environment) == ["plain,table"]
