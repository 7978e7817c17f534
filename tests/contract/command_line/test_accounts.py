"""Accounts and white lists with the command line, on a broker of ours and a Java broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.contract.command_line.shell import Shell
from tests.support.servers.clusters import Cluster, JavaPeer
from tests.support.servers.up import Up

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

ADMIN = "the-admin", "the-admins-secret"
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- 10.9.8.7
accounts:
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  admin: true
"""


@pytest.fixture(scope="module", params=["ours", pytest.param("java", marks=pytest.mark.java)])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster with access control."""
    folder = tmp_path_factory.mktemp("guarded")
    if request.param == "ours":
        accounts = folder / "plain_acl.yml"
        accounts.write_text(ACCOUNTS)
        with Up(folder, settings={"aclEnable": "true", "aclFile": accounts}) as up:
            yield Cluster("ours", up.namesrv, up.broker)
        return
    with JavaPeer(folder, settings=("aclEnable=true",), accounts=ACCOUNTS) as peer:
        yield Cluster("java", f"127.0.0.1:{peer.namesrv_port}", f"127.0.0.1:{peer.port}")
        peer.kill()  # its orderly end takes seconds


class Admin(Shell):
    """The shell of an administrator."""

    async def run(
        self, *arguments: object, code: int | None = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        keys = ("--access-key", ADMIN[0], "--secret-key", ADMIN[1])
        done = await super().run(*arguments, *keys, code=code, stdin=stdin)
        assert ADMIN[1] not in done.stdout + done.stderr
        return done


async def test_an_account_is_made_changed_shown_and_deleted(guarded: Cluster) -> None:
    shell = Admin(guarded)
    name, secret = "shop-service", b"first-secret"
    account = ("acl", "set", name)
    lacking = await shell.run(*account, "--topic", "Orders=PUB", code=1)
    assert "a new one needs --secret-file" in lacking.stderr
    given = (*account, "--secret-file", "-", "--topic", "Orders=PUB|SUB", "--group", "shop=SUB")
    assert "new" in (await shell.run(*given, "--dry-run", stdin=secret)).stdout
    assert [row["accessKey"] for row in await shell.json("acl", "list")] == [ADMIN[0]]
    made = await shell.run(*given, "--default-topic", "SUB", stdin=secret)
    assert "first-secret" not in made.stdout + made.stderr
    shown = await shell.run("acl", "show", name, "-o", "json")
    assert "first-secret" not in shown.stdout
    [row] = json.loads(shown.stdout)
    assert (row["topicPerms"], row["groupPerms"]) == (["Orders=PUB|SUB"], ["shop=SUB"])
    assert (row["defaultTopicPerm"], row["admin"]) == ("SUB", False)
    [changed] = await shell.json(*account, "--topic", "Orders=PUB")
    assert changed["change"] == "some topics Orders=PUB|SUB → Orders=PUB"
    [row] = await shell.json("acl", "show", name)
    assert (row["topicPerms"], row["groupPerms"]) == (["Orders=PUB"], ["shop=SUB"])
    keys = ("--access-key", name, "--secret-key", "first-secret")
    denied = await Shell(guarded).run("topic", "create", "Mine", *keys, code=1)
    assert "dmin" in denied.stderr
    assert "--yes does it" in (await shell.run("acl", "delete", name, code=2)).stderr
    assert f"account {name} deleted" in await shell.text("acl", "delete", name, "--yes")
    assert "no broker" in (await shell.run("acl", "show", name, code=1)).stderr


async def test_an_administrator_stays_one_when_something_else_changes(guarded: Cluster) -> None:
    shell = Admin(guarded)
    await shell.run("acl", "set", ADMIN[0], "--default-group", "SUB")
    [row] = await shell.json("acl", "show", ADMIN[0])
    assert (row["admin"], row["defaultGroupPerm"]) == (True, "SUB")


async def test_the_white_list_is_replaced_and_its_version_counted(guarded: Cluster) -> None:
    shell = Admin(guarded)
    [before] = await shell.json("acl", "white-list")
    assert before["addresses"] == ["10.9.8.7"]
    [planned] = await shell.json("acl", "white-list", "10.1.1.*", "10.2.2.2", "--dry-run")
    assert (planned["new"], planned["done"]) == (["10.1.1.*", "10.2.2.2"], False)
    await shell.run("acl", "white-list", "10.1.1.*", "10.2.2.2")
    [after] = await shell.json("acl", "white-list")
    assert after["addresses"] == ["10.1.1.*", "10.2.2.2"]
    versions = await shell.json("acl", "version")
    assert max(row["counter"] for row in versions) >= 1
