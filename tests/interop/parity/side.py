"""One of the two clusters that mqadmin is run at: the same state in both."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.admin.sync import Admin
from kerolox.client import ProducerSettings, PushConsumerSettings
from kerolox.client.sync import Producer, PullConsumer, PushConsumer
from kerolox.message import ConsumeFromWhere, Message, MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection
from tests.interop.mqadmin import MqAdminProcess
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BROKER_NAME",
    "CLUSTER",
    "MONITOR",
    "OFFLINE",
    "ONLINE",
    "PRODUCERS",
    "READING",
    "SINGLE",
    "STALE",
    "TOPIC",
    "UNUSED",
    "Side",
    "sides",
]

BROKER_NAME, CLUSTER = "broker-a", "DefaultCluster"
TOPIC, QUEUES, SINGLE, STALE = "Parity", 4, "ParitySingle", "ParityStale"
"""Four queues; one queue; its messages are gone with the beginning of the log."""
UNUSED = "ParityUnused"
"""The same, and it is no topic any more."""
ONLINE, OFFLINE = "parity-online", "parity-offline"
READING = "parity-reading"
PRODUCERS = "parity-producers"
MONITOR = "__MONITOR_CONSUMER"
"""Group of startMonitoring."""
TOOLS = "TOOLS_CONSUMER"
"""Group of the commands that read messages."""
TRACES = "RMQ_SYS_TRACE_TOPIC"
BIG, BIG_COUNT = "ParityBig", 4
"""Its messages fill the first file of the log."""

LOG_BYTES, QUEUE_BYTES = 1024 * 1024, 20_000
SETTINGS: dict[str, object] = {
    "brokerName": BROKER_NAME,
    "brokerClusterName": CLUSTER,
    "brokerIP2": "127.0.0.1",
    "aclEnable": "true",
    "traceTopicEnable": "true",
    "mappedFileSizeCommitLog": LOG_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_BYTES,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    # A machine that is busy with other tests is no reason to refuse a send.
    "waitTimeMillsInSendQueue": 10_000,
    "cleanResourceInterval": 200,
    "registerNameServerPeriod": 60_000,
    # The first check makes a topic.
    "transactionCheckInterval": 3_600_000,
    "osPageCacheBusyTimeOutMills": 10_000,
}
ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""
"""All that comes from this machine is let in: some commands sign only a part of what they ask."""
CREDENTIALS = "accessKey: operator\nsecretKey: operator-secret\n"

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET

SENT_EARLY, SENT_LATE = 6, 4
"""Messages of the first queue, before and after the time that offsets are set back to."""


@dataclass
class Side:
    """A cluster, an mqadmin process of its own, and what is known of both."""

    kind: str
    """``ours`` or ``java``."""
    namesrv: str
    broker: str
    folder: Path
    """Of its files."""
    accounts: Path
    mqadmin: MqAdminProcess
    admin: Admin
    names: dict[str, str] = field(default_factory=dict)
    """What commands are told of: ids, times."""
    got: list[MessageExt] = field(default_factory=list)
    """What the group that is online was given."""
    mark: int = 0
    """How much of it was there before the case that runs."""

    def __post_init__(self) -> None:
        self.tell(broker=self.broker, namesrv=self.namesrv)
        self.tell(home=self.home, accounts=self.accounts)

    @property
    def home(self) -> Path:
        """Where its mqadmin runs."""
        return self.mqadmin.home

    @property
    def store(self) -> Path:
        """The broker's."""
        return self.folder / "store"

    def tell(self, **names: object) -> None:
        self.names |= {name: str(value) for name, value in names.items()}

    def shown(self, topic: str, wanted: int) -> int:
        """How many messages a topic has, at least so many: a Java broker shows them a little after
        it acknowledged them."""

        def count() -> int:
            return sum(each.max_offset for each in self.admin.describe_topic(topic).queues)

        wait_until(lambda: count() >= wanted, what=f"{wanted} messages of {topic}")
        return count()

    def offsets(self, group: str) -> list[int | None]:
        """What a group has committed of each queue of the topic; None: nothing."""
        with BlockingConnection(self.broker) as connection:
            return [self._offset(connection, group, queue_id) for queue_id in range(QUEUES)]

    @staticmethod
    def _offset(connection: BlockingConnection, group: str, queue_id: int) -> int | None:
        fields = {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id)}
        asked = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        answer = connection.invoke(asked, SECONDS_MAX)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.ext_fields["offset"])


def lay_out(store: Path) -> None:
    """A store whose log has lost its first file, with two queues of that file's messages."""
    (store / "commitlog").mkdir(parents=True)
    with (store / "commitlog" / f"{LOG_BYTES:020}").open("wb") as log:
        log.truncate(LOG_BYTES)
    for topic in (STALE, UNUSED):
        folder = store / "consumequeue" / topic / "0"
        folder.mkdir(parents=True)
        with (folder / f"{0:020}").open("wb") as queue:
            queue.write((100).to_bytes(8) + (200).to_bytes(4) + (0).to_bytes(8))
            queue.truncate(QUEUE_BYTES)


