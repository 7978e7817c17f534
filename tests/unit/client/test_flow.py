"""Flow control of queues, topics and the whole consumer; which node is asked."""

from __future__ import annotations

import pytest

from kerolox.client.core.consuming.flow import FlowControl, FlowLimits, Hold
from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.errors import ConfigError
from kerolox.protocol.codes import PullSysFlag
from kerolox.protocol.fastjson import dumps
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import PULL, Consumer, QueueBroker, route_body
from tests.unit.client.test_schedules import message
from tests.unit.client.test_suggested_node import SuggestingBroker, offsets_of_pulls

LIMITS = FlowLimits(1_000, 100, 2_000, -1, -1, -1, -1)


def test_beyond_a_limit_in_all_only_a_queue_that_has_nothing_is_pulled() -> None:
    flow = FlowControl(LIMITS._replace(all_count=3))
    full, empty = flow.process_queue("A"), flow.process_queue("B")
    full.put([message(offset) for offset in range(3)])
    assert flow.hold("A", full) is None
    full.put([message(3)])
    hold = flow.hold("A", full)
    assert hold is not None
    assert hold.reason == "4 messages in all are cached; the limit is 3"
    assert not hold.is_own
    assert flow.hold("B", empty) is None
    empty.put([message(0)])
    assert flow.hold("B", empty) is not None
    full.drop()
    assert flow.hold("B", empty) is None
    assert flow.everything.messages == 1


def test_the_limit_of_a_topic_is_for_its_queues_together() -> None:
    flow = FlowControl(LIMITS._replace(topic_count=1))
    one, two, other = (flow.process_queue(topic) for topic in "AAB")
    for queue in (one, two, other):
        queue.put([message(0)])
    hold = flow.hold("A", one)
    assert hold is not None
    assert hold.reason == "2 messages of topic A are cached; the limit is 1"
    assert flow.hold("B", other) is None
    one.remove([message(0)])
    assert flow.hold("A", two) is None


def test_bytes_are_limited_by_whole_mib_and_what_is_in_order_has_no_span() -> None:
    flow = FlowControl(LIMITS._replace(all_mib=0, queue_span=10))
    queue = flow.process_queue("A")
    queue.put([message(0), message(50)])
    assert flow.hold("A", queue) is not None
    assert flow.hold("A", queue, is_ordered=True) is None
    big = message(60)
    big.body = bytes(1024 * 1024)
    queue.put([big])
    hold = flow.hold("A", queue, is_ordered=True)
    assert hold is not None
    assert "in all are cached; the limit is 0 MiB" in hold.reason


@pytest.mark.parametrize("name", ["cached_messages_in_all_max", "cached_mib_per_topic_max"])
def test_a_limit_is_at_least_one_or_none_at_all(name: str) -> None:
    settings = Consumer(QueueBrokerStub(), **{name: -1}).settings  # type: ignore[arg-type]
    assert getattr(settings, name) == -1
    with pytest.raises(ConfigError, match=name):
        settings.changed(**{name: 0})


class QueueBrokerStub:
    address = "127.0.0.1:1"


async def test_a_consumer_has_at_most_its_limit_and_one_pull_for_each_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: set[int] = set()
    hold = FlowControl.hold

    def noted(self: FlowControl, topic: str, queue: ProcessQueue, **named: bool) -> Hold | None:
        found = hold(self, topic, queue, **named)
        if found is not None:
            held.add(id(queue))
        return found

    monkeypatch.setattr(FlowControl, "hold", noted)
    async with QueueBroker(count=200) as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=10)
        consumer = Consumer(broker, cached_messages_in_all_max=30, pull_batch_size=10)
        consumer.gate.clear()
        async with consumer:
            assert consumer._parts is not None
            flow = consumer._parts.pulling.flow
            # A queue that is held has no pull, and nothing leaves a queue before the gate opens.
            await until(lambda: len(held) == 10)
            assert 100 <= flow.everything.messages <= 30 + 10 * 10
            consumer.gate.set()
            await until(lambda: len(consumer.got) == 2_000)
        assert flow.everything.messages == 0


async def test_only_a_master_is_given_offsets_and_is_asked_when_the_other_is_silent() -> None:
    async with SuggestingBroker(100, 1) as master, SuggestingBroker(100, 1) as slave:
        addresses = {0: master.address, 1: slave.address}
        master.routes["T"] = dumps(
            {
                "brokerDatas": [{"brokerAddrs": addresses, "brokerName": "a", "cluster": "c"}],
                "queueDatas": [
                    {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
                ],
            }
        )
        async with Consumer(master, pull_batch_size=20) as consumer:
            await until(lambda: len(offsets_of_pulls(slave)) == 5)
            flags = [PullSysFlag(int(c.ext_fields["sysFlag"])) for c in slave.seen[PULL]]
            assert not any(flag & PullSysFlag.COMMIT_OFFSET for flag in flags)
            await until(lambda: len(consumer.got) == 100)
            asked = len(offsets_of_pulls(master))
            await slave.server.stop()
            await until(lambda: len(offsets_of_pulls(master)) > asked)
            master.add(1)
            await until(lambda: len(consumer.got) == 101)
