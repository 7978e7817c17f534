"""Accounts of a broker, changed by an administrator of the console; no secret is shown anywhere."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import BrokerError
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor, running_console
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.console.console import Console

SECRET = "a-secret-of-somebody"
ACCOUNTS = """
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""


async def test_accounts_and_the_white_list_are_changed_and_no_secret_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    with Up(tmp_path / "up", settings={"aclEnable": "true", "aclFile": accounts}) as up:
        async with running_console(tmp_path, up.namesrv) as console:
            admin, viewer = Visitor(console, "admin"), Visitor(console, "viewer")
            assert "<form" not in (await viewer.look("/acl")).text.partition("<main")[2]
            fields = {"accessKey": "somebody", "secretKey": SECRET, "topicPerms": "Orders=PUB|SUB"}
            assert (await viewer.post("/acl/put", **fields)).status_code == 403
            assert "somebody" not in accounts.read_text()
            told = await admin.act("/acl/put", **fields)
            assert "Account somebody is set" in told
            assert {"somebody", SECRET, "Orders=PUB|SUB"} <= words(accounts)
            short = await admin.post("/acl/put", accessKey="somebody", secretKey="shorty")
            assert short.status_code == 400
            assert "shorty" not in short.text
            await admin.act("/acl/put", accessKey="somebody", defaultTopicPerm="SUB")
            assert SECRET in words(accounts)
            await admin.act("/acl/white-list", addresses="127.0.0.1 10.1.2.*")
            assert {"127.0.0.1", "10.1.2.*"} <= words(accounts)
            kept = await admin.post("/acl/delete", accessKey="somebody", again="nobody")
            assert kept.status_code == 400
            assert "somebody" in words(accounts)
            await admin.act("/acl/delete", accessKey="somebody", again="somebody")
            assert "somebody" not in words(accounts)
            page = (await admin.look("/acl")).text
    lines = [each.getMessage() for each in caplog.records if each.name == LOGGER]
    done = [json.loads(line)["action"] for line in lines if "changed" in line]
    assert done == ["/acl/put", "/acl/put", "/acl/white-list", "/acl/delete"]
    assert not any(each in text for each in (SECRET, "shorty") for text in (page, *lines))


async def test_a_broker_that_tells_neither_accounts_nor_version_is_named_with_the_reasons(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> object:
        raise BrokerError("no version <b>", code=1)

    monkeypatch.setattr(console.admin, "acl_versions", refuse)
    page = (await Visitor(console, "viewer").look("/acl")).text
    assert "The broker does not tell its accounts" in page
    assert "Nor does it tell their version: " in page
    assert "no version &lt;b&gt;" in page


def words(path: Path) -> set[str]:
    """Of a file of accounts, without its quotes."""
    return set(path.read_text().replace('"', "").replace("'", "").split())
