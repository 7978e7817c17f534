"""A broker for tests: real, on a free port, alone, and with a clock that they turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import kerolox
from kerolox import (
    Credentials,
    Message,
    MessageExt,
    PushConsumerSettings,
    TlsSettings,
    TransactionState,
)
from kerolox.addresses import split_address
from kerolox.broker.ports import VIP_PORT_DISTANCE
from kerolox.client import sync
from kerolox.errors import AccessDeniedError, ConfigError, KeroloxError, TopicRouteNotFoundError
from kerolox.testing import LocalBroker
from tests.support.eventually import until, wait_until
from tests.support.kernels import KERNELS

pytestmark = pytest.mark.xdist_group("local-broker")
FIRST = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")


@pytest.fixture(scope="module", params=KERNELS)
def shared(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    with LocalBroker(kernel=request.param) as broker:
        yield broker


@pytest.fixture(scope="module", params=KERNELS)
def producing(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[LocalBroker, sync.Producer]]:
    with (
        LocalBroker(kernel=request.param) as broker,
        sync.Producer("shop", broker.name_server) as producer,
    ):
        yield broker, producer


def bodies(broker: LocalBroker, topic: str, count: int = 0) -> list[bytes]:
    return [bytes(message.body) for message in broker.messages(topic, count=count)]


# -- messages -----------------------------------------------------------------------------------
def test_blocking_clients_send_and_the_test_sees_what_is_stored(
    producing: tuple[LocalBroker, sync.Producer],
) -> None:
    broker, producer = producing
    topic = broker.create_topic()
    for number in range(40):
        producer.send(Message(topic, b"%d" % number))
    assert bodies(broker, topic) == [b"%d" % number for number in range(40)]
    assert len({message.queue_id for message in broker.messages(topic)}) == 4


async def test_asyncio_clients_of_the_test_s_loop_use_it(shared: LocalBroker) -> None:
    topic, got = shared.create_topic(queues=1), []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(messages)

    consumer = kerolox.PushConsumer("readers", shared.name_server, settings=FIRST)
    consumer.subscribe(topic, "*", listen)
    async with consumer, kerolox.Producer("shop", shared.name_server) as producer:
        await producer.send(Message(topic, b"hello"))
        await until(lambda: got, what="the message")


async def test_it_is_an_asynchronous_context_manager_too() -> None:
    async with LocalBroker() as broker, kerolox.Producer("shop", broker.name_server) as producer:
        await producer.send(Message("Orders", b"hello"))
        waiting = asyncio.to_thread(broker.messages, "Orders", count=2)
        found, _ = await asyncio.gather(waiting, producer.send(Message("Orders", b"again")))
        assert [message.body for message in found] == [b"hello", b"again"]


def test_a_topic_that_is_not_there_has_no_messages(shared: LocalBroker) -> None:
    assert shared.messages("nothing") == []
    with pytest.raises(KeroloxError, match="0 messages after 0 s, not 3"):
        shared.messages("nothing", count=3, timeout_seconds=0)


def test_each_topic_that_is_created_is_a_new_one(shared: LocalBroker) -> None:
    assert shared.create_topic() != shared.create_topic()
    assert shared.create_topic("named") == "named"


# -- the clock ----------------------------------------------------------------------------------
def test_a_delayed_message_is_delivered_when_the_clock_says_so(
    producing: tuple[LocalBroker, sync.Producer],
) -> None:
    broker, producer = producing
    topic = broker.create_topic()
    for _ in range(2):  # what is sent after a turn waits as long as what was sent before it
        before = len(broker.messages(topic))
        producer.send(Message(topic, b"in two hours", delay_level=18))
        broker.advance(minutes=119)
        assert len(broker.messages(topic)) == before
        broker.advance(minutes=2)
        assert len(broker.messages(topic)) == before + 1


def test_records_get_the_time_of_the_turned_clock(
    producing: tuple[LocalBroker, sync.Producer],
) -> None:
    broker, producer = producing
    topic = broker.create_topic()
    producer.send(Message(topic, b"now"))
    broker.advance(hours=1)
    producer.send(Message(topic, b"in an hour"))
    first, second = broker.messages(topic)
    assert second.store_timestamp - first.store_timestamp >= 3_600_000


def test_producers_are_asked_about_open_transactions(shared: LocalBroker) -> None:
    asked: list[MessageExt] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT

    topic = shared.create_topic()
    with sync.TransactionProducer("cashier", shared.name_server, check=check) as producer:
        producer.send_in_transaction(Message(topic, b"paid"), lambda _: TransactionState.UNKNOWN)
        assert shared.messages(topic) == []
        shared.advance(minutes=1)
        assert bodies(shared, topic, count=1) == [b"paid"]
    assert [message.body for message in asked] == [b"paid"]


def test_consumers_stay_members_whatever_time_passes(shared: LocalBroker) -> None:
    topic, got = shared.create_topic(), list[MessageExt]()
    consumer = sync.PushConsumer("stayers", shared.name_server, settings=FIRST)
    consumer.subscribe(topic, "*", got.extend)
    with consumer, sync.Producer("shop", shared.name_server) as producer:
        shared.advance(days=1)
        up = shared._up.broker
        up.parts.tables.clients.expire()
        assert up.parts.tables.clients.group("stayers") is not None
        producer.send(Message(topic, b"hello"))
        wait_until(lambda: got, what="the message")


def test_locks_live_as_long_as_they_would_have_lived(shared: LocalBroker) -> None:
    locks = shared._up.broker.parts.tables.locks
    queue = kerolox.MessageQueue("T", "broker-test", 0)
    assert locks.lock("orderly", [queue], "first") == [queue]
    shared.advance(hours=1)
    assert locks.lock("orderly", [queue], "second") == []


def test_expired_files_are_deleted_at_once(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": "1048576", "maxMessageSize": "65536"}
    with (
        LocalBroker(settings=settings) as broker,
        sync.Producer("shop", broker.name_server) as producer,
    ):
        topic = broker.create_topic(queues=1)
        for _ in range(40):
            producer.send(Message(topic, os.urandom(60_000)), timeout_ms=60_000)
        assert len(broker.messages(topic)) == 40
        broker.advance(hours=71)
        assert len(broker.messages(topic)) == 40
        broker.advance(hours=2)
        assert 0 < len(broker.messages(topic)) < 40


def test_the_clock_goes_ahead_only(shared: LocalBroker) -> None:
    with pytest.raises(ConfigError, match="turned back"):
        shared.advance(seconds=-1)


# -- life ---------------------------------------------------------------------------------------
def test_a_restart_keeps_address_messages_and_clients(
    producing: tuple[LocalBroker, sync.Producer],
) -> None:
    broker, producer = producing
    topic, address = broker.create_topic(), broker.address
    producer.send(Message(topic, b"before"))
    broker.restart()
    assert broker.address == address
    producer.send(Message(topic, b"after"), timeout_ms=60_000)
    assert bodies(broker, topic) == [b"before", b"after"]


def test_a_restart_needs_no_port_that_the_start_did_not_need() -> None:
    with LocalBroker() as broker, socket.socket() as other:
        host, port = split_address(broker.address)
        # An error: somebody has it already.
        with contextlib.suppress(OSError):
            other.bind((host, port + VIP_PORT_DISTANCE))
            other.listen()
        broker.restart()


def test_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broker = LocalBroker()
    broker.close()
    assert not list(tmp_path.iterdir())
    with broker:
        assert list(tmp_path.iterdir())
        assert broker.name_server in repr(broker)
    broker.close()
    assert not list(tmp_path.iterdir())
    assert repr(broker) == "<LocalBroker not running>"
    with pytest.raises(KeroloxError, match="with statement"):
        broker.messages("Orders")


def test_a_folder_that_is_given_stays_and_is_read_again(tmp_path: Path) -> None:
    for count in (1, 2):
        with (
            LocalBroker(folder=tmp_path) as broker,
            sync.Producer("shop", broker.name_server) as producer,
        ):
            producer.send(Message("Orders", b"hello"))
            assert len(broker.messages("Orders")) == count


def test_settings_are_those_of_broker_conf(tmp_path: Path) -> None:
    settings = {"autoCreateTopicEnable": "false", "messageDelayLevel": "1s 7s"}
    with (
        LocalBroker(settings=settings) as broker,
        sync.Producer("shop", broker.name_server) as producer,
    ):
        with pytest.raises(TopicRouteNotFoundError):
            producer.send(Message("Orders", b"hello"))
        topic = broker.create_topic()
        producer.send(Message(topic, b"later", delay_level=2))
        broker.advance(seconds=8)
        assert bodies(broker, topic) == [b"later"]
    with pytest.raises(ConfigError, match="autoCreateTopicEnable"):
        LocalBroker(settings={"autoCreateTopic": "false"})


def test_a_broker_that_demands_tls_is_asked_with_it() -> None:
    enforcing = {"tls.server.mode": "enforcing"}
    settings = sync.ProducerSettings(tls=TlsSettings(verify=False))
    with LocalBroker(settings=enforcing) as broker:
        topic = broker.create_topic()
        with sync.Producer("p", broker.name_server, settings=settings) as producer:
            producer.send(Message(topic, b"x"))
        assert [each.body for each in broker.messages(topic, count=1)] == [b"x"]


def test_a_broker_that_demands_accounts_is_asked_with_an_operators(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n- accessKey: operator\n  secretKey: operator-secret\n  admin: true\n"
        "- accessKey: stranger\n  secretKey: stranger-secret\n  defaultTopicPerm: DENY\n"
    )
    settings = {"aclEnable": "true", "aclFile": str(accounts)}
    with LocalBroker(
        settings=settings, credentials=Credentials("operator", "operator-secret")
    ) as it:
        topic = it.create_topic()
        stranger = sync.ProducerSettings(
            credentials=Credentials("stranger", "stranger-secret"), retries=0
        )
        with (
            sync.Producer("p", it.name_server, settings=stranger) as producer,
            pytest.raises(AccessDeniedError, match="No default permission"),
        ):
            producer.send(Message(topic, b"x"))
        assert it.messages(topic) == []
