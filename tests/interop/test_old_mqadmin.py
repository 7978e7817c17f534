"""mqadmin of RocketMQ 4.6, which asks for all accounts (code 54), at our broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.interop.mqadmin import MqAdminProcess
from tests.interop.secured import OPERATOR, WORKER, accounts_file
from tests.support.programs import build_mqadmin_46
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.client import Credentials

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("accounts")]

ACCOUNTS = accounts_file(("Orders=PUB|SUB",), ("billing=SUB",)).replace(
    "globalWhiteRemoteAddresses:", "globalWhiteRemoteAddresses: [10.1.2.3, 10.2.*.*]"
)


class Tools(NamedTuple):
    """Commands of mqadmin to one cluster."""

    process: MqAdminProcess
    up: Up

    def __call__(self, by: Credentials | None, command: str, *arguments: str) -> str:
        """What a command printed."""
        tools = self.process.home / "conf" / "tools.yml"
        tools.unlink(missing_ok=True)
        if by is not None:
            tools.write_text(f"accessKey: {by.access_key}\nsecretKey: {by.secret_key}\n")
        return self.process.ask(command, "-n", self.up.namesrv, *arguments)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("old")
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    with (
        Up(folder, settings={"aclEnable": "true", "aclFile": accounts}) as up,
        MqAdminProcess(folder / "home", tools=build_mqadmin_46()) as process,
    ):
        yield Tools(process, up)


@pytest.mark.parametrize("place", ["-b", "-c"])
def test_an_administrator_is_told_all_but_secrets(tools: Tools, place: str) -> None:
    where = {"-b": tools.up.broker, "-c": "DefaultCluster"}[place]
    said = tools(OPERATOR, "getAccessConfigSubCommand", place, where)
    shown = [" ".join(line.split()) for line in said.splitlines()]
    assert "globalWhiteRemoteAddresses: [10.1.2.3, 10.2.*.*]" in shown
    assert f"accessKey : {OPERATOR.access_key}" in shown
    assert f"accessKey : {WORKER.access_key}" in shown
    assert "topicPerms : [Orders=PUB|SUB, DefaultCluster_REPLY_TOPIC=PUB|SUB]" in shown
    assert "groupPerms : [billing=SUB]" in shown
    assert [line for line in shown if line.startswith("secretKey")] == ["secretKey :"] * 2
    assert "-secret" not in said


def test_others_are_told_nothing(tools: Tools) -> None:
    for by, complaint in (
        (None, "No accessKey is configured"),
        (WORKER, "Need admin permission for request code=54"),
    ):
        said = tools(by, "getAccessConfigSubCommand", "-b", tools.up.broker)
        assert complaint in said
        assert "accounts:" not in said


def test_it_changes_accounts_and_shows_their_version(tools: Tools) -> None:
    at = ("-b", tools.up.broker)
    made = ("-a", "made-by-old", "-s", "made-secret", "-t", "Orders=SUB")
    assert "success" in tools(OPERATOR, "updateAclConfig", *at, *made)
    said = tools(OPERATOR, "getAccessConfigSubCommand", *at)
    assert "made-by-old" in said
    assert "made-secret" not in said
    versions = tools(OPERATOR, "clusterAclConfigVersion", *at)
    assert tools.up.broker in versions
    assert "success" in versions
    assert "success" in tools(OPERATOR, "deleteAccessConfig", *at, "-a", "made-by-old")
    assert "made-by-old" not in tools(OPERATOR, "getAccessConfigSubCommand", *at)
