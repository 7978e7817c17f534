"""Our clients with accounts and TLS, against both brokers: aclEnable, enforcing."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import uvloop

from kerolox.admin import Access, Account, Admin
from kerolox.client import (
    ClientSettings,
    ConsumeFromWhere,
    ConsumeStatus,
    Credentials,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PullStatus,
    PushConsumer,
    PushConsumerSettings,
    TlsSettings,
    TransactionProducer,
    TransactionState,
    create_reply,
    sync,
)
from kerolox.errors import (
    AccessDeniedError,
    AccountDeleteError,
    ConnectError,
    ConnectionLostError,
)
from kerolox.message import Message, MessageExt
from kerolox.remoting.client import RemotingClient
from kerolox.spark.network.cluster import ClusterView as SparkCluster
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.pull import RangePuller
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import QueueRange
from kerolox.spark.sink import job as sink_job
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.options import SinkOptions
from tests.interop.mqadmin import MqAdminProcess
from tests.interop.secured import OPERATOR, WORKER, accounts_file
from tests.support.eventually import SECONDS_MAX, until, wait_until
from tests.support.programs import java_command
from tests.support.servers.clusters import QUICK_CHECKS, JavaPeer
from tests.support.servers.command import kerolox
from tests.support.servers.tls import Authority
from tests.support.servers.up import Up

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

JAVA = pytest.mark.java
TOPIC, READ_ONLY, FORBIDDEN, GROUP = "Allowed", "ReadOnly", "Forbidden", "readers"
ACCOUNTS = accounts_file(
    (f"{TOPIC}=PUB|SUB", f"{READ_ONLY}=SUB"),
    [f"{group}=SUB" for group in (GROUP, "spark-rocketmq", "pullers", "java-readers")],
    more=f"""
- accessKey: exact-account
  secretKey: exact-secret
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - {TOPIC}=PUB
  - RMQ_SYS_TRANS_HALF_TOPIC=PUB|SUB
  groupPerms:
  - TOOLS_CONSUMER=SUB
