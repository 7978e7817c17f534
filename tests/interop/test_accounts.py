"""mqadmin changes accounts of Java's broker and of ours alike, and each reads the other's file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kerolox.admin import Account, Admin
from kerolox.client import ClientSettings, Credentials
from kerolox.errors import BrokerError
from kerolox.security.access.accounts import Accounts
from kerolox.security.access.files import AclFiles, Places
from tests.interop.mqadmin import MqAdminProcess
from tests.support.eventually import wait_until
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

OPERATOR = Credentials("operator", "operator-secret")
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: {OPERATOR.access_key}
  secretKey: {OPERATOR.secret_key}
  admin: true
- accessKey: "12345678"
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  defaultTopicPerm: SUB
"""
SETTINGS = {"aclEnable": "true", "brokerName": "broker-a"}
MADE = ("-a", "made-account", "-s", "made-secret")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("updateAclConfig", *MADE, "-w", "192.168.0.*", "-u", "SUB", "-t", "T=PUB|SUB,U=SUB"),
    ("updateAclConfig", *MADE, "-g", "g=SUB,h=DENY"),
    ("updateAclConfig", *MADE, "-t", "T=DENY", "-i", "PUB|SUB", "-m", "false"),
    ("updateAclConfig", "-a", "12345678", "-s", "87654321", "-t", "T=PUB"),
    ("updateAclConfig", "-a", "1e10000", "-s", "012345678", "-m", "true"),
    ("updateAclConfig", "-a", "short", "-s", "any-secret"),
    ("updateAclConfig", "-a", "any-account", "-s", "short"),
    ("updateAclConfig", "-a", "any-account", "-s", "any-secret", "-t", "T"),
    ("updateAclConfig", "-a", "any-account", "-s", "any-secret", "-g", "g=ALL"),
    ("updateAclConfig", "-a", "any-account", "-s", "any-secret", "-w", "nowhere"),
    ("deleteAclConfig", "-a", "nobody-known"),
    ("updateGlobalWhiteAddr", "-g", "10.10.154.*,10.10.155.1"),
    ("updateGlobalWhiteAddr", "-g", "10.10.154.*", "-p", "/etc/plain_acl.yml"),
    ("deleteAclConfig", "-a", "1e10000"),
    ("clusterAclConfigVersion",),
)  # fmt: skip


class Side(NamedTuple):
    """A broker, and what mqadmin said to each command."""

    name_server: str
    broker: str
    home: Path
    said: list[str]

    @property
    def file(self) -> Path:
        return self.home / "conf" / "plain_acl.yml"

    def read(self) -> Accounts:
        """As our broker reads the file."""
        return AclFiles(Places.of(str(self.home), "")).load()


@pytest.fixture(scope="module")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdminProcess]:
    home = tmp_path_factory.mktemp("operator")
    with MqAdminProcess(home) as process:
        text = f"accessKey: {OPERATOR.access_key}\nsecretKey: {OPERATOR.secret_key}\n"
        (home / "conf" / "tools.yml").write_text(text)
        yield process


def say(mqadmin: MqAdminProcess, side: Side) -> None:
    def said(command: str, *arguments: str) -> str:
        return mqadmin.ask(command, "-n", side.name_server, "-b", side.broker, *arguments)

    side.said.extend(said(*words) for words in COMMANDS[:-1])
    [counter] = re.findall(r"counter: (\d+)", side.file.read_text())

    def shows_the_file() -> bool:
        shown = said(*COMMANDS[-1])
        is_shown = re.search(rf"plain_acl\.yml +{counter} ", shown) is not None
        if is_shown:
            side.said.append(shown)
        return is_shown

    # A Java broker that read its file while a command changed it has the version before.
    wait_until(shows_the_file, what=f"version {counter} of the accounts")


