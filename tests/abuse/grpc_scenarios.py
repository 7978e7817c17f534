"""What hostile clients do to the port for gRPC, as functions: the tests judge what is counted
meanwhile, ``benchmarks/abuse.py`` shows how long others waited."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import with_prefix
from kerolox.remoting.http2 import server_side
from kerolox.remoting.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    header_block,
    reset,
    settings_frame,
    window_update,
)
from tests.abuse.grpc_abuses import CALLS, GROUP, abuses_of, filled
from tests.abuse.scenarios import Scenario
from tests.support.clients.grpc_raw import GREETING, RawCalls, call_block

if TYPE_CHECKING:
    from tests.support.servers.up import Up

__all__ = [
    "GRPC_COUNTERS",
    "GRPC_FLOODS",
    "GRPC_SCENARIOS",
    "OF_PYTHON",
    "served",
]

CALM = int(ErrorCode.ENHANCE_YOUR_CALM)
OK, INVALID_ARGUMENT, EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 8, 12, 13
FAILED = "the broker failed"
STATUS_CHARACTERS_MAX = 5_000
NO_WINDOWS = PREFACE + settings_frame([(Setting.INITIAL_WINDOW_SIZE, 0)])

RECEIVE_SECONDS = "6S"
"""A receive that is not refused waits for almost as long, all of them at once."""

EVERY_FIELD_MEMORY_MIB_MAX = 256
"""Requests of a MiB that are under way, as bytes and as objects."""

UNREAD_MEMORY_MIB_MAX = 128


def served(up: Up) -> None:
    """Somebody else is served."""
    with RawCalls(up.grpc_port) as calls:
        answer = calls.ask("SendMessage", filled("SendMessage").SerializeToString())
        assert pb.SendMessageResponse.FromString(answer.messages[0]).status.code == pb.OK


def cut_off(up: Up, data: bytes, *codes: ErrorCode, greeting: bytes = GREETING) -> None:
    """Whoever sends that has its connection closed with such a code."""
    with RawCalls(up.grpc_port, greeting=greeting) as calls:
        calls.write(data)
        told = calls.wait_gone()
    assert told is not None
    assert told[0] in codes, told


def headers(stream_id: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(FrameType.HEADERS, flags, stream_id, block)


SEND = call_block("SendMessage")


# -- every field ------------------------------------------------------------------------------
def every_field(up: Up, calls_abused: Iterable[str]) -> None:
    """Whatever is wrong with a field; each call is answered."""
    faults: list[str] = []
    for name in calls_abused:
        metadata = {"grpc-timeout": RECEIVE_SECONDS}
        asked = []
        with RawCalls(up.grpc_port) as calls:
            for what, data in abuses_of(filled(name)):
                asked.append((what, calls.call(name, data, metadata)))
                if name != "ReceiveMessage":
                    calls.ended(asked[-1][1])
            for what, stream_id in asked:
                outcome = calls.ended(stream_id)
                fault = _fault(outcome.status, outcome.text, outcome.messages, name)
                if fault:
                    faults.append(f"{name}.{what}: {fault}")
            assert calls.goaway is None, (name, calls.goaway)
    assert not faults, faults[:20]


def _fault(status: int | None, text: str, messages: list[bytes], name: str) -> str:
    if status is None:
        return "no status"
    if FAILED in text or len(text) > STATUS_CHARACTERS_MAX:
        return text[:200]
    kind = getattr(pb, f"{name}Response", None) or pb.TelemetryCommand
    for data in messages:
        said = kind.FromString(data)
        if said.HasField("status") and len(said.status.message) > STATUS_CHARACTERS_MAX:
            return f"a status of {len(said.status.message)} characters"
    if status == OK and not messages and name != "Telemetry":
        return "no answer"
    return ""


# -- frames -----------------------------------------------------------------------------------
def rapid_resets(up: Up) -> None:
    """CVE-2023-44487."""
    request = with_prefix(filled("SendMessage").SerializeToString())
    for body in (b"", request):
        pairs = [
            headers(number, SEND)
            + (frame(FrameType.DATA, END_STREAM, number, body) if body else b"")
            + reset(number, ErrorCode.CANCEL)
            for number in range(1, 2 * server_side.RESETS_MAX + 5, 2)
        ]
        cut_off(up, b"".join(pairs), ErrorCode.ENHANCE_YOUR_CALM)


def resets_among_answers(up: Up) -> None:
    """As many answers as resets: that goes on, and what was begun is done."""
    unknown, request = call_block("Nothing"), with_prefix(filled("SendMessage").SerializeToString())
    with RawCalls(up.grpc_port) as calls:
        for first in range(1, 8_000, 4):
            calls.write(
                headers(first, unknown, END_HEADERS | END_STREAM)
                + headers(first + 2, SEND)
                + frame(FrameType.DATA, END_STREAM, first + 2, request)
                + reset(first + 2, ErrorCode.CANCEL)
            )
        calls.settle()
        assert calls.goaway is None


def resets_that_we_are_made_to_send(up: Up) -> None:
    """CVE-2025-8671: what is wrong with a stream ends its connection, so nobody makes many."""
    begun = headers(1, SEND)
    flow, protocol = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.PROTOCOL_ERROR
    ended = headers(1, call_block("ReceiveMessage"), END_HEADERS | END_STREAM)
    for data, code in (
        (begun + window_update(1, (1 << 31) - 1), flow),
        (begun + window_update(1, 0), protocol),
        (ended + frame(FrameType.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
        (ended + headers(1, SEND), protocol),
        (begun + headers(1, SEND), protocol),
        (begun + frame(FrameType.WINDOW_UPDATE, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (begun + frame(FrameType.RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ):
        # It may be answered first, since it is no request.
        cut_off(up, data * 1, code, protocol, ErrorCode.STREAM_CLOSED, flow)
    # Priorities mean nothing, whatever they say.
    with RawCalls(up.grpc_port) as calls:
        itself = (1).to_bytes(4, "big") + b"\xff"
        calls.write(headers(1, itself + call_block("Nothing"), END_HEADERS | END_STREAM | 32))
        calls.write(frame(FrameType.PRIORITY, 0, 1, itself) * 1_000)
        calls.settle()
        assert calls.goaway is None
    # A call that breaks a rule of its stream is answered, and what it waits for is given up.
    receive = with_prefix(filled("ReceiveMessage").SerializeToString())
    with RawCalls(up.grpc_port) as calls:
        for _ in range(3_000):
            stream_id = calls.open("ReceiveMessage")
            calls.data(stream_id, receive)
            calls.data(stream_id, b"\1\0\0\0\0")
            assert calls.ended(stream_id).status is not None


def floods_of_continuations(up: Up) -> None:
    """CVE-2024-27316."""
    more = frame(FrameType.CONTINUATION, 0, 1, b"")
    for data in (
        headers(1, SEND, 0) + more * 10_000,
        headers(1, SEND, 0) + frame(FrameType.CONTINUATION, 0, 1, bytes(16_000)) * 100,
        headers(1, SEND, END_STREAM) + frame(FrameType.CONTINUATION, 0, 1, b"\x82") * 1_000,
    ):
        cut_off(up, data, ErrorCode.ENHANCE_YOUR_CALM)


def bombs_of_headers(up: Up) -> None:
    """What grows when it is decoded, or takes long."""
    calm, wrong = ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR
    remembered = b"\x40\x01x\x7f\x81\x1e" + b"y" * 3_968
    for block in (
        remembered + b"\xbe" * 3_000,
        b"\x82" * 8_000,
        b"\x40\x01a\x01b" * 1_600,
        b"\x20" * 8_000,
        b"\x3f\xe1\x1f\x20" * 2_000,
        b"\x3f\xe1\xff\xff\xff\x7f",
        b"\xff" * 8_000,
        b"\x7f" + b"\xff" * 7_000 + b"\x01",
        b"\x00\x01a\xff" + b"\xff" * 100,
        b"\x00\x81\xff\x01a",
    ):
        cut_off(up, headers(1, block), calm, wrong)
    # Large ones that are within the limits, on streams that are over, until it is too many.
    block = call_block("Nothing") + b"\x82" * 100
    many = [headers(number, block, END_HEADERS | END_STREAM) for number in range(1, 6_000, 2)]
    with RawCalls(up.grpc_port) as calls:
        calls.write(b"".join(many))
        calls.settle()
    cut_off(
        up, many[0] + many[0] * (server_side.IDLE_FRAMES_MAX + 10), calm, ErrorCode.PROTOCOL_ERROR
    )


def floods_that_bring_nothing(up: Up) -> None:
    """Settings, pings, priorities, windows, empty data, kinds that nobody knows."""
    settings = settings_frame([(Setting.INITIAL_WINDOW_SIZE, 1)] * 30)
    for data in (
        settings_frame(()) * 10_000,
        settings * 3_000,
        settings_frame([(Setting.INITIAL_WINDOW_SIZE, 1)] * 2_000),
        frame(FrameType.PING, 0, 0, bytes(8)) * 10_000,
        frame(FrameType.PRIORITY, 0, 1, bytes(5)) * 10_000,
        window_update(0, 1) * 10_000,
        headers(1, SEND) + frame(FrameType.DATA, 0, 1) * 10_000,
        headers(1, SEND) + frame(FrameType.DATA, 8, 1, b"\xff" + bytes(255)) * 10_000,
        headers(1, SEND) + window_update(1, 1) * 3_000,
        frame(77, 0, 1, b"what") * 10_000,
        frame(FrameType.GOAWAY, 0, 0, bytes(8)) * 10_000,
    ):
        cut_off(up, data, ErrorCode.ENHANCE_YOUR_CALM, greeting=PREFACE + settings_frame(()))


def windows_that_stay_shut(up: Up) -> None:
    """Answers of megabytes that nobody takes, or a byte at a time; windows that shrink."""
    body = filled("SendMessage", body=bytes(200_000)).SerializeToString()
    with RawCalls(up.grpc_port) as calls:
        for _ in range(8):
            assert calls.ask("SendMessage", body).status == OK
    receive = with_prefix(filled("ReceiveMessage").SerializeToString())
    with RawCalls(up.grpc_port, greeting=NO_WINDOWS) as calls:
        for _ in range(30):
            calls.data(calls.open("ReceiveMessage"), receive, end=True)
        calls.settle()
        calls.write(window_update(1, 1) * 1_500)
        for size in (100, 0, 65_535, 1, 0):
            calls.write(settings_frame([(Setting.INITIAL_WINDOW_SIZE, size)]))
        calls.settle()
        assert calls.goaway is None


def windows_of_a_thousand_streams(up: Up) -> None:
    """Each change of a window is one of all streams."""
    with RawCalls(up.grpc_port, greeting=NO_WINDOWS) as calls:
        routes = with_prefix(filled("QueryRoute").SerializeToString())
        for _ in range(1_000):
            calls.data(calls.open("QueryRoute"), routes, end=True)
        calls.settle()
        flip = [(Setting.INITIAL_WINDOW_SIZE, 0)] * 30
        calls.write(settings_frame(flip) * 1_000)
        calls.write(window_update(0, 1) * 1_500)
        told = calls.wait_gone()
    assert told is not None
    assert told[0] == CALM


# -- streams ----------------------------------------------------------------------------------
def bytes_one_at_a_time(up: Up) -> None:
    """Each in a segment, and each in a frame of its own."""
    request = with_prefix(filled("SendMessage").SerializeToString())
    data = GREETING + headers(1, SEND) + frame(FrameType.DATA, END_STREAM, 1, request)
    with RawCalls(up.grpc_port, greeting=b"") as calls:
        calls.open_block(SEND)  # its bytes come below
    with RawCalls(up.grpc_port, greeting=b"") as calls:
        for at in range(len(data)):
            calls.write(data[at : at + 1])
    with RawCalls(up.grpc_port) as calls:
        stream_id = calls.open("SendMessage")
        calls.write(b"".join(frame(FrameType.DATA, 0, stream_id, b"%c" % each) for each in request))
        calls.data(stream_id, b"", end=True)
        assert calls.ended(stream_id).status == OK


def what_never_ends(up: Up) -> None:
    """Headers, bodies and lengths whose rest does not come."""
    connections = []
    for number in range(100):
        calls = RawCalls(up.grpc_port)
        if number % 2:
            calls.write(headers(1, SEND, 0))
        else:
            for _ in range(20):
                calls.data(calls.open("SendMessage"), b"\0\0\x0f\xff\xff" + bytes(10_000))
        connections.append(calls)
    served(up)
    for calls in connections:
        calls.settle()
        calls.socket.close()


def lengths_that_lie(up: Up) -> None:
    """Of messages, longer, shorter, none, too many; and compressed ones."""
    request = filled("QueryRoute").SerializeToString()
    bomb = gzip.compress(bytes(8 << 20))
    with RawCalls(up.grpc_port) as calls:
        for data, statuses in (
            (b"\0\xff\xff\xff\xff", {EXHAUSTED}),
            (b"\0\0\x10\0\x01", {EXHAUSTED}),
            (b"\0\0\0\0\xff" + request, {INTERNAL}),
            (b"\0\0\0\0\x01" + request, {INTERNAL, UNIMPLEMENTED, EXHAUSTED}),
            (b"\0\0\0", {INTERNAL}),
            (b"", {INTERNAL}),
            (with_prefix(b"") * 3_000, {EXHAUSTED, OK}),
            (b"\1" + len(bomb).to_bytes(4, "big") + bomb, {UNIMPLEMENTED}),
            (b"\xff\0\0\0\0", {UNIMPLEMENTED}),
        ):
            stream_id = calls.open("QueryRoute", {"grpc-encoding": "gzip"})
            calls.data(stream_id, data, end=True)
            assert calls.ended(stream_id).status in statuses, data[:20]
        empty = with_prefix(b"") * 3_000
        for _ in range(300):
            calls.data(calls.open("Telemetry"), empty)
        calls.settle()


def bombs_of_bodies(up: Up) -> None:
    """Bodies of gzip that grow to more than is inflated, or almost."""
    for mebibytes in (3, 15, 100):
        body = gzip.compress(bytes(mebibytes << 20), 1)
        request = filled("SendMessage", body=body, body_encoding=pb.GZIP).SerializeToString()
        with RawCalls(up.grpc_port) as calls:
            asked = [calls.call("SendMessage", request) for _ in range(4)]
            for outcome in calls.all_ended(asked):
                assert outcome.status == OK
        with RawCalls(up.grpc_port) as calls:
            for _ in range(4):
                stream_id = calls.call("SendMessage", request)
                calls.write(reset(stream_id, ErrorCode.CANCEL))
            calls.settle()


def calls_that_are_none(up: Up) -> None:
    """Paths, methods, pseudo headers, content types and deadlines that no client writes."""
    plain = dict(_pairs_of_call())
    blocks = [
        header_block({**plain, name: value}.items())
        for name, value in (
            (b":path", b"/"),
            (b":path", b"*"),
            (b":path", b""),
            (b":path", b"/" + b"x" * 4_000),
            (b":path", b"/apache.rocketmq.v2.MessagingService/\r\nforged"),
            (b":method", b"GET"),
            (b":method", b"CONNECT"),
            (b":status", b"200"),
            (b"te", b"chunked"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"close"),
            (b"content-type", b"text/html"),
            (b"content-type", b"application/grpc-web+json"),
            (b"content-length", b"99999999999999"),
            (b"grpc-timeout", b"-1S"),
            (b"grpc-timeout", b"999999999S"),
            (b"grpc-timeout", b"1"),
            (b"grpc-timeout", "٣S".encode()),
            (b"grpc-encoding", b"snappy"),
            (b"x-mq-client-id", b"\xff\xfe\x00\r\n2026-01-01 00:00:00,000 WARNING forged"),
            (b"x-mq-client-id", b"i" * 5_000),
            (b"x-mq-language", b"l" * 5_000),
            (b"x-mq-client-version", b"9" * 5_000),
            (b"", b""),
            (b"UPPER", b"x"),
            (b"a-bin", b"\xff" * 100),
        )
    ]
    blocks += [header_block(()), header_block([*plain.items()] * 3)]
    with RawCalls(up.grpc_port) as calls:
        for block in blocks:
            stream_id = calls.open_block(block)
            calls.data(stream_id, with_prefix(b""), end=True)
            assert calls.ended(stream_id).status is not None


def _pairs_of_call() -> Iterator[tuple[bytes, bytes]]:
    yield from (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/apache.rocketmq.v2.MessagingService/QueryRoute"),
        (b"content-type", b"application/grpc"),
        (b"x-mq-client-id", b"abuser"),
    )


def streams_beyond_the_limit(up: Up) -> None:
    """And telemetry without settings on all of them."""
    with RawCalls(up.grpc_port) as calls:
        opened = [calls.open("Telemetry") for _ in range(server_side.STREAMS_MAX + 100)]
        calls.settle()
        refused = [each for each in opened if calls.outcomes[each].is_over]
        assert len(refused) == 100
        served(up)


def settings_again_and_again(up: Up) -> None:
    """As large as they may be, from clients that are new each time."""
    for kind in ("publishing", "subscription"):
        settings = pb.Settings()
        for number in range(2_000):
            name = f"t{number}"
            if kind == "publishing":
                settings.publishing.topics.add().name = name
            else:
                settings.subscription.group.name = GROUP
                entry = settings.subscription.subscriptions.add()
                entry.topic.name, entry.expression.expression = name, "a||b"
        settings.client_type = pb.PRODUCER if kind == "publishing" else pb.PUSH_CONSUMER
        data = with_prefix(pb.TelemetryCommand(settings=settings).SerializeToString())
        with RawCalls(up.grpc_port) as calls:
            streams = [calls.open("Telemetry", {"x-mq-client-id": f"c{n}"}) for n in range(4)]
            for stream_id in streams:
                calls.data(stream_id, data * 2, end=True)
            for outcome in calls.all_ended(streams):
                assert outcome.status is not None


# -- what names things ------------------------------------------------------------------------
def receipts_and_ids_that_are_forged(up: Up) -> None:
    """Cut, changed, of another queue, used twice; of messages, transactions and recalls."""
    with RawCalls(up.grpc_port) as calls:
        # Where nobody has received before, only what comes afterwards is given out.
        waiting = calls.call("ReceiveMessage", filled("ReceiveMessage").SerializeToString())
        calls.settle()
        assert calls.ask("SendMessage", filled("SendMessage").SerializeToString()).status == OK
        parts = [
            pb.ReceiveMessageResponse.FromString(each) for each in calls.ended(waiting).messages
        ]
        [receipt] = [
            each.message.system_properties.receipt_handle
            for each in parts
            if each.WhichOneof("content") == "message"
        ]
        others = [each for each in _forged(receipt) if not _names_it(receipt, each)]
        for forged in others:
            for name in _RECEIPT_CALLS:
                code = _code(calls, name, filled(name, receipt_handle=forged))
                # As in RocketMQ an acknowledgement that changes nothing is none that fails.
                assert code != pb.OK or name != "ChangeInvisibleDuration", forged
        change = filled("ChangeInvisibleDuration", receipt_handle=receipt)
        assert _code(calls, "ChangeInvisibleDuration", change) == pb.OK
        for forged in (*(each for each in _forged(receipt) if each not in others), receipt):
            for name in _RECEIPT_CALLS * 2:
                _code(calls, name, filled(name, receipt_handle=forged))
        assert _code(calls, "ChangeInvisibleDuration", change) != pb.OK
        for forged in (*_forged("0" * 31 + "1"), "f" * 32, "8" + "0" * 31, "0" * 16 + "f" * 16):
            request = filled("EndTransaction", transaction_id=forged)
            assert _code(calls, "EndTransaction", request) != pb.OK, forged
        for forged in _forged("djEgYnJva2VyLWEgQWJ1c2VkIDE3MDAwMDAwMDAwMDAgMDFBQg=="):
            request = filled("RecallMessage", recall_handle=forged)
            assert _code(calls, "RecallMessage", request) != pb.OK, forged


def _code(calls: RawCalls, name: str, request: Any) -> int:
    outcome = calls.ask(name, request.SerializeToString())
    assert outcome.status is not None, (name, str(request)[:200], calls.goaway)
    assert FAILED not in outcome.text
    if outcome.status != OK:
        return -outcome.status
    code: int = getattr(pb, f"{name}Response").FromString(outcome.messages[0]).status.code
    return code


_RECEIPT_CALLS = ("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue")


def _names_it(receipt: str, forged: str) -> bool:
    """Whether it has the time, the queue and the offset of a delivery, which nobody else can know:
    what else it says is not believed."""
    parts, others = receipt.split(" "), forged.split(" ")
    return len(others) >= 8 and all(parts[at] == others[at] for at in (1, 5, 6, 7))


def _forged(text: str) -> Iterator[str]:
    parts = text.split(" ")
    yield from (text[:at] for at in range(0, len(text), 3))
    for number in range(len(parts)):
        for other in ("9" * 18, "9" * 19, "9" * 5_000, "-1", "", "٣", "x"):
            if parts[number] != other:
                yield " ".join((*parts[:number], other, *parts[number + 1 :]))
    yield text * 2
    yield text + " " + "0 " * 20_000
    yield text[::-1]


def closed(*codes: ErrorCode) -> tuple[str, ...]:
    """The counters of connections that are closed."""
    return tuple(f"connections_closed {code.name}" for code in codes)


def refused(*reasons: str) -> tuple[str, ...]:
    """The counters of calls that are refused."""
    return tuple(f"calls_refused {reason}" for reason in reasons)


def answered(call: str, *codes: str) -> tuple[str, ...]:
    """The counters of calls that are answered."""
    return tuple(f"{call} {code}" for code in codes)


FORGED = "invalid_receipt_handle"
SETTINGS, BODIES = "settings again and again", "bombs of bodies"
KERNEL_FIELDS = "every field of the calls by gRPC that a kernel answers"
OTHER_FIELDS = "every field of the other calls by gRPC"
KERNEL_CALLS = "SendMessage", "ReceiveMessage", "AckMessage"

_PLAYS: dict[str, tuple[Callable[[Up], None], float, tuple[str, ...]]] = {
    "rapid resets": (rapid_resets, 64, closed(ErrorCode.ENHANCE_YOUR_CALM)),
    "resets among answers": (resets_among_answers, 64, refused("UNIMPLEMENTED")),
    "resets that a server is made to send": (
        resets_that_we_are_made_to_send,
        64,
        (
            *closed(ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.PROTOCOL_ERROR),
            *closed(ErrorCode.STREAM_CLOSED, ErrorCode.FRAME_SIZE_ERROR),
            *refused("UNIMPLEMENTED"),
        ),
    ),
    "floods of continuations": (floods_of_continuations, 64, closed(ErrorCode.ENHANCE_YOUR_CALM)),
    "bombs of headers": (
        bombs_of_headers,
        64,
        closed(ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR),
    ),
    "floods that bring nothing": (
        floods_that_bring_nothing,
        64,
        closed(ErrorCode.ENHANCE_YOUR_CALM),
    ),
    "windows that stay shut": (
        windows_that_stay_shut,
        UNREAD_MEMORY_MIB_MAX,
        answered("receive_message", "message_not_found"),
    ),
    "windows of a thousand streams": (
        windows_of_a_thousand_streams,
        64,
        closed(ErrorCode.ENHANCE_YOUR_CALM),
    ),
    "a byte at a time by gRPC": (bytes_one_at_a_time, 64, closed(ErrorCode.PROTOCOL_ERROR)),
    "what never ends": (what_never_ends, 64, closed(ErrorCode.PROTOCOL_ERROR)),
    "lengths that lie": (
        lengths_that_lie,
        64,
        refused("INTERNAL", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"),
    ),
    BODIES: (bombs_of_bodies, 256, answered("send_message", "message_corrupted")),
    "calls that are none": (
        calls_that_are_none,
        64,
        (*refused("INVALID_ARGUMENT", "UNIMPLEMENTED"), *answered("query_route", "bad_request")),
    ),
    "streams beyond the limit": (streams_beyond_the_limit, 64, refused("REFUSED_STREAM")),
    SETTINGS: (settings_again_and_again, 96, answered("telemetry", "ok")),
    "receipts and ids that are forged": (
        receipts_and_ids_that_are_forged,
        64,
        (
            *answered("ack_message", FORGED),
            *answered("change_invisible_duration", FORGED),
            *answered("forward_message_to_dead_letter_queue", FORGED),
            *answered("end_transaction", "invalid_transaction_id"),
            *answered("recall_message", "internal_server_error"),
        ),
    ),
}

GRPC_FLOODS = {
    name: Scenario(lambda up, play=play: (play(up), served(up))[1], memory)
    for name, (play, memory, _) in _PLAYS.items()
}
"""All of these may be played on one server with :data:`TOPIC`, in any order, and again."""

GRPC_SCENARIOS = {
    **GRPC_FLOODS,
    KERNEL_FIELDS: Scenario(
        lambda up: every_field(up, KERNEL_CALLS), EVERY_FIELD_MEMORY_MIB_MAX, 3_000
    ),
    OTHER_FIELDS: Scenario(
        lambda up: every_field(up, [call for call in CALLS if call not in KERNEL_CALLS]),
        EVERY_FIELD_MEMORY_MIB_MAX,
        3_000,
    ),
}

OF_PYTHON = (OTHER_FIELDS, SETTINGS, BODIES)
"""What the same Python answers beside either kernel."""

GRPC_COUNTERS = {
    **{name: counters for name, (_, _, counters) in _PLAYS.items()},
    KERNEL_FIELDS: (
        *answered("send_message", "illegal_message_key", "illegal_message_tag", "illegal_topic"),
        *answered("send_message", "illegal_message_id", "message_properties_too_large"),
        *answered("receive_message", "illegal_filter_expression", "illegal_invisible_time"),
        *answered("ack_message", FORGED),
    ),
    OTHER_FIELDS: (
        *refused("INTERNAL", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"),
        *answered("query_route", "illegal_topic", "illegal_access_point"),
        *answered("query_assignment", "illegal_consumer_group"),
        *answered("heartbeat", "unrecognized_client_type"),
        *answered("change_invisible_duration", "illegal_invisible_time"),
        *answered("forward_message_to_dead_letter_queue", FORGED),
        *answered("end_transaction", "invalid_transaction_id"),
        *answered("recall_message", "internal_server_error"),
        *answered("telemetry", "illegal_topic", "illegal_consumer_group"),
    ),
}
"""What of the port's metrics each has to move: names of its counters with their reasons; of calls
their names with the codes of their answers."""
