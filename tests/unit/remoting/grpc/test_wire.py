"""What gRPC puts into HTTP/2."""

from __future__ import annotations

import pytest

from kerolox.remoting.grpc.wire import (
    CallRefusedError,
    GrpcStatus,
    MessageReader,
    parse_head,
    trailers,
    with_prefix,
)

HEADERS = (
    (b":method", b"POST"),
    (b":path", b"/service/Call"),
    (b"content-type", b"application/grpc+proto"),
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3S", 3.0),
        ("100m", 0.1),
        ("2M", 120.0),
        ("1H", 3600.0),
        ("5000000u", 5.0),
        ("99999999n", 0.099999999),
        ("99999999H", None),
    ],
)
def test_deadlines_are_read_in_all_units(text: str, seconds: float | None) -> None:
    head = parse_head((*HEADERS, (b"grpc-timeout", text.encode())))
    assert head.timeout_seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", ["", "S", "3", "-1S", "123456789S", "3 S", "3s"])
def test_a_deadline_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CallRefusedError) as error:
        parse_head((*HEADERS, (b"grpc-timeout", text.encode())))
    assert error.value.status == GrpcStatus.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS[1:],
        ((b":method", b"GET"), *HEADERS[1:]),
        (*HEADERS[:2], (b"content-type", b"text/html")),
        (HEADERS[0], HEADERS[2]),
    ],
)
def test_what_is_no_call_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(CallRefusedError) as error:
        parse_head(headers)
    assert error.value.status == GrpcStatus.UNIMPLEMENTED


def test_metadata_is_text_and_binary_values_are_left_out() -> None:
    head = parse_head((*HEADERS, (b"x-mq-client-id", "idé".encode()), (b"trace-bin", b"\xff")))
    assert head.metadata["x-mq-client-id"] == "idé"
    assert "trace-bin" not in head.metadata


def test_messages_come_whole_however_they_are_cut() -> None:
    data = with_prefix(b"one") + with_prefix(b"") + with_prefix(b"three")
    for size in range(1, len(data) + 1):
        reader = MessageReader(10)
        found = []
        for at in range(0, len(data), size):
            found += reader.feed(data[at : at + size])
        assert found == [b"one", b"", b"three"]
        assert reader.kept_bytes == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (with_prefix(b"eleven byte"), GrpcStatus.RESOURCE_EXHAUSTED),
        (b"\x00\xff\xff\xff\xff", GrpcStatus.RESOURCE_EXHAUSTED),
        (b"\x01\x00\x00\x00\x01x", GrpcStatus.UNIMPLEMENTED),
    ],
)
def test_a_message_too_long_or_compressed_is_refused(data: bytes, status: GrpcStatus) -> None:
    with pytest.raises(CallRefusedError) as error:
        MessageReader(10).feed(data)
    assert error.value.status == status


def test_texts_of_statuses_are_escaped() -> None:
    block = trailers(GrpcStatus.INTERNAL, "50% é\n")
    assert b"50%25 %C3%A9%0A" in block
    assert b"\x0213" in block
