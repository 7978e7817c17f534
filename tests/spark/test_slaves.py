"""A RocketMQ master and its slave as a source: ``KEROLOX_SOFTWARE=all`` runs it."""

import pytest

from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.spark.network.pull import RangePuller
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import QueueRange
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import Sent, Topics
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL
from tests.support.servers.clusters import JavaPeer

TOPIC = "Orders"
TOTAL = 20_000

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(not RUNS_ALL, reason="two Java brokers; KEROLOX_SOFTWARE=all runs it"),
]


def end_of(broker: JavaPeer) -> int:
    """Of queue 0 of the topic."""
    asked = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    with PatientConnection(f"127.0.0.1:{broker.port}") as connection:
        return int(connection.invoke(asked).ext_fields.get("offset", "0"))


def test_a_task_reads_on_from_a_java_slave_when_its_master_dies(tmp_path):
    # The name server is the slave's, and it hears of the master when it registers once more.
    role = "brokerRole=SLAVE", "brokerId=1", "registerNameServerPeriod=10000"
    with JavaPeer(tmp_path / "slave", settings=role) as slave:
        name_server = f"127.0.0.1:{slave.namesrv_port}"
        known = (f"namesrvAddr={name_server}",)
        with JavaPeer(tmp_path / "master", settings=known, with_namesrv=False) as master:
            topics = Topics(name_server, f"127.0.0.1:{master.port}")
            topics.create(TOPIC, queues=1)
            topics.send(TOPIC, [Sent(b"%d" % number) for number in range(TOTAL)])
            wait_until(lambda: end_of(slave) == TOTAL, what="a slave that has all")
            given = {"nameServer": name_server, "subscribe": TOPIC, "readFromSlaves": "true"}
            puller = RangePuller(topics.broker, SourceOptions.parse(given))
            read: list[int] = []
            for pulled in puller.pull(QueueRange(MessageQueue(TOPIC, "broker-a", 0), 0, TOTAL)):
                read += [int(record.body) for record in decode_records(pulled.records)]
                if len(read) >= TOTAL // 2:
                    master.kill()
            puller.close()
            assert sorted(read) == list(range(TOTAL))
