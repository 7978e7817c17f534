"""Files of accounts that are broken in every way: a start refuses them with a reason. Under a
broker that runs they change nothing and are told once, until they are right again."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.errors import ConfigError
from kerolox.security.access.documents import FILE_BYTES_MAX
from kerolox.security.credentials import Credentials
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig

pytestmark = pytest.mark.asyncio

SECRET = "Geheimnis-2718"
WORKER, NEWCOMER = Credentials("worker-account", SECRET), Credentials("new-account", SECRET)
GOOD = f"""\
globalWhiteRemoteAddresses: [10.1.2.3]
accounts:
- accessKey: {WORKER.access_key}
  secretKey: {SECRET}
  whiteRemoteAddress: 10.2.2.2
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [Orders=PUB]
  groupPerms: [billing=SUB]
dataVersion: [{{counter: 1, timestamp: 1}}]
"""
BETTER = f"{GOOD}# and another one\n".replace(
    "accounts:\n",
    f"accounts:\n- {{accessKey: {NEWCOMER.access_key}, secretKey: {SECRET}, admin: true}}\n",
)

Spoil = Callable[[Path], object]


def text(content: str | bytes) -> Spoil:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def link(target: str) -> Spoil:
    def make(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return make


def instead(make: Callable[[Path], object]) -> Spoil:
    def spoil(path: Path) -> None:
        path.unlink()
        make(path)

    return spoil


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


BOMB = "".join(
    f"l{level}: &l{level} [{','.join([f'*l{level - 1}' if level else 'lol'] * 10)}]\n"
    for level in range(10)
)
BROKEN: dict[str, tuple[Spoil, str]] = {
    "an image": (text(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "line 1: not UTF-8"),
    "zeros, as a crash leaves them": (text(bytes(4096)), "no YAML"),
    "UTF-16": (text(GOOD.encode("utf-16")), "not UTF-8"),
    "latin-1": (text(f"# gr\u00fc\u00dfe\n{GOOD}".encode("latin-1")), "line 1: not UTF-8"),
    "anchors that multiply": (text(BOMB), "line 1: .*an anchor in YAML"),
    "an anchor for a secret": (
        text(GOOD.replace(f"secretKey: {SECRET}", f"secretKey: &s {SECRET}")),
        "line 4: .*an anchor in YAML",
    ),
    "a merge": (text(f"{GOOD}<<: *other\n"), "an alias in YAML"),
    "a tag of Python": (
        text("accounts: !!python/object/apply:os.system ['touch /tmp/x']\n"),
        "line 1: .*a tag in YAML",
    ),
    "tabs": (text(GOOD.replace("  admin", "\tadmin")), "line 6: no YAML: found a tab"),
    "depth": (text(f"accounts: {'[' * 5_000}{']' * 5_000}\n"), "more than 16 levels"),
    "width": (text(b"accounts:\n" + b"- {}\n" * 10_001), "account"),
    "size": (text(b"#" * (FILE_BYTES_MAX + 1)), f"the most is {FILE_BYTES_MAX}"),
    "two documents": (text(f"{GOOD}---\n{GOOD}"), "a second document"),
    "twice the same key": (text(f"{GOOD}{GOOD}"), "key 'globalWhiteRemoteAddresses' stands twice"),
    "JSON that is cut": (text('{"accounts": [{"accessKey": "worker-account"'), "no YAML"),
    "properties": (text("aclEnable=true\n"), "the file is no mapping"),
    "HTML": (text("<!DOCTYPE html><html><body>502</body></html>\n"), "the file is no mapping"),
    "a folder": (instead(Path.mkdir), "no regular file"),
    "a pipe": (instead(os.mkfifo), "no regular file"),
    "a socket": (instead(listen), "can't be read"),
    "a device without an end": (link("/dev/zero"), "no regular file"),
    "a link that leads nowhere": (link("away.yml"), "a link that leads nowhere"),
    "a link to itself": (link("plain_acl.yml"), "can't be read: Too many levels"),
    "a link to a folder": (link("."), "no regular file"),
}
EMPTIED = {
    "nothing": text(b""),
    "blanks": text(b" \n\n  \n"),
    "comments": text("# all is below\n#\n"),
    "the begin of a document": text("---\n"),
    "a mark of UTF-8": text(b"\xef\xbb\xbf"),
}
"""A start takes these: there is no account. Accounts that are in force stay."""


def config_of(folder: Path) -> BrokerConfig:
    return small_config(folder, acl_enable=True, acl_file=str(folder / "plain_acl.yml"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.touch(0o600)
    path.write_text(GOOD)
    return path


@pytest_asyncio.fixture
async def broker(tmp_path: Path, path: Path) -> AsyncIterator[Broker]:
    async with Broker(config_of(tmp_path)) as started:
        yield started


async def send(broker: Broker, by: Credentials | None) -> int:
    async with peer_of(broker, by) as peer:
        return (await peer.send("Orders")).code


async def until_answered(broker: Broker, by: Credentials, code: int) -> None:
    """Wait until a send has that answer: accounts that were read are in force a moment later."""

    async def is_answered() -> bool:
        return await send(broker, by) == code

    await until(is_answered, what=f"code {code}")


def put_right(path: Path) -> None:
    """As an operator does it: write another file, and move it there."""
    fresh = path.with_suffix(".new")
    fresh.write_text(BETTER)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    fresh.replace(path)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


async def changes_nothing(
    broker: Broker, path: Path, spoil: Spoil, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    accounts = broker.parts.guards.accounts
    assert accounts is not None
    files, before = accounts.files, accounts.files.accounts
    assert [await send(broker, by) for by in (WORKER, NEWCOMER, None)] == [0, 1, 1]
    spoil(path)
    await until(lambda: errors_of(caplog), what="the complaint")
    assert list(files.wrong) == [path]
    assert (files.failures, files.accounts is before) == (1, True)
    assert [await send(broker, by) for by in (WORKER, NEWCOMER, None)] == [0, 1, 1]
    [told] = errors_of(caplog)
    assert str(path) in told
    assert SECRET not in caplog.text
    with pytest.raises(ConfigError, match=says):
        raise ConfigError(told)
    put_right(path)
    await until_answered(broker, NEWCOMER, 0)
    assert [await send(broker, by) for by in (WORKER, NEWCOMER, None)] == [0, 0, 1]
    assert (files.failures, files.reloads, files.wrong) == (1, 1, {})


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_file_changes_nothing_and_is_told(
    broker: Broker, path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, says = BROKEN[kind]
    await changes_nothing(broker, path, spoil, says, caplog)


@pytest.mark.parametrize("kind", EMPTIED)
async def test_a_file_that_was_emptied_takes_nobody_s_account(
    broker: Broker, path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ skips it ("No data in {}, skip it"); ``accounts: []`` does take them."""
    await changes_nothing(broker, path, EMPTIED[kind], "it has no data any more", caplog)
    text("accounts: []\n")(path)
    await until_answered(broker, WORKER, 1)


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_start_refuses_a_broken_file(tmp_path: Path, path: Path, kind: str) -> None:
    spoil, says = BROKEN[kind]
    spoil(path)
    with pytest.raises(ConfigError, match=says) as caught:
        await Broker(config_of(tmp_path)).start()
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    put_right(path)
    async with Broker(config_of(tmp_path)) as started:
        assert await send(started, WORKER) == 0


