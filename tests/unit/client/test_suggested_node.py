"""Pulls go to the master until it suggests another node, and back when that one says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.message import MessageQueue
from kerolox.protocol.fastjson import dumps
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import PULL, Consumer, QueueBroker

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand


class SuggestingBroker(QueueBroker):
    """Suggests a node with every answer."""

    def __init__(self, count: int, suggested: int) -> None:
        super().__init__(count)
        self.suggested = suggested

    def answer(
        self, command: RemotingCommand, code: int, following: int, end: int, body: bytes = b""
    ) -> RemotingCommand:
        answer = super().answer(command, code, following, end, body)
        answer.ext_fields["suggestWhichBrokerId"] = str(self.suggested)
        return answer


def offsets_of_pulls(broker: QueueBroker) -> list[int]:
    pulls = [command.ext_fields for command in broker.seen[PULL]]
    return [int(fields["queueOffset"]) for fields in pulls if fields["topic"] == "T"]


async def test_the_next_pull_goes_where_the_answer_says() -> None:
    async with SuggestingBroker(100, 1) as master, SuggestingBroker(100, 0) as slave:
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
            await until(lambda: len(consumer.got) == 100)
            assert consumer.assigned_queues == [MessageQueue("T", "a", 0)]
        assert offsets_of_pulls(master)[:3] == [0, 40, 80]
        assert offsets_of_pulls(slave)[:2] == [20, 60]
