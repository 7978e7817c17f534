import contextlib
import socket
import threading
from collections.abc import Callable
from math import inf

import pytest
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.up import deaf_address

from kerolox.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import FRAME_BYTES_MAX
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting import blocking
from kerolox.remoting.blocking import BlockingConnection
from kerolox.remoting.core.requests import Answer


class Peer:
    """Takes one connection; ``talk`` gets the socket and its decoded requests."""

    def __init__(self, talk: Callable[[socket.socket, RemotingCommand], None]) -> None:
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Peer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(SECONDS_MAX)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        decoder = FrameDecoder()
        with connection, contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                for frame in decoder.feed(data):
                    self._talk(connection, RemotingCommand.decode(frame))


def echo(connection: socket.socket, request: RemotingCommand) -> None:
    connection.sendall(request.response(0, "ok", request.ext_fields, body=request.body).encode())


def test_invoke_gives_the_response_to_its_own_request():
    with Peer(echo) as peer, BlockingConnection(peer.address) as connection:
        for number in range(3):
            answer = connection.invoke(
                RemotingCommand.request(7, {"n": number}, body=b"x" * 99_999)
            )
            assert answer.ext_fields == {"n": str(number)}
            assert len(answer.body) == 99_999


def test_responses_in_any_order_are_paired_by_opaque():
    waiting: list[RemotingCommand] = []

    def backwards(connection: socket.socket, request: RemotingCommand) -> None:
        waiting.append(request)
        if len(waiting) == 3:
            connection.sendall(b"".join(each.response().encode() for each in waiting[::-1]))

    with Peer(backwards) as peer, BlockingConnection(peer.address) as connection:
        commands = [RemotingCommand.request(7) for _ in range(3)]
        answers = connection.ask(commands)
        assert [each.opaque for each in answers] == [each.opaque for each in commands]


def test_a_request_that_no_frame_holds_leaves_the_connection_as_it_was():
    with Peer(echo) as peer, BlockingConnection(peer.address) as connection:
        too_large = RemotingCommand.request(7, body=bytes(FRAME_BYTES_MAX))
        with pytest.raises(LocalProtocolError):
            connection.ask([RemotingCommand.request(7), too_large])
        assert connection.invoke(RemotingCommand.request(7), 5).remark == "ok"


def test_a_lost_connection_ends_each_open_request():
    with (
        Peer(lambda connection, _: connection.shutdown(socket.SHUT_RDWR)) as peer,
        BlockingConnection(peer.address) as connection,
    ):
        answers: list[Answer[RemotingCommand]] = [Answer() for _ in range(300)]
        for number, answer in enumerate(answers):
            connection.requests.calls.wait(answer, -1 - number, inf, "")
        with pytest.raises(ConnectionLostError) as lost:
            connection.invoke(RemotingCommand.request(7))
        assert {answer.error for answer in answers} == {lost.value}
        assert connection.requests.open_count == 0


def test_a_request_of_the_peer_is_not_taken_for_a_response():
    def chatty(connection: socket.socket, request: RemotingCommand) -> None:
        notice = RemotingCommand.request(40, oneway=True)
        notice.opaque = request.opaque
        connection.sendall(notice.encode())
        echo(connection, request)

    with Peer(chatty) as peer, BlockingConnection(peer.address) as connection:
        assert connection.invoke(RemotingCommand.request(7)).remark == "ok"


def test_silence_is_a_timeout_and_closes_the_connection():
    with Peer(lambda *_: None) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(RequestTimeoutError, match="did not answer within"):
            connection.invoke(RemotingCommand.request(7), timeout_seconds=0.05)
        assert connection.closed
        with pytest.raises(ConnectionLostError, match="is closed; make a new one"):
            connection.invoke(RemotingCommand.request(7))


@pytest.mark.parametrize("is_response", [True, False])
def test_what_nobody_asked_for_makes_no_wait_longer(is_response: bool):
    def flood(connection: socket.socket, request: RemotingCommand) -> None:
        frame = request.response() if is_response else RemotingCommand.request(40, oneway=True)
        frame.opaque = request.opaque + 1
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(frame.encode())

    with Peer(flood) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(RequestTimeoutError, match=r"did not answer within 0.2 s"):
            connection.invoke(RemotingCommand.request(7), timeout_seconds=0.2)
        assert connection.closed


def test_a_peer_that_only_sends_is_not_listened_to_for_ever(monkeypatch: pytest.MonkeyPatch):
    def flood(connection: socket.socket, request: RemotingCommand) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(request.response(body=bytes(65536)).encode())

    monkeypatch.setattr(blocking, "UNREAD_BYTES_MAX", 4 * 1024 * 1024)
    with Peer(flood) as peer, BlockingConnection(peer.address) as connection:
        connection.send(RemotingCommand.request(7))
        frames = RemotingCommand.request(7, body=bytes(1024 * 1024)).encode() * 64
        with pytest.raises(RemoteProtocolError, match="sends far more than it was asked for"):
            connection.send_frames(frames, SECONDS_MAX)
        assert connection.closed


def test_a_peer_that_closes_is_a_lost_connection():
    with (
        Peer(lambda connection, _: connection.shutdown(socket.SHUT_RDWR)) as peer,
        BlockingConnection(peer.address) as connection,
        pytest.raises(ConnectionLostError, match="lost"),
    ):
        connection.invoke(RemotingCommand.request(7))


@pytest.mark.parametrize(
    "junk", [b"HTTP/1.1 400", b"\xff" * 8, b"\0\0\0\x06\0\0\0\x02{]", b"\0\xff\0\0\0\x7f\0\0"]
)
def test_bytes_that_are_no_frame_are_an_error_and_close_the_connection(junk: bytes):
    with (
        Peer(lambda connection, _: connection.sendall(junk)) as peer,
        BlockingConnection(peer.address) as connection,
    ):
        with pytest.raises(RemoteProtocolError):
            connection.invoke(RemotingCommand.request(7))
        assert connection.closed


def test_nobody_at_the_address_is_a_connect_error_that_names_it():
    with (
        deaf_address() as address,
        pytest.raises(ConnectError, match=f"can't connect to {address}"),
    ):
        BlockingConnection(address)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_an_address_of_another_form_is_refused(address: str):
    with pytest.raises(ConfigError):
        BlockingConnection(address)