""",
)
EXACT = Credentials("exact-account", "exact-secret")
TIME_MS = int(SECONDS_MAX * 1000)


class Guarded:
    """Servers with accounts that speak TLS alone, and how to speak to them."""

    def __init__(self, servers: JavaPeer | Up, authority: Authority) -> None:
        self.authority = authority
        self.is_java = isinstance(servers, JavaPeer)
        self.name_server = f"127.0.0.1:{servers.namesrv_port}"
        self.broker = f"127.0.0.1:{servers.port}"
        self.tls = TlsSettings(ca=authority.ca)
        self.given: dict[str, Any] = {"credentials": WORKER, "tls": self.tls}

    @property
    def tls_options(self) -> dict[str, str]:
        """Those of Spark."""
        return {"tlsCaFile": str(self.authority.ca)}

    @property
    def java_options(self) -> tuple[str, ...]:
        """Those of a Java client that speaks TLS and believes the authority."""
        tls = {
            "enable": "true",
            "test.mode.enable": "false",
            "client.authServer": "true",
            "client.trustCertPath": self.authority.ca,
        }
        return tuple(f"-Dtls.{name}={value}" for name, value in tls.items())

    def sending(self, **more: Any) -> ProducerSettings:
        return ProducerSettings(**{**self.given, "send_timeout_ms": TIME_MS, **more})

    @asynccontextmanager
    async def admin(self, credentials: Credentials | None) -> AsyncIterator[Admin]:
        async with RemotingClient(credentials=credentials, tls=self.tls) as client:
            admin = Admin.on(Access(client, (self.name_server,)))
            admin.timeout_seconds = SECONDS_MAX
            yield admin


@contextmanager
def guarded_java(folder: Path, authority: Authority) -> Iterator[JavaPeer]:
    settings = ["aclEnable=true", *(f"{key}={value}" for key, value in QUICK_CHECKS.items())]
    options = authority.java_options()
    with JavaPeer(folder, settings=tuple(settings), options=options, accounts=ACCOUNTS) as peer:
        for port in (peer.namesrv_port, peer.port):
            authority.shake_hands(port)
        yield peer
        peer.kill()  # its orderly end takes seconds


@contextmanager
def guarded_up(folder: Path, authority: Authority) -> Iterator[Up]:
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    certificate, key = authority.files("127.0.0.1")
    settings = {
        "aclEnable": "true",
        "aclFile": accounts,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate,
        "tls.server.keyPath": key,
        **QUICK_CHECKS,
    }
    with Up(folder, settings=settings) as up:
        yield up


@pytest.fixture(scope="module", params=[guarded_up, pytest.param(guarded_java, marks=JAVA)])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    with request.param(tmp_path_factory.mktemp("guarded"), authority) as servers:
        made = Guarded(servers, authority)

        async def topics() -> None:
            async with made.admin(OPERATOR) as admin:
                for topic in (TOPIC, READ_ONLY, FORBIDDEN):
                    await admin.create_topic(topic, queues=4)

        asyncio.run(topics())
        yield made


@pytest.mark.parametrize("serialize_type", ["JSON", "ROCKETMQ"])
async def test_every_kind_of_send_is_taken(guarded: Guarded, serialize_type: str) -> None:
    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async def commit(message: Message) -> TransactionState:
        return TransactionState.COMMIT

    settings = guarded.sending(serialize_type=serialize_type)
    made = TransactionProducer("senders", guarded.name_server, check=check, settings=settings)
    async with made as producer:
        key = f"k-{serialize_type}"
        sent = await producer.send(Message(TOPIC, b"x", tags="a", keys=key))
        await producer.send(
            Message(TOPIC, "gr\u00fc\u00dfe \U0001f600".encode(), keys=f"{key}-\u00e9")
        )
        await producer.send(Message(TOPIC, b"large" * 20_000))
        await producer.send(Message(TOPIC, b"later", delay_level=1))
        await producer.send_batch([Message(TOPIC, b"b1"), Message(TOPIC, b"b2")])
        await producer.send_oneway(Message(TOPIC, b"o"))
        done = await producer.send_in_transaction(Message(TOPIC, b"t"), commit)
        assert done.state is TransactionState.COMMIT

        async def found() -> bool:
            return len(await producer.query_by_key(TOPIC, key)) == 1

        await until(found)
        assert (await producer.view_by_id(TOPIC, sent.message_id)).body == b"x"
        assert (await producer.view_by_id(TOPIC, sent.offset_message_id)).body == b"x"
        assert await producer.max_offset(sent.queue) > sent.queue_offset
        assert await producer.offset_by_time(sent.queue, 0) >= 0


@pytest.mark.parametrize("serialize_type", ["JSON", "ROCKETMQ"])
async def test_consumers_get_and_give_back_and_commit(
    guarded: Guarded, serialize_type: str
) -> None:
    seen: list[bytes] = []
    marker = f"again-{serialize_type}".encode()

    async def listen(message: MessageExt) -> ConsumeStatus:
        seen.append(message.body)
        is_first = message.body == marker and seen.count(marker) == 1
        return ConsumeStatus.RECONSUME_LATER if is_first else ConsumeStatus.CONSUME_SUCCESS

    settings = PushConsumerSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        delay_level_when_next_consume=1,
        serialize_type=serialize_type,
        **guarded.given,
    )
    consumer = PushConsumer(GROUP, guarded.name_server, settings=settings)
    consumer.subscribe_each(TOPIC, "*", listen)
    sending = guarded.sending(serialize_type=serialize_type)
    async with consumer, Producer("senders", guarded.name_server, settings=sending) as producer:
        await producer.send(Message(TOPIC, marker))
        await until(lambda: seen.count(marker) >= 2)
    assert seen.count(marker) == 2


async def test_requests_are_replied_to(guarded: Guarded) -> None:
    settings = PushConsumerSettings(**guarded.given)
    async with Producer("repliers", guarded.name_server, settings=guarded.sending()) as replier:

        async def listen(message: MessageExt) -> None:
            if message.tags == "ask":
                await replier.send(create_reply(message, message.body + b"!"))

        consumer = PushConsumer(GROUP, guarded.name_server, settings=settings)
        consumer.subscribe_each(TOPIC, "ask", listen)
        async with (
            consumer,
            Producer("askers", guarded.name_server, settings=guarded.sending()) as producer,
        ):
            await until(lambda: consumer.assigned_queues)
            reply = await producer.request(Message(TOPIC, b"x", tags="ask"), timeout_ms=TIME_MS)
    assert reply.body == b"x!"


def test_blocking_clients_and_both_loops_work(guarded: Guarded) -> None:
    settings = PullConsumerSettings(**guarded.given)
    with sync.Producer("senders", guarded.name_server, settings=guarded.sending()) as producer:
        sent = producer.send(Message(TOPIC, b"blocking"))
    with sync.PullConsumer("pullers", guarded.name_server, settings=settings) as consumer:
        pulled = consumer.pull(sent.queue, sent.queue_offset)
        assert pulled.status is PullStatus.FOUND
        assert pulled.messages[0].body == b"blocking"
        consumer.commit(sent.queue, sent.queue_offset + 1)

    async def main() -> None:
        async with PullConsumer("pullers", guarded.name_server, settings=settings) as again:
            assert (await again.pull(sent.queue, sent.queue_offset)).messages[0].body == b"blocking"
            assert await again.committed(sent.queue) == sent.queue_offset + 1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_spark_reads_with_an_account(guarded: Guarded) -> None:
    with sync.Producer("senders", guarded.name_server, settings=guarded.sending()) as producer:
        sent = producer.send(Message(TOPIC, b"spark"))
    given = {
        "nameServer": guarded.name_server,
        "subscribe": TOPIC,
        "accessKey": WORKER.access_key,
        "secretKey": WORKER.secret_key,
    }
    options = SourceOptions.parse(given | guarded.tls_options)
    connector = Connector(options.credentials, options.tls)
    with SparkCluster(options.name_servers, wait_seconds=60, connector=connector) as cluster:
        held = cluster.complete(options.topics)[sent.queue]
    puller = RangePuller(guarded.broker, options)
    try:
        pulled = list(puller.pull(QueueRange(sent.queue, held.minimum, held.maximum)))
    finally:
        puller.close()
    assert sum(each.offsets for each in pulled) == held.maximum - held.minimum
    assert b"spark" in b"".join(each.records for each in pulled)


def sink_options(guarded: Guarded, account: Credentials | None, **given: str) -> SinkOptions:
    named = {"nameServer": guarded.name_server, "topic": TOPIC, "sendTimeoutMs": str(TIME_MS)}
    if account is not None:
        named |= {"accessKey": account.access_key, "secretKey": account.secret_key}
    return SinkOptions.parse({**named, **guarded.tls_options} | given, is_stream=False)


def test_spark_writes_with_an_account(guarded: Guarded) -> None:
    rows = [pyarrow.record_batch({"body": ["a", "b"], "keys": ["k1", "k2"]})]
    assert sink_job.write_partition(sink_options(guarded, WORKER), rows).rows == 2
    with pytest.raises(SinkError, match=r"partition 0: row.*No accessKey is configured"):
        sink_job.write_partition(sink_options(guarded, None), rows)
    # RocketMQ 4.9 checks the topic of a send, and not that of a batch.
    alone = sink_options(guarded, WORKER, topic=READ_ONLY, batchBytes="1")
    with pytest.raises(SinkError, match=r"partition 0: row.*No default permission for .*ReadOnly"):
        sink_job.write_partition(alone, rows)


def test_spark_writes_exactly_once_with_an_account(guarded: Guarded, tmp_path: Path) -> None:
    place = {"transactionLocation": str(tmp_path), "transactionId": "guarded"}
    options = sink_options(guarded, EXACT, transactional="true", **place)
    rows = [pyarrow.record_batch({"body": ["exact"]})]
    settings = PullConsumerSettings(**guarded.given)

    def end_of_topic() -> int:
        with sync.PullConsumer("pullers", guarded.name_server, settings=settings) as consumer:
            return sum(map(consumer.max_offset, consumer.queues(TOPIC)))

    before = end_of_topic()
    message = sink_job.write_halves(options, "guarded", 0, 0, 0, rows)
    assert end_of_topic() == before
    for _ in range(2):
        sink_job.commit(options, [message], 0)
        assert end_of_topic() == before + 1


async def test_operators_need_an_account_that_may(guarded: Guarded) -> None:
    async with guarded.admin(OPERATOR) as admin:
        await admin.create_topic("Made", queues=2)
        assert "Made" in await admin.list_topics()
        assert len((await admin.describe_topic("Made")).queues) == 2
        assert (await admin.cluster_info()) is not None
        await admin.delete_topic("Made")
    async with guarded.admin(WORKER) as admin:
        with pytest.raises(AccessDeniedError, match="Need admin permission for request code=17"):
            await admin.create_topic("Other")


async def test_operators_make_change_and_delete_accounts(guarded: Guarded) -> None:
    settings = ClientSettings(credentials=OPERATOR, tls=guarded.tls)
    made = Account(
        access_key="made-account", secret_key="made-secret", topic_permissions=(f"{TOPIC}=PUB",)
    )
    theirs = Credentials(made.access_key, made.secret_key)
    async with Admin(guarded.name_server, settings=settings) as admin:
        [before] = await admin.acl_versions()
        assert before.address == guarded.broker
        assert any(path.endswith("plain_acl.yml") for path in before.files)
        assert await admin.put_account(made) == [guarded.broker]
        [after] = await admin.acl_versions(broker=guarded.broker)
        assert sum(each.counter for each in after.files.values()) > sum(
            each.counter for each in before.files.values()
        )
        sending = guarded.sending(credentials=theirs, retries=0)
        async with Producer("senders", guarded.name_server, settings=sending) as producer:
            await producer.send(Message(TOPIC, b"x"))
        addresses = ["10.10.10.10"]
        assert await admin.put_global_white_addresses(addresses) == [guarded.broker]
        assert await admin.delete_account(made.access_key) == [guarded.broker]
        with pytest.raises(AccountDeleteError, match="made-account"):
            await admin.delete_account(made.access_key)
        async with Producer("senders", guarded.name_server, settings=sending) as producer:

            async def is_refused() -> bool:
                try:
                    await producer.send(Message(TOPIC, b"x"))
                except AccessDeniedError as error:
                    return "No acl config for made-account" in str(error)
                return False

            # A Java broker that reads its file at the same moment has the account once more.
            assert guarded.is_java or await is_refused()
            await until(is_refused, what="the end of the account")


async def test_a_question_that_is_forbidden_is_no_answer(guarded: Guarded) -> None:
    settings = ClientSettings(credentials=Credentials("stranger", "any-secret"), tls=guarded.tls)
    async with Admin(guarded.name_server, settings=settings) as admin:
        for asked in (
            admin.producer_connections("senders", broker=guarded.broker),
            admin.broker_stats(guarded.broker, "TOPIC_PUT_NUMS", TOPIC),
            admin.reset_offsets("nobody", TOPIC, 0),
        ):
            with pytest.raises(AccessDeniedError):
                await asked


def test_the_command_line_takes_accounts_and_tls(guarded: Guarded) -> None:
    config = guarded.authority.folder / "tls.properties"
    config.write_text(f"tls.client.trustCertPath={guarded.authority.ca}\n")
    rocketmq = guarded.authority.folder / "rocketmq"
    (rocketmq / "conf").mkdir(parents=True, exist_ok=True)
    tools = rocketmq / "conf" / "tools.yml"
    tools.write_text(f"accessKey: {OPERATOR.access_key}\nsecretKey: {OPERATOR.secret_key}\n")
    options = ("-n", guarded.name_server, "--tls-config", config)
    made = kerolox("topic", "create", "ByTools", *options, ROCKETMQ_HOME=str(rocketmq))
    assert made.returncode == 0, made.stderr
    sent = kerolox(
        "send", TOPIC, "x", "--access-key", WORKER.access_key, *options,
        KEROLOX_SECRET_KEY=WORKER.secret_key,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    refused = kerolox("send", TOPIC, "x", *options)
    assert refused.returncode == 1
    assert "No accessKey is configured" in refused.stderr


@JAVA
def test_java_clients_work_with_an_account(guarded: Guarded) -> None:
    account = (WORKER.access_key, WORKER.secret_key)
    views = str(not guarded.is_java).lower()
    command = java_command(
        "interop.Signed", guarded.name_server, *account, TOPIC, FORBIDDEN, "java-readers", views,
        options=guarded.java_options,
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS_MAX)
    lines = [each for each in done.stdout.splitlines() if each.startswith(("done", "denied"))]
    assert len(lines) == 2, done.stdout + done.stderr
    assert lines[0] == "done"
    assert lines[1].startswith("denied 1 ")
    assert f"AclException: No default permission for topic:{FORBIDDEN}" in lines[1]


@JAVA
def test_java_tools_find_a_message_by_its_id_at_our_broker_only(
    guarded: Guarded, tmp_path: Path
) -> None:
    """They mark the query (``_UNIQUE_KEY_QUERY``) and sign the mark; a Java broker leaves it out of
    what it checks, so the signature is wrong."""
    with sync.Producer("senders", guarded.name_server, settings=guarded.sending()) as producer:
        sent = producer.send(Message(TOPIC, b"x", keys="by-id"))
        wait_until(lambda: producer.query_by_key(TOPIC, "by-id"), what="the message in the index")
    with MqAdminProcess(tmp_path, options=guarded.java_options) as mqadmin:
        keys = f"accessKey: {WORKER.access_key}\nsecretKey: {WORKER.secret_key}\n"
        (tmp_path / "conf" / "tools.yml").write_text(keys)
        asked = ("-n", guarded.name_server, "-t", TOPIC)
        by_id = mqadmin.ask("queryMsgByUniqueKey", *asked, "-i", sent.message_id)
        by_key = mqadmin.ask("queryMsgByKey", *asked, "-k", "by-id")
    for said in (by_id, by_key):
        assert (sent.message_id in said) is not guarded.is_java, said
        assert ("command failed" in said) is guarded.is_java, said


@pytest.mark.parametrize(
    ("credentials", "topic", "complaint"),
    [
        (None, TOPIC, "No accessKey is configured"),
        (Credentials("worker-account", "wrong-secret"), TOPIC, "Check signature failed"),
        (Credentials("stranger", "any-secret"), TOPIC, "No acl config for stranger"),
        (WORKER, FORBIDDEN, f"No default permission for .*{FORBIDDEN}"),
        (WORKER, READ_ONLY, f"No default permission for .*{READ_ONLY}"),
    ],
)
async def test_a_refused_send_says_why(
    guarded: Guarded, credentials: Credentials | None, topic: str, complaint: str
) -> None:
    settings = guarded.sending(credentials=credentials, retries=0)
    async with Producer("senders", guarded.name_server, settings=settings) as producer:
        with pytest.raises(AccessDeniedError, match=complaint) as caught:
            await producer.send(Message(topic, b"x"))
    assert caught.value.code == 1
    assert "secret" not in str(caught.value).replace("secret key", "")


async def test_without_tls_the_servers_hang_up(guarded: Guarded) -> None:
    settings = guarded.sending(tls=False, api_timeout_ms=TIME_MS)
    async with Producer("senders", guarded.name_server, settings=settings) as producer:
        with pytest.raises((ConnectError, ConnectionLostError), match="TLS only"):
            await producer.send(Message(TOPIC, b"x"))


def test_the_servers_can_be_asked_without_asyncio(guarded: Guarded) -> None:
    seen: list[bytes] = []
    settings = PushConsumerSettings(**guarded.given)
    consumer = sync.PushConsumer(GROUP, guarded.name_server, settings=settings)
    consumer.subscribe_each(TOPIC, "blocking", lambda message: seen.append(message.body))
    with (
        consumer,
        sync.Producer("senders", guarded.name_server, settings=guarded.sending()) as producer,
    ):
        wait_until(lambda: consumer.assigned_queues)
        producer.send(Message(TOPIC, b"y", tags="blocking"))
        wait_until(lambda: b"y" in seen)