@contextlib.contextmanager
def sides(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Both clusters, started side by side."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        made = (our_side(folder / "ours"), java_side(folder / "java"))
        ours, java = pool.map(stack.enter_context, made)
        yield ours, java


@contextlib.contextmanager
def our_side(folder: Path) -> Iterator[Side]:
    """``kerolox up``."""
    lay_out(folder / "store")
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    up = Up(folder, settings={**SETTINGS, "aclFile": accounts})
    with (
        up,
        tools(folder) as mqadmin,
        Admin(up.namesrv, timeout_seconds=SECONDS_MAX) as admin,
        state(Side("ours", up.namesrv, up.broker, folder, accounts, mqadmin, admin)) as side,
    ):
        yield side


@contextlib.contextmanager
def java_side(folder: Path) -> Iterator[Side]:
    """The Java name server and broker."""
    lay_out(folder / "store")
    lines = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    peer = JavaPeer(folder, settings=lines, accounts=ACCOUNTS)
    accounts = folder / "home" / "conf" / "plain_acl.yml"
    namesrv, broker = (f"127.0.0.1:{port}" for port in (peer.namesrv_port, peer.port))
    with (
        peer,
        tools(folder) as mqadmin,
        Admin(namesrv, timeout_seconds=SECONDS_MAX) as admin,
        state(Side("java", namesrv, broker, folder, accounts, mqadmin, admin)) as side,
    ):
        yield side


def tools(folder: Path) -> MqAdminProcess:
    """mqadmin in a home of its own, which signs, and logs what its monitor finds."""
    home = folder / "mqadmin"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(CREDENTIALS)
    return MqAdminProcess(home, options=("-Drocketmq.client.logLevel=INFO",))


@contextlib.contextmanager
def state(side: Side) -> Iterator[Side]:
    """Topics with messages, a group that is online and one that is not, and a producer."""
    for topic, queues in ((TOPIC, QUEUES), (SINGLE, 1), (STALE, 1)):
        side.admin.create_topic(topic, queues=queues)
    side.admin.create_topic(BIG, queues=1)
    for group in (ONLINE, OFFLINE, READING, TOOLS, MONITOR):
        # Some clients live too short for a heartbeat, which would make these, or just long enough.
        side.admin.create_topic(f"%RETRY%{group}", queues=1)
        side.admin.update_group(group)
    settings = ProducerSettings(api_timeout_ms=60_000)
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(Producer(PRODUCERS, side.namesrv, settings=settings))
        queue = MessageQueue(TOPIC, BROKER_NAME, 0)
        sent = [
            producer.send(
                Message(TOPIC, f"early {n}".encode(), tags="early", keys=f"key-{n}"), queue=queue
            )
            for n in range(SENT_EARLY)
        ]
        side.shown(TOPIC, SENT_EARLY)
        early = side.admin.message_at(queue, SENT_EARLY - 1)
        wait_until(lambda: time.time() * 1000 > early.store_timestamp + 5, what="a later time")
        side.tell(between=early.store_timestamp + 2, first=sent[0].offset_message_id)
        side.tell(unique=sent[0].message_id, second=sent[1].offset_message_id)
        for n in range(SENT_LATE):
            producer.send(Message(TOPIC, f"late {n}".encode(), tags="late"), queue=queue)
        single = producer.send(Message(SINGLE, b"single", keys="single"))
        side.tell(
            single=single.offset_message_id,
            missing=single.offset_message_id[:16] + "0000000000FFFFFF",
        )
        traced = ProducerSettings(api_timeout_ms=60_000, enable_trace=True)
        with Producer("parity-traced", side.namesrv, settings=traced) as tracing:
            side.tell(traced=tracing.send(Message(SINGLE, b"traced")).message_id)
        side.shown(TRACES, 1)
        for _ in range(BIG_COUNT):
            producer.send(Message(BIG, os.urandom(LOG_BYTES // BIG_COUNT)))
        side.shown(BIG, BIG_COUNT)
        with PullConsumer(OFFLINE, side.namesrv) as pulling:
            pulling.pull(queue, 0)
            for queue_id, offset in enumerate((8, 0, 0, 0)):
                pulling.commit(MessageQueue(TOPIC, BROKER_NAME, queue_id), offset)
        got = side.got
        reading = PushConsumerSettings(consume_from_where=FIRST)
        consumer = PushConsumer(ONLINE, side.namesrv, settings=reading)
        consumer.subscribe(TOPIC, "*", got.extend)
        stack.enter_context(consumer)
        count = SENT_EARLY + SENT_LATE
        wait_until(lambda: len(got) == count, what="all messages")
        wait_until(lambda: side.offsets(ONLINE) == [count, 0, 0, 0], what="the commit of all")
        wait_until(
            lambda: PRODUCERS in {each.group for each in side.admin.all_producers(side.broker)},
            what="the first heartbeat",
        )

        def has_figures() -> bool:
            # clusterList stumbles over a Java broker of ten seconds, which has no rates yet.
            found = side.admin.broker_runtime(side.broker).values
            return found["dispatchBehindBytes"] == "0" and bool(found["putTps"].strip())

        wait_until(has_figures, what="the index, and the first rates")
        side.tell(client=consumer.client_id)
        yield side