@pytest.mark.parametrize("kind", EMPTIED)
async def test_a_start_takes_an_empty_file_and_denies_all(
    tmp_path: Path, path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    EMPTIED[kind](path)
    async with Broker(config_of(tmp_path)) as started:
        assert await send(started, WORKER) == 1
    assert "access control is on without accounts" in caplog.text


VALUES = ["~", "true", "0", "-1", "1e999", ".inf", ".nan", "2026-01-31", "''", "' '", "x", "[]",
          "[~]", "[[]]", "[1]", "{}", "{a: 1}", "[{a: [b]}]", "? x", "!x y", "&a b", "*a", "|\n  x",
          '"\\0"', "PUB", "'*'"]  # fmt: skip
"""What stands somewhere in a file in place of what belongs there."""


async def test_any_value_at_any_place_is_taken_or_refused_with_its_line(
    broker: Broker, path: Path
) -> None:
    accounts = broker.parts.guards.accounts
    assert accounts is not None
    files = accounts.files
    places = [line.split(": ", 1)[0] for line in GOOD.splitlines() if ": " in line]
    outcomes = set()
    for place in places:
        for value in VALUES:
            lines = [
                f"{place}: {value}" if line.startswith(f"{place}: ") else line
                for line in GOOD.splitlines()
            ]
            text("\n".join(lines) + "\n")(path)
            files.poll(at_once=True)
            [why] = [*files.wrong.values()] or [""]
            assert why.isprintable()
            assert SECRET not in why
            assert not why or why.startswith(f"{path}, line "), (place, value, why)
            outcomes.add(bool(why))
    assert outcomes == {True, False}
    text(BETTER)(path)
    await accounts.reload()
    assert [await send(broker, by) for by in (WORKER, NEWCOMER, None)] == [0, 0, 1]
