"""Who may change what a name server knows, and who may ask: each way in, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.servers.tls import Authority

from kerolox.broker.broker import Broker
from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.gate import Gate
from kerolox.namesrv.handlers import router
from kerolox.namesrv.server import NameServer
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.audit import Audit
from kerolox.remoting.client import RemotingClient
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings

ADMIN, USER = Credentials("operator", "12345678"), Credentials("somebody", "12345678")
ACCOUNTS = """
accounts:
- accessKey: operator
  secretKey: "12345678"
  admin: true
- accessKey: somebody
  secretKey: "12345678"
  defaultTopicPerm: PUB|SUB
"""
HERE, ELSEWHERE = "127.0.0.*;::1", "127.0.0.2;10.1.0-3.*"
DENIED = "org.apache.rocketmq.acl.common.AclException: "
PLACE = {"clusterName": "C", "brokerName": "b", "brokerId": 0, "brokerAddr": "10.0.0.1:10911"}
PLACE["haServerAddr"] = "10.0.0.1:10912"
CHANGES: dict[RequestCode, dict[str, object]] = {
    RequestCode.PUT_KV_CONFIG: {"namespace": "n", "key": "k", "value": "v"},
    RequestCode.DELETE_KV_CONFIG: {"namespace": "n", "key": "k"},
    RequestCode.REGISTER_BROKER: PLACE,
    RequestCode.UNREGISTER_BROKER: PLACE,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: {"brokerName": "b"},
    RequestCode.ADD_WRITE_PERM_OF_BROKER: {"brokerName": "b"},
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": "T"},
    RequestCode.UPDATE_NAMESRV_CONFIG: {},
}
TOPICS = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}}}}'
BODIES = {
    RequestCode.REGISTER_BROKER: TOPICS,
    RequestCode.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=true\n",
}


class Asking:
    """A name server and whoever asks it."""

    def __init__(self, server: NameServer) -> None:
        self.server = server

    async def ask(
        self, code: int, account: Credentials | None = None, **fields: object
    ) -> RemotingCommand:
        body = BODIES.get(RequestCode(code), b"")
        command = RemotingCommand.request(code, fields, body=body)
        async with RemotingClient(credentials=account) as client:
            return await client.invoke(f"127.0.0.1:{self.server.port}", command)

    async def change(self, account: Credentials | None = None) -> RemotingCommand:
        fields = CHANGES[RequestCode.PUT_KV_CONFIG]
        return await self.ask(RequestCode.PUT_KV_CONFIG, account, **fields)

    async def look(self, account: Credentials | None = None) -> RemotingCommand:
        return await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO, account)


def settings(folder: Path, **more: Any) -> NamesrvConfig:
    return NamesrvConfig(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=folder / "kvConfig.json",
        config_store_path=folder / "namesrv.properties",
        **more,
    )


def test_every_change_of_a_name_server_is_tried_here() -> None:
    assert CHANGES.keys() == {code for code, route in router.routes.items() if route.changes}


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: code.name)
async def test_a_stranger_changes_nothing_and_is_told_why(
    tmp_path: Path, code: RequestCode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    async with NameServer(settings(tmp_path, writer_addresses=ELSEWHERE)) as server:
        answer = await Asking(server).ask(code, **CHANGES[code])
        assert (answer.code, answer.remark) == (
            1,
            f"{DENIED}not allowed to change this name server: "
            "127.0.0.1 is not among writerAddresses",
        )
        assert server.routes.live == {}
        assert not server.config.order_message_enable
        assert not (tmp_path / "kvConfig.json").exists()
    [line] = [json.loads(r.getMessage()) for r in caplog.records if r.name == AUDIT_LOGGER]
    assert (line["outcome"], line["request"]) == ("denied", code.name)


async def test_without_settings_anybody_may_do_as_he_likes(tmp_path: Path) -> None:
    async with NameServer(settings(tmp_path)) as server:
        assert (await Asking(server).change()).code == 0


async def test_whoever_is_on_the_list_of_addresses_may_and_readers_may_anyway(
    tmp_path: Path,
) -> None:
    async with NameServer(settings(tmp_path, writer_addresses=HERE)) as server:
        for code, fields in CHANGES.items():
            assert (await Asking(server).ask(code, **fields)).code == 0, code
    async with NameServer(settings(tmp_path, writer_addresses=ELSEWHERE)) as server:
        assert (await Asking(server).look()).code == 0


async def test_an_administrators_account_may_and_others_may_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    config = settings(tmp_path, writer_accounts=accounts, writer_addresses=ELSEWHERE)
    async with NameServer(config) as server:
        asking = Asking(server)
        assert (await asking.change(ADMIN)).code == 0
        for account, reason in (
            (None, "No accessKey is configured"),
            (USER, "Need admin permission for request code=100, but accessKey=somebody is not"),
            (Credentials("operator", "wrong-secret"), "Check signature failed for"),
            (Credentials("nobody-at-all", "12345678"), "No acl config for nobody-at-all"),
        ):
            answer = await asking.change(account)
            assert answer.code == 1
            assert (answer.remark or "").startswith(DENIED)
            assert reason in (answer.remark or "")
        assert (await asking.look()).code == 0
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == AUDIT_LOGGER]
    told = [(line["outcome"], line["account"]) for line in lines]
    assert told == [
        ("changed", "operator"),
        ("denied", "-"),
        ("denied", "somebody"),
        ("denied", "?operator"),
        ("denied", "?nobody-at-all"),
    ]
    assert "12345678" not in caplog.text


async def test_accounts_that_change_are_in_force_without_a_restart(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    async with NameServer(settings(tmp_path, writer_accounts=accounts)) as server:
        asking = Asking(server)
        assert (await asking.change(USER)).code == 1
        accounts.write_text(ACCOUNTS + "  admin: true\n")
        await server.reload_settings()
        assert (await asking.change(USER)).code == 0
        accounts.write_text(ACCOUNTS)

        async def is_taken_back() -> bool:
            return (await asking.change(USER)).code == 1

        await until(is_taken_back)


async def test_readers_need_the_same_when_they_are_restricted_and_any_account(
    tmp_path: Path,
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    config = settings(tmp_path, writer_accounts=accounts, restrict_readers=True)
    async with NameServer(config) as server:
        asking = Asking(server)
        answer = await asking.look()
        assert (answer.code, answer.remark) == (
            1,
            f"{DENIED}not allowed to ask this name server: No accessKey is configured",
        )
        assert (await asking.look(USER)).code == 0
        assert (await asking.change(USER)).code == 1
    config = settings(tmp_path, writer_addresses=HERE, restrict_readers=True)
    async with NameServer(config) as server:
        assert (await Asking(server).look()).code == 0


class WithSubject:
    """A connection whose client showed a certificate, or none."""

    peer = ("127.0.0.1", 1)
    remote_address = "127.0.0.1:1"
    audited: Mapping[str, str] = MappingProxyType({})

    def __init__(self, subject: str | None) -> None:
        self.certificate_subject = subject


@pytest.mark.parametrize(
    ("names", "subject", "is_let_in"),
    [
        ("CN=broker-a,O=Shop;CN=ops", "CN=ops", True),
        ("CN=broker-a,O=Shop;CN=ops", "CN=broker-a,O=Shop", True),
        ("CN=broker-a,O=Shop;CN=ops", "CN=op", False),
        ("CN=broker-a,O=Shop;CN=ops", None, False),
        ("*", "CN=anybody", True),
        ("*", None, False),
    ],
)
async def test_a_client_certificate_lets_in_whom_the_setting_names(
    tmp_path: Path, names: str, subject: str | None, is_let_in: bool
) -> None:
    gate = Gate(settings(tmp_path, writer_certificates=names), Audit("name server"))
    command = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, CHANGES[100])
    denied, _ = gate.judged(command, WithSubject(subject), changes=True)  # type: ignore[arg-type]
    assert (denied is None) == is_let_in


@pytest.mark.parametrize("text", ["10.1.2.3.4", "somewhere", "10.0.0.0/8", "1.2.3.4;5.6.7"])
def test_a_list_of_addresses_that_is_malformed_stops_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="writerAddresses"):
        settings(tmp_path, writer_addresses=text)


async def test_accounts_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts: [")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
        await NameServer(settings(tmp_path, writer_accounts=accounts)).start()


@pytest.mark.parametrize("key", ["writerAddresses", "writerAccounts", "restrictReaders"])
async def test_no_request_opens_the_gate(tmp_path: Path, key: str) -> None:
    async with NameServer(settings(tmp_path)) as server:
        command = RemotingCommand.request(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=f"{key}=x\n".encode()
        )
        async with RemotingClient() as client:
            answer = await client.invoke(f"127.0.0.1:{server.port}", command)
        assert answer.code == 16


async def test_a_certificate_of_tls_lets_its_subject_in_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    authority = Authority(tmp_path)
    certificate, key = authority.files("127.0.0.1")
    config = settings(
        tmp_path,
        writer_certificates="*",
        tls_server_mode="permissive",
        tls_server_cert_path=str(certificate),
        tls_server_key_path=str(key),
        tls_server_auth_client=True,
        tls_server_need_client_auth="optional",
        tls_server_trust_cert_path=str(authority.ca),
    )
    command = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, CHANGES[100])
    own, own_key = authority.files("broker-a")
    async with NameServer(config) as server:
        for tls, code in (
            (TlsSettings(ca=authority.ca, certificate=own, key=own_key), 0),
            (TlsSettings(ca=authority.ca), 1),
            (False, 1),
        ):
            async with RemotingClient(tls=tls) as client:
                answer = await client.invoke(f"127.0.0.1:{server.port}", command)
                assert answer.code == code
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == AUDIT_LOGGER]
    assert [line["outcome"] for line in lines] == ["changed", "denied", "denied"]
    assert [line["subject"] == "-" for line in lines] == [False, True, True]


async def test_requests_of_an_address_have_a_limit_at_a_name_server_too(tmp_path: Path) -> None:
    limit = {"max_requests_per_second_per_address": 1, "request_burst_millis": 10_000}
    async with NameServer(settings(tmp_path, **limit)) as server, RemotingClient() as client:
        command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        answers = [await client.invoke(f"127.0.0.1:{server.port}", command) for _ in range(13)]
    assert [each.code for each in answers] == [0] * 10 + [2] * 3
    assert fastjson.loads(answers[0].body)["table"]["connections"] == "1"


async def test_our_broker_registers_with_its_account_and_not_without(tmp_path: Path) -> None:
    accounts, own = tmp_path / "plain_acl.yml", tmp_path / "registration.yml"
    accounts.write_text(ACCOUNTS)
    own.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: '{ADMIN.secret_key}'\n")
    async with NameServer(settings(tmp_path, writer_accounts=accounts)) as server:
        address = f"127.0.0.1:{server.port}"
        async with Broker(small_config(tmp_path / "a", namesrv_addr=address)) as stranger:
            await until(lambda: stranger.parts.peers.registration.reasons.get(address))
            assert (
                "No accessKey is configured" in stranger.parts.peers.registration.reasons[address]
            )
            assert server.routes.brokers == {}
        given = {"namesrv_addr": address, "namesrv_credentials_file": str(own)}
        async with Broker(small_config(tmp_path / "b", **given)):
            await until(lambda: "broker-t" in server.routes.brokers)
        assert server.routes.brokers == {}, "it may unregister, too"
