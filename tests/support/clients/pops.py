"""A member of a group that pops, as a client of RocketMQ 5 does over remoting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kerolox.message import MessageExt
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.pop import (
    BatchAck,
    BatchAckBody,
    PopReceipt,
    batches_from_texts,
)
from kerolox.protocol.pop_names import PopInitMode, TopicKind
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer

BROKER, GROUP = "broker-t", "workers"
INVISIBLE_MS = 60_000


@dataclass(frozen=True)
class PoppedMessage:
    """One message, and what its acknowledgement says."""

    message: MessageExt
    receipt: PopReceipt
    topic: str
    """The queue's own."""

    @property
    def text(self) -> str:
        return self.message.body.decode()


def popped_messages(answer: RemotingCommand, topic: str, group: str) -> list[PoppedMessage]:
    """What a client makes of an answer: receipts from its texts alone."""
    fields = answer.ext_fields
    batches = batches_from_texts(
        fields.get("startOffsetInfo", ""),
        fields.get("msgOffsetInfo", ""),
        fields.get("orderCountInfo", ""),
    )
    places = [(batch, offset) for batch in batches for offset in batch.offsets]
    messages = decode_records(answer.body)
    assert len(messages) == len(places)
    return [
        PoppedMessage(
            message,
            PopReceipt(
                start_offset=batch.start_offset,
                pop_time=int(fields["popTime"]),
                invisible_time=int(fields["invisibleTime"]),
                revive_queue_id=int(fields["reviveQid"]),
                kind=batch.kind,
                broker_name=BROKER,
                queue_id=batch.queue_id,
                queue_offset=offset,
            ),
            batch.kind.topic(topic, group),
        )
        for message, (batch, offset) in zip(messages, places, strict=True)
    ]


class Member:
    """Pops a topic for a group."""

    def __init__(self, peer: Peer, topic: str = "T", group: str = GROUP) -> None:
        self.peer = peer
        self.topic = topic
        self.group = group
        self.invisible_ms = INVISIBLE_MS
        self.init_mode = PopInitMode.MIN
        self.is_order = False

    async def ask(self, count: int = 32, *, poll_ms: int = 0, **more: object) -> RemotingCommand:
        fields = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": count,
            "invisibleTime": self.invisible_ms,
            "pollTime": poll_ms,
            "bornTime": 0,
            "initMode": int(self.init_mode),
            "order": str(self.is_order).lower(),
            **more,
        }
        return await self.peer.ask(RequestCode.POP_MESSAGE, fields)

    async def pop(self, count: int = 32, **more: object) -> list[PoppedMessage]:
        """Messages; none where the broker has none."""
        answer = await self.ask(count, **more)
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return popped_messages(answer, self.topic, self.group)

    async def drain(self, rounds: int = 20, **more: object) -> list[PoppedMessage]:
        """All that can be had now."""
        found: list[PoppedMessage] = []
        for _ in range(rounds):
            got = await self.pop(**more)
            if not got:
                return found
            found += got
        raise AssertionError(f"after {rounds} pops there is still more: {len(found)}")

    def _fields(self, popped: PoppedMessage, **more: object) -> dict[str, object]:
        receipt = popped.receipt
        return {
            "consumerGroup": self.group,
            "topic": popped.topic,
            "queueId": receipt.queue_id,
            "extraInfo": receipt.text,
            "offset": receipt.queue_offset,
            **more,
        }

    async def ack(self, popped: PoppedMessage, **more: object) -> RemotingCommand:
        return await self.peer.ask(RequestCode.ACK_MESSAGE, self._fields(popped, **more))

    async def ack_all(self, popped: Iterable[PoppedMessage]) -> None:
        for each in popped:
            answer = await self.ack(each)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def change(
        self, popped: PoppedMessage, milliseconds: int, **more: object
    ) -> RemotingCommand:
        fields = self._fields(popped, invisibleTime=milliseconds, **more)
        return await self.peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    async def ack_together(self, popped: Sequence[PoppedMessage]) -> RemotingCommand:
        """In one request, as a client gathers them: by pop and queue."""
        gathered: dict[tuple[object, ...], list[PopReceipt]] = {}
        for each in popped:
            at = each.receipt
            key = at.kind, at.queue_id, at.start_offset, at.pop_time
            gathered.setdefault(key, []).append(at)
        acks = [
            BatchAck(
                b=BatchAck.bits(first.start_offset, [each.queue_offset for each in receipts]),
                c=self.group,
                it=first.invisible_time,
                pt=first.pop_time,
                q=first.queue_id,
                r=_RETRY[first.kind],
                rq=first.revive_queue_id,
                so=first.start_offset,
                t=self.topic,
            )
            for receipts in gathered.values()
            for first in receipts[:1]
        ]
        body = BatchAckBody(acks=acks, broker_name=BROKER).encode()
        return await self.peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)

    async def notified(self, *, poll_ms: int = 0, **more: object) -> RemotingCommand:
        fields = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "pollTime": poll_ms,
            "bornTime": 0,
            "order": str(self.is_order).lower(),
            **more,
        }
        return await self.peer.ask(RequestCode.NOTIFICATION, fields)


_RETRY: dict[TopicKind, Literal["0", "1", "2"]] = {
    TopicKind.NORMAL: "0",
    TopicKind.RETRY_V1: "1",
    TopicKind.RETRY_V2: "2",
}