@pytest.fixture(scope="module")
def java(mqadmin: MqAdminProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    data = tmp_path_factory.mktemp("java")
    with JavaPeer(data, settings=("aclEnable=true",), accounts=ACCOUNTS) as peer:
        side = Side(f"127.0.0.1:{peer.namesrv_port}", f"127.0.0.1:{peer.port}", data / "home", [])
        say(mqadmin, side)
        yield side
        peer.kill()  # its orderly end takes seconds


@pytest.fixture(scope="module")
def ours(mqadmin: MqAdminProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    data = tmp_path_factory.mktemp("ours")
    side = Side("", "", data / "home", [])
    side.file.parent.mkdir(parents=True)
    side.file.write_text(ACCOUNTS)
    with Up(data, settings=SETTINGS | {"rocketmqHome": side.home}) as up:
        side = side._replace(name_server=up.namesrv, broker=up.broker)
        say(mqadmin, side)
        yield side


def outcome(side: Side, text: str) -> str:
    """What a command said, without what differs from run to run; of an error, its code."""
    codes = re.findall(r"CODE: (\d+)", text)
    if codes:
        return f"code {codes[0]}"
    text = text.replace(side.broker, "BROKER").replace(str(side.file), "FILE")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"@[0-9a-f]+", "", text)
    return re.sub(r" +", " ", text)


def test_mqadmin_says_the_same(java: Side, ours: Side) -> None:
    theirs = [outcome(java, text) for text in java.said]
    assert [outcome(ours, text) for text in ours.said] == theirs
    assert "success" in theirs[0]
    assert [each for each in theirs if each.startswith("code")] == [
        *["code 209"] * 5,
        *("code 210", "code 211"),
    ]


def test_no_answer_of_ours_tells_a_secret(ours: Side) -> None:
    for (_, *arguments), text in zip(COMMANDS, ours.said, strict=True):
        if "CODE" in text and "-s" in arguments:
            assert arguments[arguments.index("-s") + 1] not in text


def test_both_files_say_the_same(java: Side, ours: Side) -> None:
    assert ours.read() == java.read()
    assert set(ours.read().by_key) == {OPERATOR.access_key, "12345678", "made-account"}
    counters = [re.findall(r"counter: (\d+)", side.file.read_text()) for side in (ours, java)]
    assert counters == [["7"], ["7"]]


def test_java_reads_the_file_that_ours_wrote(ours: Side, tmp_path: Path) -> None:
    text = ours.file.read_text()
    with JavaPeer(tmp_path, settings=("aclEnable=true",), accounts=text) as peer:
        broker = f"127.0.0.1:{peer.port}"

        async def check() -> None:
            settings = ClientSettings(credentials=OPERATOR)
            async with Admin(f"127.0.0.1:{peer.namesrv_port}", settings=settings) as admin:
                [version] = await admin.acl_versions(broker=broker)
                assert [each.counter for each in version.files.values()] == [7]
            settings = ClientSettings(credentials=Credentials("12345678", "87654321"))
            async with Admin(f"127.0.0.1:{peer.namesrv_port}", settings=settings) as admin:
                await admin.broker_settings(broker)
            settings = ClientSettings(credentials=Credentials("12345678", "12345678"))
            async with Admin(f"127.0.0.1:{peer.namesrv_port}", settings=settings) as admin:
                with pytest.raises(BrokerError, match="Check signature failed"):
                    await admin.broker_settings(broker)

        asyncio.run(check())
        peer.kill()


def test_our_administration_changes_our_accounts(ours: Side) -> None:
    async def check() -> None:
        settings = ClientSettings(credentials=OPERATOR)
        async with Admin(ours.name_server, settings=settings) as admin:
            [before] = await admin.acl_versions()
            made = Account(access_key="ours-account", secret_key="ours-secret")
            assert await admin.put_account(made) == [ours.broker]
            later = Account(access_key="ours-account", topic_permissions=("T=PUB",))
            await admin.put_account(later)
            await admin.put_global_white_addresses(["192.168.0.{1,2}"])
            found = await admin.acl_config(ours.broker)
            assert found.global_white_addresses == ("192.168.0.{1,2}",)
            assert found.accounts[-1].topic_permissions == ("T=PUB",)
            assert not any(each.secret_key for each in found.accounts)
            await admin.delete_account("ours-account")
            [after] = await admin.acl_versions()
            assert after.version.counter == before.version.counter + 4

    asyncio.run(check())
    assert "ours-account" not in ours.read().by_key
