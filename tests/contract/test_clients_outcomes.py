"""What becomes of messages that listeners do not take, on our broker and on the Java broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client import Outcome, PullConsumer, PushConsumer, PushConsumerSettings
from kerolox.errors import KeroloxError
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Producer
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster


async def dead_letters(cluster: Cluster, group: str, count: int) -> list[MessageExt]:
    """The dead letters of a group, when there are so many."""
    found: list[MessageExt] = []
    async with PullConsumer(f"{group}-reader", cluster.name_server) as reader:

        async def are_there() -> bool:
            found.clear()
            try:
                for queue in await reader.queues(f"%DLQ%{group}"):
                    found.extend((await reader.pull(queue, 0)).messages)
            except KeroloxError:
                return False  # the topic is made with its first message
            return len(found) >= count

        await until(are_there, what=f"{count} dead letters")
    return found


async def test_a_message_is_acked_retried_after_a_delay_or_becomes_a_dead_letter(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    seen: list[tuple[bytes, int]] = []

    async def listen(message: MessageExt) -> Outcome | None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"later":
            return Outcome.ack() if message.reconsume_times else Outcome.nack(delay=1)
        if message.body == b"reason":
            return Outcome.dead_letter("no such customer")
        return Outcome.dead_letter() if message.body == b"plain" else None

    settings = PushConsumerSettings(consume_from_where=FIRST)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen)
    async with consumer:
        for body in (b"done", b"later", b"reason", b"plain"):
            await producer.send(Message(topic, body, keys=body.decode()))
        await until(lambda: len(seen) >= 5)
        letters = {m.body: m for m in await dead_letters(cluster, group, 2)}
    assert sorted(seen) == [
        (b"done", 0),
        (b"later", 0),
        (b"later", 1),
        (b"plain", 0),
        (b"reason", 0),
    ]
    assert letters.keys() == {b"plain", b"reason"}
    assert letters[b"reason"].properties["DEAD_LETTER_REASON"] == "no such customer"
    assert {m.properties["RETRY_TOPIC"] for m in letters.values()} == {topic}
    assert letters[b"reason"].keys == "reason"
