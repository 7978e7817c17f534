"""``kerolox config check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.servers.command import kerolox

SECRET = "a-secret-that-is-not-shown"


def checked(path: Path, text: str, *options: str) -> list[dict[str, str]]:
    """What is found in a file that its user alone can read."""
    path.write_text(text)
    path.chmod(0o600)
    done = kerolox("config", "check", path, *options, "-o", "json")
    assert SECRET not in done.stdout + done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    assert done.returncode == int(any(each["severity"] != "note" for each in found)), done.stderr
    return found


def code_of(found: list[dict[str, str]], where: str) -> list[str]:
    return [each["code"] for each in found if where in each["where"]]


def test_each_mistake_of_a_broker_conf_has_its_line(tmp_path: Path) -> None:
    found = checked(
        tmp_path / "broker.conf",
        "namesrvAddr=10.0.0.1:9876\n# a comment\nlistenPrt=10911\nmaxMessageSize=-1\n"
        "brokerName=a\nbrokerName=b\nhaListenPort=10909\nlistenPort=10911\n"
        "enableCalcFilterBitMap=true\nsendMessageThreadPoolNums=4\n"
        "transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH\n",
    )
    assert code_of(found, "line 3: listenPrt") == ["setting-unknown"]
    assert code_of(found, "line 4: maxMessageSize") == ["setting-wrong"]
    assert code_of(found, "line 6: brokerName") == ["setting-twice"]
    assert code_of(found, "line 7: haListenPort") == ["settings-contradict"]
    assert code_of(found, "line 9: enableCalcFilterBitMap") == ["settings-contradict"]
    assert code_of(found, "line 10: sendMessageThreadPoolNums") == ["setting-without-effect"]
    assert code_of(found, "line 11: transientStorePoolEnable") == ["settings-contradict"]
    assert len(found) == 7
    assert all(each["advice"] for each in found)


def test_windows_of_keys_that_a_transient_pool_forbids_are_told(tmp_path: Path) -> None:
    text = "transientStorePoolEnable=true\ndedupMaxKeys=5\nnamesrvAddr=10.0.0.1:9876\n"
    found = checked(tmp_path / "broker.conf", text)
    assert code_of(found, "line 2: dedupMaxKeys") == ["settings-contradict"]
    assert checked(tmp_path / "b.conf", text.replace("true", "false")) == []


def test_a_namesrv_conf_is_checked_by_its_own_keys(tmp_path: Path) -> None:
    found = checked(tmp_path / "namesrv.conf", "listenPort=99999\nbrokerName=a\nclusterTest=true\n")
    assert code_of(found, "line 1: listenPort") == ["setting-wrong"]
    assert code_of(found, "line 2: brokerName") == ["setting-unknown"]
    assert len(found) == 2
    assert checked(tmp_path / "ns.conf", "listenPort=9876\n", "--kind", "namesrv") == []


def test_tls_properties_are_checked_for_both_sides(tmp_path: Path) -> None:
    key = tmp_path / "server.key"
    key.write_text(SECRET)
    key.chmod(0o644)
    found = checked(
        tmp_path / "tls.properties",
        f"tls.server.mode=enforced\ntls.server.keyPath={key}\ntls.server.keyPasword={SECRET}\n"
        "tls.client.certPath=/no/such/file\ntls.server.need.client.auth=require\n"
        f"tls.client.keyPassword={SECRET}\n",
    )
    assert code_of(found, "line 1: tls.server.mode") == ["setting-wrong"]
    assert code_of(found, "line 2: tls.server.keyPath") == ["settings-contradict"]
    assert code_of(found, "line 3: tls.server.keyPasword") == ["setting-unknown"]
    assert code_of(found, "line 4: tls.client.certPath") == ["setting-wrong"]
    assert code_of(found, "line 5: tls.server.need.client.auth") == ["settings-contradict"]
    assert code_of(found, str(key)) == ["secret-readable"]
    assert len(found) == 6


def test_accounts_are_checked_and_their_secrets_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    found = checked(
        path,
        f"globalWhiteRemoteAddresses:\n- '*'\naccounts:\n- accessKey: shop-service\n"
        f"  secretKey: {SECRET}\n  adminn: true\n  topicPerms:\n  - Orders=READ\n",
    )
    assert code_of(found, "line 6") == ["account-doubtful"]
    assert any("Orders" in each["what"] for each in found)
    assert code_of(found, "globalWhiteRemoteAddresses") == ["account-doubtful"]
    broken = checked(path, f"accounts:\n- accessKey: short\n  secretKey: {SECRET}\n")
    assert code_of(broken, "line 2") == ["setting-wrong"]
    path.chmod(0o644)
    shown = kerolox("config", "check", path)
    assert f"chmod 600 {path}" in shown.stdout


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"accessKey: the-admin\nsecretKey: {SECRET}\n", []),
        (f"accessKey: the-admin\nsecretkey: {SECRET}\n", ["setting-unknown", "setting-wrong"]),
        (f"accessKey: short\nsecretKey: {SECRET}\n", ["setting-wrong"]),
    ],
)
def test_the_keys_of_tools_are_checked(tmp_path: Path, text: str, wrong: list[str]) -> None:
    found = checked(tmp_path / "tools.yml", text)
    assert sorted(each["code"] for each in found) == wrong
    if not wrong:
        shown = kerolox("config", "check", tmp_path / "tools.yml")
        assert shown.stdout == "nothing is wrong\n"
