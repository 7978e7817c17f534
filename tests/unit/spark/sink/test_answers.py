"""Answers of brokers to tasks and drivers of the sink: those that were asked for, and no others."""

from __future__ import annotations

import itertools

from kerolox.client.core.sending.send import OutgoingMessage, SendHeader
from kerolox.errors import RequestTimeoutError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.half_messages import HalfSelection
from kerolox.spark.network.connecting import Connector
from kerolox.spark.sink import broker_sender
from kerolox.spark.sink.broker_sender import BrokerSender, RowBatch
from kerolox.spark.sink.transactions.half_queue import HalfQueue
from tests.support.servers.threaded_broker import ThreadedBroker, record


def stray(request: RemotingCommand, code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    """An answer to a request that nobody has made."""
    answer = request.response(code, "nobody asked")
    answer.opaque = request.opaque + 1_000_000
    return answer


def row_batch() -> RowBatch:
    message = OutgoingMessage("t", b"body", "", 0, 0, "")
    return RowBatch(message, MessageQueue("t", "b", 0), (0, 0), 1, is_fixed=False)


def test_answers_that_nobody_asked_for_make_no_sender_wait_on(monkeypatch):
    monkeypatch.setattr(broker_sender, "ANSWER_SECONDS_MAX", 0.2)
    with ThreadedBroker(lambda request: itertools.repeat(stray(request))) as broker:
        lane = BrokerSender(
            "b",
            Connector(),
            lambda *_: broker.address,
            SendHeader("g", "TBW102", 4),
            bytes_max=1024,
            requested=lambda *_: None,
            on_connect=lambda _: None,
        )
        sent = row_batch()
        lane.send(sent)
        lane.take_answers(wait=True)
        assert not lane.has_open
        assert list(lane.later) == [sent]
        assert isinstance(sent.error, RequestTimeoutError)
        lane.close()


def test_a_refusal_of_what_nobody_asked_for_does_not_count_for_a_half():
    def answer(request: RemotingCommand) -> list[RemotingCommand]:
        if request.code == RequestCode.GET_MAX_OFFSET:
            return [request.response(ext_fields={"offset": "1"})]
        if request.code == RequestCode.PULL_MESSAGE:
            body = record(0, KEROLOX_SINK="q/0/0/1")
            return [request.response(ext_fields={"nextBeginOffset": "1"}, body=body)]
        if request.code == RequestCode.END_TRANSACTION:
            return [stray(request, ResponseCode.NO_PERMISSION), request.response()]
        return [request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)]

    with ThreadedBroker(answer) as broker:
        halves = HalfQueue("b", lambda _: broker.address, Connector(), "g", seconds_max=10)
        chosen = HalfSelection(attempts=["q/0/0/1"])
        assert halves.end(0, 1, chosen, commit=False, careful=False).ended == 1
        halves.close()
