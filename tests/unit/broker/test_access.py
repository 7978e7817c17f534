"""Access control before the handlers: what is denied does not happen, and is told once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.broker.ports import VIP_PORT_DISTANCE
from kerolox.errors import ACL_EXCEPTION, ConfigError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.security.access.accounts import Account, Accounts, Permission
from kerolox.security.credentials import Credentials
from tests.support.clients.peer import peer_at, peer_of, small_config
from tests.support.clients.requests import send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.up import free_port
from tests.unit.broker.test_transactions import COMMIT, end, end_fields, prepare

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

BOTH = Permission.PUB | Permission.SUB
SECRET = "a-secret-key"
OPERATOR = Credentials("operator", "operator-secret")
WORKER = Credentials("worker-account", SECRET)
OTHER = Credentials("other-account", SECRET)


def accounts(*others: Account) -> Accounts:
    admin = Account(OPERATOR.access_key, OPERATOR.secret_key, is_admin=True)
    return Accounts(by_key={each.access_key: each for each in (admin, *others)})


ACCOUNTS = accounts(
    Account(WORKER.access_key, SECRET, resources={"T": BOTH, "%RETRY%readers": Permission.SUB}),
    Account(OTHER.access_key, SECRET, resources={"O": BOTH, "%RETRY%readers": Permission.SUB}),
)


@pytest_asyncio.fixture
async def guarded(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    config = guarded_config(tmp_path)
    async with Broker(config, kernel=kernel) as started:
        started.parts.guards.access.use(ACCOUNTS)
        yield started


@pytest_asyncio.fixture
async def worker(guarded: Broker) -> AsyncIterator[Peer]:
    async with peer_of(guarded, WORKER) as client:
        yield client


@pytest_asyncio.fixture
async def stranger(guarded: Broker) -> AsyncIterator[Peer]:
    async with peer_of(guarded) as client:
        yield client


def guarded_config(folder: Path, **more: Any) -> BrokerConfig:
    return small_config(folder, acl_enable=True, acl_file=str(folder / "plain_acl.yml"), **more)


def write(config: BrokerConfig, text: str) -> None:
    Path(config.acl_file).write_text(text)


def is_denied(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SYSTEM_ERROR and ACL_EXCEPTION in (answer.remark or "")


async def test_who_may_sends_and_pulls(worker: Peer) -> None:
    for number in range(3):
        assert (await worker.send("T", b"%d" % number)).code == ResponseCode.SUCCESS
    assert [each.body for each in await worker.messages("T")] == [b"0", b"1", b"2"]


async def test_who_may_not_changes_nothing(guarded: Broker, worker: Peer, stranger: Peer) -> None:
    parts = guarded.parts
    await worker.send("T", b"known")
    before = parts.store.max_physical_offset
    for peer, topic in ((stranger, "T"), (stranger, "New"), (worker, "New")):
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            assert is_denied(await peer.send(topic, b"x", code=code))
    assert is_denied(await stranger.pull("T"))
    assert is_denied(await stranger.heartbeat("c", "new-group", {"T": "*"}))
    assert is_denied(await worker.create_topic("New"))
    assert is_denied(await worker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1"))
    assert is_denied(await stranger.ask(9999))
    assert parts.store.max_physical_offset == before
    assert "New" not in parts.tables.topics
    assert parts.tables.clients.group("new-group") is None
    assert parts.tables.groups.get("new-group") is None


async def test_a_denied_request_that_wants_no_answer_does_nothing(
    guarded: Broker, worker: Peer
) -> None:
    async with RemotingClient() as client:
        for code, fields in (
            (RequestCode.SEND_MESSAGE_V2, send_fields(b="T")),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("New")),
        ):
            command = RemotingCommand.request(code, fields, body=b"x", oneway=True)
            await client.invoke_oneway(worker.address, command, timeout_seconds=30)
        assert is_denied(
            await client.invoke(worker.address, RemotingCommand.request(9999), timeout_seconds=30)
        )
    assert guarded.parts.store.max_physical_offset == 0
    assert "New" not in guarded.parts.tables.topics
    assert guarded.parts.guards.access.denied.total() == 3


async def test_both_ports_are_guarded(tmp_path: Path) -> None:
    port = free_port()
    async with Broker(guarded_config(tmp_path, listen_port=port)) as broker:
        broker.parts.guards.access.use(ACCOUNTS)
        vip = f"127.0.0.1:{port + VIP_PORT_DISTANCE}"
        async with peer_at(vip) as stranger, peer_at(vip, WORKER) as worker:
            assert is_denied(await stranger.send("T"))
            assert is_denied(await stranger.pull("T"))
            assert (await worker.send("T")).code == ResponseCode.SUCCESS


async def test_without_accounts_nobody_gets_in_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(guarded_config(tmp_path)) as broker, peer_of(broker) as peer:
        assert is_denied(await peer.send("T"))
        async with peer_of(broker, WORKER) as signed:
            assert is_denied(await signed.send("T"))
    assert "access control is on without accounts" in caplog.text


async def test_without_acl_enable_everybody_gets_in(tmp_path: Path) -> None:
    async with Broker(small_config(tmp_path)) as broker, peer_of(broker) as peer:
        broker.parts.guards.access.use(ACCOUNTS)
        assert (await peer.send("T")).code == ResponseCode.SUCCESS


async def test_other_accounts_hold_on_open_connections(guarded: Broker, worker: Peer) -> None:
    assert (await worker.send("T")).code == ResponseCode.SUCCESS
    guarded.parts.guards.access.use(accounts())
    assert is_denied(await worker.send("T"))
    guarded.parts.guards.access.use(Accounts(white=(frozenset(("127.0.0.1",)),)))
    async with peer_of(guarded) as stranger:
        assert (await stranger.send("T")).code == ResponseCode.SUCCESS
        guarded.parts.guards.access.use(ACCOUNTS)
        assert is_denied(await stranger.send("T"))


async def held(broker: Broker) -> None:
    def waits() -> bool:
        return bool(broker.parts.store.stats()["held_pulls"]) or broker.parts.arrivals.count > 0

    await until(waits, what="a held pull")


async def test_a_held_pull_delivers_nothing_to_an_account_that_is_gone(
    guarded: Broker, worker: Peer
) -> None:
    await worker.send("T", b"before")
    pull = asyncio.create_task(worker.pull("T", offset=1, suspend_ms=20_000))
    await held(guarded)
    guarded.parts.guards.access.use(accounts())
    async with peer_of(guarded, OPERATOR) as operator:
        assert (await operator.send("T", b"secret")).code == ResponseCode.SUCCESS
    answer = await pull
    assert b"secret" not in answer.body
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        answer = await worker.pull("T", offset=1, suspend_ms=20_000)
    assert is_denied(answer)


async def test_a_held_pull_of_an_account_that_stays_is_delivered(
    guarded: Broker, worker: Peer
) -> None:
    await worker.send("T", b"before")
    pull = asyncio.create_task(worker.pull("T", offset=1, suspend_ms=20_000))
    await held(guarded)
    guarded.parts.guards.access.use(Accounts(by_key=dict(ACCOUNTS.by_key)))
    async with peer_of(guarded, OPERATOR) as operator:
        assert (await operator.send("T", b"news")).code == ResponseCode.SUCCESS
    answer = await pull
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        answer = await worker.pull("T", offset=1, suspend_ms=20_000)
    assert b"news" in answer.body


async def test_a_transaction_is_ended_by_who_may_publish_to_its_topic(
    guarded: Broker, worker: Peer
) -> None:
    half = await prepare(worker)
    async with peer_of(guarded, OTHER) as other:
        assert is_denied(await end(other, half, COMMIT))
        body = b'{"attempts":["q/0/0/0"]}'
        fields = {
            "producerGroup": "g", "fromOffset": 0, "toOffset": 1, "commitOrRollback": 8,
        }  # fmt: skip
        assert is_denied(await other.ask(RequestCode.END_HALF_MESSAGES, fields, body))
    assert [each.body for each in await worker.messages("T", 2)] == []
    assert (await end(worker, half, COMMIT)).code == ResponseCode.SUCCESS
    assert [each.body for each in await worker.messages("T", 2)] == [b"U1"]


async def test_without_strictness_any_account_ends_transactions(tmp_path: Path) -> None:
    config = guarded_config(tmp_path, acl_strict=False)
    async with Broker(config) as broker:
        broker.parts.guards.access.use(ACCOUNTS)
        async with peer_of(broker, WORKER) as worker, peer_of(broker, OTHER) as other:
            half = await prepare(worker)
            assert end_fields(half, COMMIT)["producerGroup"]
            assert (await end(other, half, COMMIT)).code == ResponseCode.SUCCESS


async def test_a_denial_is_counted_and_has_an_audit_line_without_secrets(
    guarded: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kerolox.audit")
    wrong = Credentials(WORKER.access_key, "wrong-secret")
    async with peer_of(guarded, wrong) as peer:
        assert is_denied(await peer.send("T"))
    async with peer_of(guarded, WORKER) as peer:
        assert is_denied(await peer.create_topic("New"))
    first, second = [json.loads(each) for each in caplog.messages if "denied" in each]
    assert first["account"] == "?worker-account"
    assert first["request"] == "SEND_MESSAGE_V2"
    assert second["account"] == "worker-account"
    assert second["reason"].startswith("Need admin permission")
    assert "secret" not in caplog.text
    assert guarded.parts.guards.access.denied == {"wrong signature": 1, "needs an administrator": 1}


async def test_a_change_names_the_account_that_signed_it(
    guarded: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kerolox.audit")
    async with peer_of(guarded, OPERATOR) as peer:
        assert (await peer.create_topic("New")).code == ResponseCode.SUCCESS
    [line] = [json.loads(each) for each in caplog.messages if "changed" in each]
    assert line["account"] == "operator"


async def test_accounts_come_from_their_files(tmp_path: Path) -> None:
    config = guarded_config(tmp_path)
    write(config, "accounts:\n- accessKey: operator\n  secretKey: operator-secret\n  admin: true\n")
    async with Broker(config) as broker, peer_of(broker, OPERATOR) as operator:
        assert (await operator.send("T")).code == ResponseCode.SUCCESS
        write(config, "accounts:\n- accessKey: another\n  secretKey: secret-x\n")
        await broker.reload_settings()
        assert is_denied(await operator.send("T"))


async def test_files_of_accounts_that_are_wrong_stop_the_start(tmp_path: Path) -> None:
    config = guarded_config(tmp_path)
    write(config, "accounts: 7\n")
    with pytest.raises(ConfigError, match="plain_acl"):
        await Broker(config).start()
    with pytest.raises(ConfigError, match="aclFile"):
        await Broker(small_config(tmp_path, acl_enable=True, rocketmq_home="")).start()


async def test_a_trusted_address_on_one_port_trusts_no_connection_of_the_other(
    tmp_path: Path, kernel: str
) -> None:
    port = free_port()
    config = guarded_config(tmp_path, listen_port=port)
    async with Broker(config, kernel=kernel) as broker:
        broker.parts.guards.access.use(Accounts(ACCOUNTS.by_key, (frozenset(("127.0.0.2",)),)))
        async with (
            raw(port, "127.0.0.1") as stranger,
            raw(port + VIP_PORT_DISTANCE, "127.0.0.2") as trusted,
        ):
            for _ in range(2):
                assert not is_denied(await asked(trusted, send_fields(b="T")))
                assert is_denied(await asked(stranger, send_fields(b="T")))


Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def raw(port: int, address: str) -> AsyncIterator[Raw]:
    """A connection from an address of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.close()


async def asked(connection: Raw, fields: dict[str, str]) -> RemotingCommand:
    """The answer to a send."""
    reader, writer = connection
    writer.write(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"x").encode())
    async with asyncio.timeout(SECONDS_MAX):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return RemotingCommand.decode(await reader.readexactly(size))
