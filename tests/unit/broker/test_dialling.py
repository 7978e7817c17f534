"""A broker's own connections: TLS and an account towards its name servers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.errors import ConfigError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import RemotingServer, ServerConnection
from kerolox.security.credentials import Credentials, Signer
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.servers.settings import write_settings
from tests.support.servers.tls import Authority, TlsProxy, locked

PASSWORD = "the-key-s-password"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr("kerolox.broker.services.registration.RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr("kerolox.broker.services.registration.LOG_SECONDS", 0.0)


@asynccontextmanager
async def ear() -> AsyncIterator[tuple[str, list[RemotingCommand]]]:
    """A name server that takes all, and the registrations that it heard."""
    heard: list[RemotingCommand] = []

    async def answer(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
        if command.code == RequestCode.REGISTER_BROKER:
            heard.append(command)
        return command.response()

    server = RemotingServer(answer, host="127.0.0.1", port=0)
    await server.start()
    yield f"127.0.0.1:{server.port}", heard
    await server.stop()


@asynccontextmanager
async def secured_ear(
    authority: Authority, *, asks_client: bool = False
) -> AsyncIterator[tuple[TlsProxy, list[RemotingCommand]]]:
    """The same behind TLS."""
    async with ear() as (address, heard):
        with TlsProxy(authority.server(asks_client=asks_client), address) as proxy:
            yield proxy, heard


async def test_a_broker_registers_with_tls_and_a_certificate_of_its_own(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.files("broker")
    (tmp_path / "locked.key").write_bytes(locked(key, PASSWORD.encode()))
    async with secured_ear(authority, asks_client=True) as (proxy, heard):
        config = small_config(
            tmp_path,
            namesrv_addr=proxy.address,
            tls_enable=True,
            tls_client_trust_cert_path=str(authority.ca),
            tls_client_cert_path=str(certificate),
            tls_client_key_path=str(tmp_path / "locked.key"),
            tls_client_key_password=PASSWORD,
        )
        assert PASSWORD not in repr(config)
        assert PASSWORD not in str(config.as_properties())
        async with Broker(config) as broker:
            assert broker.parts.peers.registration.registered == [proxy.address]
        assert heard


async def test_an_authority_that_comes_later_is_enough(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = tmp_path / "ca.pem"
    (tmp_path / "other").mkdir()
    shutil.copyfile(Authority(tmp_path / "other").ca, ca)
    async with secured_ear(authority) as (proxy, _):
        config = small_config(
            tmp_path,
            namesrv_addr=proxy.address,
            use_tls=True,
            tls_client_trust_cert_path=str(ca),
        )
        async with Broker(config) as broker:
            registration = broker.parts.peers.registration
            assert "signed by nobody that is trusted here" in registration.reasons[proxy.address]
            tries = registration._rounds
            await until(lambda: registration._rounds > tries + 2)
            assert caplog.text.count("signed by nobody") == 1
            shutil.copyfile(authority.ca, ca)
            await until(lambda: registration.registered)


async def test_another_reason_is_told_too(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        proxy, _ = await stack.enter_async_context(secured_ear(authority))
        config = small_config(tmp_path, namesrv_addr=proxy.address, tls_enable=True)
        async with Broker(config):
            assert "signed by nobody" in caplog.text
            await stack.aclose()
            await until(lambda: "Connection refused" in caplog.text)


async def test_a_reload_moves_a_broker_to_tls(authority: Authority, tmp_path: Path) -> None:
    async with secured_ear(authority) as (proxy, heard), ear() as (plain, before):
        conf = tmp_path / "broker.conf"
        write_settings(conf, namesrvAddr=plain)
        config = BrokerConfig.load_for_start(
            conf, listen_port=0, listen_host="127.0.0.1", store_path_root_dir=tmp_path / "store"
        )
        async with Broker(config) as broker:
            assert before
            write_settings(
                conf,
                **{
                    "namesrvAddr": proxy.address,
                    "tls.enable": "true",
                    "tls.client.trustCertPath": authority.ca,
                },
            )
            await broker.reload_settings()
            assert broker.parts.peers.registration.registered == [proxy.address]
            assert proxy.taken == 1
            assert heard


async def test_registrations_are_signed_with_the_account_that_the_file_has_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "account.yml"
    accounts = [Credentials("broker-one", "secret-one"), Credentials("broker-two", "secret-two")]

    def write(account: Credentials) -> None:
        file.write_text(f"accessKey: {account.access_key}\nsecretKey: {account.secret_key}\n")

    def is_signed(command: RemotingCommand, account: Credentials) -> bool:
        fields = dict(command.ext_fields)
        given = fields.pop("Signature", None)
        return (
            fields.get("AccessKey") == account.access_key
            and Signer(account).signature(fields, command.body) == given
        )

    write(accounts[0])
    async with ear() as (address, heard), ear() as (other, also_heard):
        config = small_config(
            tmp_path, namesrv_addr=f"{address};{other}", namesrv_credentials_file=str(file)
        )
        async with Broker(config) as broker:
            assert is_signed(heard[-1], accounts[0])
            assert is_signed(also_heard[-1], accounts[0])
            file.write_text("accessKey: broker-two\n")
            for _ in range(2):
                await broker.parts.peers.registration.now(timeout_seconds=60)
            assert is_signed(heard[-1], accounts[0])
            assert caplog.text.count("has no secretKey") == 1
            write(accounts[1])
            await broker.parts.peers.registration.now(timeout_seconds=60)
            assert is_signed(heard[-1], accounts[1])
    assert "secret-" not in caplog.text


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tls_enable": True, "tls_client_trust_cert_path": "/nowhere/ca.pem"}, "nowhere/ca"),
        ({"tls_enable": True, "tls_client_key_path": "/nowhere/key"}, "no certificate"),
        ({"namesrv_credentials_file": "/nowhere/key"}, "namesrvCredentialsFile: .*/nowhere/key"),
    ],
)
async def test_a_file_that_can_not_be_used_stops_the_start(
    tmp_path: Path, given: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        await Broker(small_config(tmp_path, **given)).start()


@pytest.mark.parametrize(
    ("given", "speaks"),
    [
        ({}, False),
        ({"tls_server_mode": "enforcing"}, True),
        ({"tls_server_mode": "enforcing", "tls_enable": False}, False),
        ({"tls_enable": True}, True),
        ({"tls_enable": True, "use_tls": False}, False),
        ({"use_tls": True}, True),
    ],
)
def test_who_demands_tls_speaks_it_unless_told_otherwise(
    tmp_path: Path, given: dict[str, object], speaks: bool
) -> None:
    assert small_config(tmp_path, **given).speaks_tls_to_name_servers is speaks


def test_the_file_of_tls_settings_counts_for_dialling(tmp_path: Path) -> None:
    file, conf = tmp_path / "tls.properties", tmp_path / "broker.conf"
    file.write_text("tls.client.trustCertPath=/etc/ca.pem\ntls.client.authServer=true\n")
    lines = {"tls.config.file": file, "tls.server.mode": "disabled", "tls.enable": "true"}
    tls = BrokerConfig.load(write_settings(conf, **lines)).tls_to_name_servers()
    assert getattr(tls, "ca", None) == Path("/etc/ca.pem")
