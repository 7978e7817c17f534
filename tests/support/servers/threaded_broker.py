"""A broker of one queue, in a thread: answers pulls as a test wants them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

from kerolox.message import MessageExt, encode_properties
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.protocol.records import encode_record
from tests.support.eventually import SECONDS_MAX

Answer = Callable[[RemotingCommand], RemotingCommand | Iterable[RemotingCommand] | None]


def record(
    offset: int,
    *,
    tags: str = "",
    body: bytes = b"",
    queue_id: int = 0,
    store_timestamp: int = 0,
    sys_flag: int = 0,
    **properties: str,
) -> bytes:
    message = MessageExt(
        topic="t",
        body=body or f"body-{offset}".encode(),
        queue_id=queue_id,
        queue_offset=offset,
        sys_flag=sys_flag,
        commit_log_offset=offset * 200,
        store_timestamp=store_timestamp,
        properties={},
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
    )
    all_of_them = {"TAGS": tags, **properties} if tags else properties
    return encode_record(message, encode_properties(all_of_them))


class Queue:
    """Answers pulls from records 0..count-1 as RocketMQ does."""

    def __init__(self, count: int, *, per_answer: int = 32, scan: int = 800) -> None:
        self.minimum = 0
        self.maximum = count
        self.per_answer = per_answer
        self.scan = scan
        self.tags_of: Callable[[int], str] = lambda offset: ""
        self.time_of: Callable[[int], int] = lambda offset: 0
        self.body_of: Callable[[int], bytes] = lambda offset: b""
        self.pulls: list[tuple[int, int]] = []

    def __call__(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields
        offset, asked = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        self.pulls.append((offset, asked))
        if offset < self.minimum:
            return self.answer(request, ResponseCode.PULL_OFFSET_MOVED, self.minimum, "TOO_SMALL")
        if offset > self.maximum:
            return self.answer(request, ResponseCode.PULL_OFFSET_MOVED, self.maximum, "BADLY")
        if offset == self.maximum:
            return self.answer(request, ResponseCode.PULL_NOT_FOUND, offset, "OFFSET_OVERFLOW_ONE")
        wanted = {tag.strip() for tag in fields["subscription"].split("||")} - {"*"}
        found: list[int] = []
        position = offset
        while position < min(self.maximum, offset + self.scan):
            if len(found) == min(asked, self.per_answer):
                break
            if not wanted or self.tags_of(position) in wanted:
                found.append(position)
            position += 1
        if not found:
            code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
            return self.answer(request, code, position, remark)
        body = b"".join(
            record(
                each,
                tags=self.tags_of(each),
                body=self.body_of(each),
                store_timestamp=self.time_of(each),
            )
            for each in found
        )
        return self.answer(request, ResponseCode.SUCCESS, position, "FOUND", body)

    def answer(
        self,
        request: RemotingCommand,
        code: int,
        next_offset: int,
        remark: str,
        body: bytes = b"",
    ) -> RemotingCommand:
        fields = {
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": next_offset,
            "minOffset": self.minimum,
            "maxOffset": self.maximum,
        }
        return request.response(code, remark, fields, body=body)


class ThreadedBroker:
    """Serves any number of connections; a None answer closes the connection, several are sent one
    after the other."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ThreadedBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS_MAX)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=[connection], daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                for frame in decoder.feed(data):
                    response = self.answer(RemotingCommand.decode(frame))
                    if response is None:
                        return
                    one = isinstance(response, RemotingCommand)
                    for each in [response] if one else response:
                        connection.sendall(each.encode())
