"""A well-behaved client by gRPC: sends a message, receives it and acknowledges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerolox.protocol.grpc import messages as pb
from tests.support.clients.grpc_raw import RawCalls

__all__ = ["GrpcRounds"]

GROUP = "probes-by-grpc"
METADATA = {"x-mq-client-id": "probe"}
INVISIBLE_SECONDS, POLL_SECONDS = 3_600, 30
TIMEOUT = {**METADATA, "grpc-timeout": "60S"}


class GrpcRounds:
    """One connection."""

    def __init__(self, port: int, topic: str) -> None:
        """The group begins with the message of the first round."""
        self._calls = RawCalls(port)
        self._topic = topic
        waiting = self._calls.call("ReceiveMessage", self._receive(), TIMEOUT)
        self._calls.settle()
        self._sent(b"first")
        self._got(self._calls.ended(waiting).messages)

    def round(self, body: bytes, measured: Callable[[str, Callable[[], Any]], Any]) -> None:
        """Send, receive and acknowledge one message. ``measured`` calls what it is given, and keeps
        how long that took under a name."""
        measured("send by gRPC", lambda: self._sent(body))
        received = measured("receive by gRPC", lambda: self._ask("ReceiveMessage", self._receive()))
        found = self._got(received)
        assert found.body == body, f"a message is {found.body!r}, not {body!r}"
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = GROUP, self._topic
        entry = request.entries.add()
        entry.message_id = found.system_properties.message_id
        entry.receipt_handle = found.system_properties.receipt_handle
        [answer] = measured("ack by gRPC", lambda: self._ask("AckMessage", _bytes(request)))
        code = pb.AckMessageResponse.FromString(answer).status.code
        assert code == pb.OK, f"an acknowledgement is answered {code}"

    def _ask(self, name: str, request: bytes) -> list[bytes]:
        outcome = self._calls.ask(name, request, TIMEOUT)
        assert outcome.status == 0, f"{name} ends with {outcome.status} {outcome.text}"
        return outcome.messages

    def _sent(self, body: bytes) -> None:
        request = pb.SendMessageRequest()
        message = request.messages.add(body=body)
        message.topic.name = self._topic
        message.system_properties.message_id = "01" + "AB" * 16
        message.system_properties.message_type = pb.NORMAL
        [answer] = self._ask("SendMessage", _bytes(request))
        code = pb.SendMessageResponse.FromString(answer).status.code
        assert code == pb.OK, f"a message is answered {code}"

    def _receive(self) -> bytes:
        request = pb.ReceiveMessageRequest(batch_size=1)
        request.group.name = GROUP
        request.message_queue.topic.name = self._topic
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = INVISIBLE_SECONDS
        request.long_polling_timeout.seconds = POLL_SECONDS
        return _bytes(request)

    def _got(self, answers: list[bytes]) -> Any:
        parts = [pb.ReceiveMessageResponse.FromString(each) for each in answers]
        [found] = [each.message for each in parts if each.WhichOneof("content") == "message"]
        return found


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
