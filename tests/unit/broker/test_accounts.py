"""Accounts made, changed and deleted by requests (50 to 54), and told of."""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from kerolox.security.access import files as files_module
from kerolox.security.access.files import AclFiles
from kerolox.security.credentials import Credentials
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from tests.support.clients.peer import Peer

OPERATOR = Credentials("operator", "operator-secret")
MADE = Credentials("made-account", "Geheimnis-2718")
TEXT = f"""\
globalWhiteRemoteAddresses: [10.1.2.3]
accounts:
- accessKey: {OPERATOR.access_key}
  secretKey: {OPERATOR.secret_key}
  admin: true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    (path.parent / "acl").mkdir(parents=True)
    path.touch(0o600)
    path.write_text(TEXT)
    return path


@pytest_asyncio.fixture
async def guarded(tmp_path: Path, path: Path) -> AsyncIterator[Broker]:
    config = small_config(tmp_path, acl_enable=True, acl_file=str(path))
    async with Broker(config) as started:
        yield started


@pytest_asyncio.fixture
async def operator(guarded: Broker) -> AsyncIterator[Peer]:
    async with peer_of(guarded, OPERATOR) as client:
        yield client


async def put(peer: Peer, key: str = MADE.access_key, **fields: object) -> RemotingCommand:
    given = {"accessKey": key, "secretKey": MADE.secret_key, "admin": False, **fields}
    return await peer.ask(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        {name: value for name, value in given.items() if value is not None},
    )


async def delete(peer: Peer, key: str) -> RemotingCommand:
    return await peer.ask(RequestCode.DELETE_ACL_CONFIG, {"accessKey": key})


async def put_white(peer: Peer, addresses: str, **fields: str) -> RemotingCommand:
    return await peer.ask(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": addresses, **fields}
    )


async def versions(peer: Peer) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    fields = answer.ext_fields
    assert all(fields[name] for name in ("brokerName", "brokerAddr", "clusterName"))
    return json.loads(fields["version"]), json.loads(fields["allAclFileVersion"])


def write(path: Path, text: str) -> None:
    path.write_text(text)


def turn_into_link(path: Path) -> Path:
    target = path.parent / "real"
    path.replace(target)
    path.symlink_to(target.name)
    return target


def is_link(path: Path) -> bool:
    return path.is_symlink()


def text_of(path: Path) -> str:
    return path.read_text()


async def test_an_account_that_is_made_may_send_at_once_and_deleted_no_more(
    guarded: Broker, operator: Peer
) -> None:
    async with peer_of(guarded, MADE) as made:
        assert "No acl config" in str((await made.send("T")).remark)
        assert (await put(operator, topicPerms="T=PUB|SUB,U=DENY", groupPerms="g=SUB")).code == 0
        assert (await made.send("T")).code == 0
        assert (await made.send("U")).code == 1
        assert (await put(operator, topicPerms="T=SUB")).code == 0
        assert "No default permission" in str((await made.send("T")).remark)
        assert (await delete(operator, MADE.access_key)).code == 0
        assert "No acl config" in str((await made.send("T")).remark)


async def test_a_change_keeps_what_it_does_not_speak_of(operator: Peer, path: Path) -> None:
    first = {"topicPerms": "T=PUB", "defaultGroupPerm": "SUB", "whiteRemoteAddress": "10.9.*.*"}
    assert (await put(operator, **first)).code == 0
    assert (await put(operator, secretKey=None, topicPerms="T=SUB,T2=PUB|SUB")).code == 0
    assert text_of(path).split("dataVersion")[0] == TEXT + (
        "- accessKey: made-account\n"
        "  secretKey: Geheimnis-2718\n"
        '  whiteRemoteAddress: "10.9.*.*"\n'
        "  admin: false\n"
        "  defaultGroupPerm: SUB\n"
        "  topicPerms:\n"
        "  - T=SUB\n"
        "  - T2=PUB|SUB\n"
    )


async def test_a_change_of_hand_made_lines_keeps_their_order_and_quotes(
    operator: Peer, path: Path
) -> None:
    write(
        path,
        "ours: {a: 012, b: [2026-01-31, 'x']}\n"
        "accounts:\n"
        f"- {{secretKey: {OPERATOR.secret_key}, accessKey: {OPERATOR.access_key}, admin: yes}}\n"
        "- secretKey: 12345678\n"
        "  accessKey: '12345678'\n"
        "globalWhiteRemoteAddresses:\n",
    )
    assert (await put(operator, "12345678", secretKey=None, defaultTopicPerm="PUB")).code == 0
    assert text_of(path).split("dataVersion")[0] == (
        "ours: {a: 012, b: [2026-01-31, 'x']}\n"
        "accounts:\n"
        f"- {{secretKey: {OPERATOR.secret_key}, accessKey: {OPERATOR.access_key}, admin: yes}}\n"
        "- secretKey: 12345678\n"
        '  accessKey: "12345678"\n'
        "  admin: false\n"
        "  defaultTopicPerm: PUB\n"
        "globalWhiteRemoteAddresses:\n"
    )


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"key": "short"}, "accessKey=short and secretKey=.* length should longer than 6"),
        ({"secretKey": "short2"}, "length should longer than 6"),
        ({"secretKey": ""}, "length should longer than 6"),
        ({"secretKey": None}, "cannot be null"),
        ({"topicPerms": "T"}, "Parse Resource format error for 'T'"),
        ({"topicPerms": ""}, "Parse Resource format error for ''"),
        ({"groupPerms": "g=pub"}, "Parse resource permission error for 'g=pub'"),
        ({"defaultTopicPerm": "ALL"}, "'ALL' is no permission"),
        ({"whiteRemoteAddress": "nowhere"}, "'nowhere' is no IP address"),
        ({"key": "a\nb-account"}, "control character"),
        ({"key": "\u2028-account"}, "control character"),
        ({"secretKey": "Geheimnis\x002718"}, "control character"),
        ({"topicPerms": "T\x1b=PUB"}, "Parse Resource format error"),
        ({"key": "       "}, "blank"),
        ({"key": "a" * 2000}, "2000 characters; the most is 1024"),
        ({"topicPerms": ",".join(f"t{n}=PUB" for n in range(7000))}, "custom field"),
    ],
)
async def test_a_wrong_account_is_refused_and_changes_nothing(
    operator: Peer, path: Path, fields: dict[str, str], complaint: str
) -> None:
    answer = await put(operator, **fields)
    assert answer.code == (1 if complaint == "custom field" else 209)
    assert re.search(complaint, answer.remark or ""), answer.remark
    assert "Geheimnis" not in str(answer.remark)
    assert text_of(path) == TEXT


@pytest.mark.parametrize("key", ["nobody-known", ""])
async def test_an_account_that_is_not_there_is_not_deleted(
    operator: Peer, path: Path, key: str
) -> None:
    answer = await delete(operator, key)
    assert answer.code == 210
    assert f"The accesskey[{key}] corresponding to accessConfig has been deleted failed" in str(
        answer.remark
    )
    assert text_of(path) == TEXT


async def test_strange_names_are_read_again_as_they_were_given(
    operator: Peer, guarded: Broker
) -> None:
    names = ["1234567", "2026-01-31", "12:30:45", "true   ", "null   ", "a: b # c", "'quoted'"]
    names += [
        "{braces}",
        "*aliases",
        "&anchors",
        "!tagged",
        "stra\u00dfe\U0001f600",
        "-------",
    ]
    names += ["back\\slash", '"double"', "1e10000", "0o12345", "@reserved", "%percent", "~~~~~~~"]
    for name in names:
        answer = await put(operator, name, topicPerms=f"{name.replace(',', '')}=PUB")
        assert answer.code == 0, (name, answer.remark)
    assert guarded.parts.guards.accounts is not None
    again = AclFiles(guarded.parts.guards.accounts.files.places)
    assert set(again.load().by_key) == {*names, OPERATOR.access_key}
    assert {each.secret_key for each in again.accounts.by_key.values()} == {
        MADE.secret_key,
        OPERATOR.secret_key,
    }


async def test_the_white_list_is_replaced_and_counts_at_once(
    guarded: Broker, operator: Peer, path: Path
) -> None:
    async with peer_of(guarded) as stranger:
        assert (await stranger.send("T")).code == 1
        assert (await put_white(operator, "10.9.8.{1,2},127.0.0.*")).code == 0
        assert (await stranger.send("T")).code == 0
        assert "10.9.8.{1,2}" in text_of(path)
        for addresses in ("10.1.2.300", "10.1.2.3,everybody", "10.1.2.3\n"):
            answer = await put_white(operator, addresses)
            assert answer.code == 211
        assert (await stranger.send("T")).code == 0
        assert (await put_white(operator, "")).code == 0
        assert (await stranger.send("T")).code == 1
    assert "globalWhiteRemoteAddresses: []" in text_of(path)


async def test_the_white_list_of_another_file_is_replaced(operator: Peer, path: Path) -> None:
    other = path.parent / "acl" / "other.yml"
    write(other, "")
    assert (await put_white(operator, "10.2.2.2", aclFileFullPath=str(other))).code == 0
    assert "10.2.2.2" in text_of(other)
    assert text_of(path) == TEXT


@pytest.mark.parametrize("file", ["/etc/passwd", "{conf}/../x.yml", "{conf}/acl", "{conf}/new.yml"])
async def test_a_request_writes_no_other_file(operator: Peer, path: Path, file: str) -> None:
    named = file.format(conf=path.parent)
    answer = await put_white(operator, "10.2.2.2", aclFileFullPath=named)
    assert answer.code == 211
    assert "is no file of accounts of this broker" in str(answer.remark)
    assert sorted(each.name for each in path.parent.iterdir()) == ["acl", "plain_acl.yml"]


async def test_each_change_counts_in_the_version_of_its_file(operator: Peer, path: Path) -> None:
    other = path.parent / "acl" / "other.yml"
    write(other, "accounts:\n- {accessKey: other-account, secretKey: any-secret}\n")
    await put(operator)
    default, files = await versions(operator)
    assert default["counter"] == 1
    assert {each: files[each]["counter"] for each in files} == {str(path): 1, str(other): 0}
    await put(operator, "other-account", topicPerms="T=PUB")
    default, files = await versions(operator)
    assert {each: files[each]["counter"] for each in files} == {str(path): 1, str(other): 1}
    assert files[str(other)]["timestamp"] >= files[str(path)]["timestamp"] > 1_700_000_000_000
    assert "T=PUB" in text_of(other)
    assert "other-account" not in text_of(path)


async def test_an_account_of_two_files_is_deleted_in_both(
    guarded: Broker, operator: Peer, path: Path
) -> None:
    other = path.parent / "acl" / "other.yml"
    write(other, f"accounts:\n- {{accessKey: {MADE.access_key}, secretKey: other-secret}}\n")
    write(path, f"{TEXT}- {{accessKey: {MADE.access_key}, secretKey: third-secret}}\n")
    assert (await delete(operator, MADE.access_key)).code == 0
    assert MADE.access_key not in text_of(other) + text_of(path)
    assert guarded.parts.guards.accounts is not None
    assert list(guarded.parts.guards.accounts.files.accounts.by_key) == [OPERATOR.access_key]


async def test_a_file_that_is_gone_is_made_for_its_owner_alone(
    guarded: Broker, tmp_path: Path
) -> None:
    assert guarded.parts.guards.accounts is not None
    path = guarded.parts.guards.accounts.files.places.file
    async with peer_of(guarded, OPERATOR) as operator:
        other = path.parent / "acl" / "other.yml"
        write(other, TEXT)
        path.unlink()
        assert (await put(operator)).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert text_of(path).startswith("accounts:\n- accessKey: made-account\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
async def test_a_file_that_cannot_be_written_stays_as_it_is(
    guarded: Broker, operator: Peer, path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no room here", str(path))

    monkeypatch.setattr(files_module, "replace_file", fail)
    assert guarded.parts.guards.accounts is not None
    before = guarded.parts.guards.accounts.files.accounts
    for answer, code in (
        (await put(operator), 209),
        (await delete(operator, OPERATOR.access_key), 210),
        (await put_white(operator, "10.2.2.2"), 211),
    ):
        assert answer.code == code
        assert f"nothing was changed: {path}: no room here" in str(answer.remark)
    assert text_of(path) == TEXT
    assert guarded.parts.guards.accounts.files.accounts is before
    monkeypatch.undo()
    assert (await put(operator)).code == 0


async def test_a_wrong_file_is_mended_before_requests_change_it(operator: Peer, path: Path) -> None:
    write(path, TEXT + "]\n")
    answer = await put(operator)
    assert answer.code == 209
    assert "mend the file first" in str(answer.remark)
    assert text_of(path) == TEXT + "]\n"


async def test_changes_at_the_same_time_are_all_made(
    guarded: Broker, operator: Peer, path: Path
) -> None:
    answers = await asyncio.gather(*(put(operator, f"account-{number}") for number in range(12)))
    assert {answer.code for answer in answers} == {0}
    assert guarded.parts.guards.accounts is not None
    assert len(guarded.parts.guards.accounts.files.accounts.by_key) == 13
    assert (await versions(operator))[0]["counter"] == 12
    assert text_of(path).count("accessKey") == 13


async def test_a_link_stays_and_its_file_is_changed(operator: Peer, path: Path) -> None:
    target = turn_into_link(path)
    assert (await put(operator)).code == 0
    assert is_link(path)
    assert MADE.access_key in text_of(target)


async def test_tools_of_old_are_told_all_but_secrets(operator: Peer) -> None:
    await put(operator, topicPerms="T=PUB", whiteRemoteAddress="10.9.9.9", defaultTopicPerm="DENY")
    answer = await operator.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    told = json.loads(answer.body)
    assert told["globalWhiteAddrs"] == ["10.1.2.3"]
    assert [each["accessKey"] for each in told["plainAccessConfigs"]] == [
        "operator",
        "made-account",
    ]
    made = told["plainAccessConfigs"][1]
    assert (made["topicPerms"], made["whiteRemoteAddress"]) == (["T=PUB"], "10.9.9.9")
    assert not any(each.get("secretKey") for each in told["plainAccessConfigs"])
    assert b"secret" not in answer.body.replace(b"secretKey", b"")


async def test_without_access_control_there_are_no_accounts(peer: Peer) -> None:
    assert (await put(peer)).code == 209
    assert (await delete(peer, "any-account")).code == 210
    answer = await put_white(peer, "10.2.2.2")
    assert (answer.code, "aclEnable is false" in str(answer.remark)) == (211, True)
    for code in (
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    ):
        assert (await peer.ask(code)).code == 3


async def test_a_change_has_an_audit_line_without_the_secret(
    operator: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await put(operator, topicPerms="T=PUB")
    await put(operator, secretKey="Geheimnis-3141", topicPerms="T=PUB")
    await put_white(operator, "10.2.2.2")
    await delete(operator, MADE.access_key)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == LOGGER]
    assert [(each["account"], each["request"]) for each in lines] == [
        ("operator", "UPDATE_AND_CREATE_ACL_CONFIG"),
        ("operator", "UPDATE_AND_CREATE_ACL_CONFIG"),
        ("operator", "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG"),
        ("operator", "DELETE_ACL_CONFIG"),
    ]
    assert lines[1]["old"] == lines[1]["new"] == {"secretKey": "***"}
    assert lines[2]["new"] == {"addresses": ["10.2.2.2"]}
    assert "Geheimnis" not in caplog.text


async def test_metrics_say_how_many_accounts_and_wrong_files_there_are(
    operator: Peer, path: Path
) -> None:
    async def figures() -> list[str]:
        table = json.loads((await operator.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        return [table[name] for name in ("aclAccounts", "aclReloads", "aclWrongFiles")]

    assert await figures() == ["1", "0", "0"]
    await put(operator)
    assert await figures() == ["2", "1", "0"]
    write(path, "]")

    async def is_told() -> bool:
        return await figures() == ["2", "1", "1"]

    await until(is_told)


async def test_a_change_of_the_file_is_in_force_while_the_broker_runs(
    guarded: Broker, path: Path
) -> None:
    async with peer_of(guarded, MADE) as made:
        assert (await made.send("T")).code == 1
        account = f"- accessKey: {MADE.access_key}\n  secretKey: {MADE.secret_key}\n"
        write(path, f"{TEXT}{account}  admin: true\n")

        async def may_send() -> bool:
            return (await made.send("T")).code == 0

        await until(may_send)
