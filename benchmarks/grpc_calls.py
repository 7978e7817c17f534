"""Claim: clients of RocketMQ 5 get 5 times of what a second of the Java proxy's CPU does.

Calls of gRPC on four connections, as the official Java client frames them: the second and later
header blocks are indexes and one text that differs. Sends of 128 B, 64 open on each connection; and
receives of 32 with one AckMessage for all of them, two open on each. Ours with each kernel, and
with ``--java`` RocketMQ 5.3.3's proxy in local mode, its broker in the same process. All in turn
over the rounds; medians. With ``--accounts`` ours with access control, too: each call is signed.
With ``--filters`` receives by a tag that all messages have, and by SQL92, too.

    python benchmarks/grpc_calls.py [--seconds 4] [--count 100000] [--rounds 3]
        [--kernels native,python] [--java] [--accounts] [--filters]

Prints a table; exits with 1 below a floor.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.programs import build_broker_53, build_proxy_53
from tests.support.servers.up import free_port

from benchmarks.peers import READY_SECONDS_MAX, Target, cpu_seconds, our_broker
from benchmarks.pops import BODY, QUEUES, TOPIC, Row, Wire, fill, make_group, make_topic
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import MessageReader, with_prefix
from kerolox.remoting.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_STREAM,
    HEAD_BYTES,
    PREFACE,
    WINDOW_MAX,
    FrameType,
    Setting,
    frame,
    settings_frame,
    window_update,
)
from kerolox.security.credentials import Credentials, Signer

RATE_FLOOR, JAVA_FLOOR = 30_000, 5.0
CONNECTIONS, SENDS_OPEN, RECEIVES_OPEN, BATCH = 4, 64, 2, 32
TAG = "TagA"
WARM_SECONDS = 1.0
JAVA_WARM_SECONDS = 15.0
STORED = b"\x08\xa0\x9c\x01\x12\x02OK"
"""The status of success inside an answer."""

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = {
    "content-type": "application/grpc",
    "user-agent": "grpc-java-netty/1.50.0",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-version": "5.0.7",
    "x-mq-date-time": "20260101T000000Z",
    "grpc-accept-encoding": "gzip",
    "grpc-timeout": "30S",
}
ACCOUNTS = """\
accounts:
- accessKey: benchmark
  secretKey: '12345678'
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: operator
  secretKey: '87654321'
  admin: true
"""
OPERATOR = Signer(Credentials("operator", "87654321"))
HASH = hmac.digest(b"12345678", METADATA["x-mq-date-time"].encode(), "sha1").hex()
PROOF = f"MQv2-HMAC-SHA1 Credential=benchmark, SignedHeaders=x-mq-date-time, Signature={HASH}"

REQUEST_ID_INDEX = 62
"""In the table of a connection whose first block had it last."""


def header_block(path: str, metadata: dict[str, str], *, is_first: bool) -> bytes:
    """The headers of a call but for the id of its request at their end."""
    headers = [(":authority", "127.0.0.1:8081"), *METADATA.items(), *metadata.items()]
    block = b"\x83\x86\x04" + _text(SERVICE + path)  # POST, http
    if is_first:
        texts = [b"\x40" + _text(name) + _text(value) for name, value in headers]
        return block + b"".join(texts) + b"\x40" + _text("x-mq-request-id") + b"\x24"
    indexes = range(REQUEST_ID_INDEX + len(headers), REQUEST_ID_INDEX, -1)
    return block + bytes(0x80 | each for each in indexes) + bytes((15, REQUEST_ID_INDEX - 15, 36))


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


class Client:
    """One connection."""

    def __init__(self, served: Served, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._metadata = {"x-mq-client-id": f"benchmark@{number}"}
        if served.is_signed:
            self._metadata["authorization"] = PROOF
        self._blocks: dict[str, bytes] = {}
        self._data = b""
        self._next_id = 1
        settings = settings_frame([(Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX)])
        self.socket.sendall(PREFACE + settings + window_update(0, WINDOW_MAX - DEFAULT_WINDOW))

    def call(self, path: str, message: bytes, *, end: bool = True) -> tuple[int, bytes]:
        """A call's stream and its frames; ``message`` has its prefix."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        block = self._blocks.get(path)
        if block is None:
            block = header_block(path, self._metadata, is_first=not self._blocks)
            self._blocks[path] = header_block(path, self._metadata, is_first=False)
        number = stream_id.to_bytes(4, "big")
        block = b"%b%036d" % (block, stream_id)
        return stream_id, b"".join(
            (
                *(len(block).to_bytes(3, "big"), b"\x01\x04", number, block),
                *(len(message).to_bytes(3, "big"), b"\0\1" if end else b"\0\0", number, message),
            )
        )

    def take(self) -> Iterator[tuple[int, int, int, bytes]]:
        """The frames that came: kind, flags, stream, payload. Settings and pings are answered."""
        more = self.socket.recv(1 << 18)
        if not more:
            raise RuntimeError("the server closed the connection")
        data, at = self._data + more, 0
        while len(data) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            if len(data) < end:
                break
            kind, flags = data[at + 3], data[at + 4]
            payload = data[at + HEAD_BYTES : end]
            if kind in (FrameType.DATA, FrameType.HEADERS):
                yield kind, flags, int.from_bytes(data[at + 5 : at + 9], "big"), payload
            elif kind in (FrameType.GOAWAY, FrameType.RST_STREAM):
                raise RuntimeError(f"frame {kind}: {payload!r}")
            elif kind in (FrameType.SETTINGS, FrameType.PING) and not flags & ACK:
                answer = payload if kind == FrameType.PING else b""
                self.socket.sendall(frame(kind, ACK, 0, answer))
            at = end
        self._data = data[at:]

    def settle(self, group: str) -> None:
        """Say that it consumes, which the Java proxy asks for."""
        entry = pb.SubscriptionEntry(topic=pb.Resource(name=TOPIC))
        entry.expression.expression = "*"
        settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        settings.subscription.subscriptions.append(entry)
        message = with_prefix(pb.TelemetryCommand(settings=settings).SerializeToString())
        self.socket.sendall(self.call("Telemetry", message, end=False)[1])
        while not any(kind == FrameType.DATA for kind, *_ in self.take()):
            pass


class Clients:
    """All connections, and what their calls wait for."""

    def __init__(self, served: Served) -> None:
        self.all = [Client(served, number) for number in range(CONNECTIONS)]
        self._selector = selectors.DefaultSelector()
        for each in self.all:
            self._selector.register(each.socket, selectors.EVENT_READ, each)

    def ready(self) -> list[Client]:
        """Those that got something."""
        found = [key.data for key, _ in self._selector.select(30)]
        if not found:
            raise RuntimeError("no answer for 30 s")
        return found

    def close(self) -> None:
        self._selector.close()
        for each in self.all:
            each.socket.close()


# -- loads ----------------------------------------------------------------------------------------
def run_sends(served: Served, seconds: float) -> Row:
    """Send for so long."""
    request = pb.SendMessageRequest()
    message = request.messages.add(body=BODY)
    message.topic.name = TOPIC
    message.user_properties["region"] = "eu-1"
    system = message.system_properties
    system.message_id, system.tag = "01A0B1C2D3E4F50000000000000000001F", TAG
    system.keys.append("order-000042")
    system.message_type, system.body_encoding = pb.NORMAL, pb.IDENTITY
    system.born_host, system.queue_id = "benchmark", 0
    system.born_timestamp.seconds = int(time.time())
    data = with_prefix(request.SerializeToString())
    clients = Clients(served)
    for each in clients.all:
        calls = [each.call("SendMessage", data)[1] for _ in range(SENDS_OPEN)]
        each.socket.sendall(b"".join(calls))
    done = stored = 0
    begin, cpu, until = time.monotonic(), cpu_seconds(served.pid), 0.0
    while (now := time.monotonic()) < begin + seconds or not until:
        if not until and now >= begin + WARM_SECONDS:
            done, stored, begin, cpu, until = 0, 0, now, cpu_seconds(served.pid), now + seconds
        for each in clients.ready():
            ended = 0
            for kind, flags, _, payload in each.take():
                if kind == FrameType.DATA:
                    stored += STORED in payload
                ended += flags & END_STREAM
            done += ended
            if ended:
                calls = [each.call("SendMessage", data)[1] for _ in range(ended)]
                each.socket.sendall(b"".join(calls))
    passed, spent = time.monotonic() - begin, cpu_seconds(served.pid) - cpu
    clients.close()
    # Answers may be cut where the count began.
    if stored < done - CONNECTIONS * SENDS_OPEN:
        raise RuntimeError(f"{done - stored} of {done} sends failed")
    return Row(stored / passed, spent / stored * 1e6)


def run_receives(
    served: Served, group: str, count: int, expression: str = "*", kind: int = pb.TAG
) -> Row:
    """Receive and acknowledge about so many messages that are there."""
    request = pb.ReceiveMessageRequest(batch_size=BATCH)
    request.group.name = group
    request.message_queue.topic.name = TOPIC
    request.filter_expression.expression = expression
    request.filter_expression.type = kind
    request.invisible_duration.seconds = 600
    ask = with_prefix(request.SerializeToString())
    clients = Clients(served)
    answers: dict[tuple[Client, int], bytearray] = {}

    def receive(client: Client) -> bytes:
        stream_id, call = client.call("ReceiveMessage", ask)
        answers[client, stream_id] = bytearray()
        return call

    for each in clients.all:
        each.settle(group)
        each.socket.sendall(b"".join(receive(each) for _ in range(RECEIVES_OPEN)))
    done = failed = 0
    begin, cpu = time.monotonic(), cpu_seconds(served.pid)
    while done < count:
        for each in clients.ready():
            calls = []
            for kind, flags, stream_id, payload in each.take():
                answer = answers.get((each, stream_id))
                if kind == FrameType.DATA and answer is not None:
                    answer += payload
                elif kind == FrameType.DATA:
                    failed += STORED not in payload
                if flags & END_STREAM and answer is not None:
                    ack = _acknowledgement(group, answers.pop((each, stream_id)))
                    done += len(ack.entries)
                    message = with_prefix(ack.SerializeToString())
                    calls.append(each.call("AckMessage", message)[1])
                elif flags & END_STREAM:
                    calls.append(receive(each))
            each.socket.sendall(b"".join(calls))
    passed, spent = time.monotonic() - begin, cpu_seconds(served.pid) - cpu
    clients.close()
    if failed:
        raise RuntimeError(f"{failed} acknowledgements failed")
    return Row(done / passed, spent / done * 1e6)


def _acknowledgement(group: str, answer: bytearray) -> pb.AckMessageRequest:
    ack = pb.AckMessageRequest()
    ack.group.name, ack.topic.name = group, TOPIC
    for data in MessageReader(1 << 24).feed(bytes(answer)):
        response = pb.ReceiveMessageResponse.FromString(data)
        if response.status.code not in (0, pb.OK, pb.MESSAGE_NOT_FOUND):
            raise RuntimeError(response.status.message)
        if response.HasField("message"):
            system = response.message.system_properties
            ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return ack


# -- servers --------------------------------------------------------------------------------------
class Served(NamedTuple):
    """A running server: its port for remoting is the target's."""

    target: Target
    port: int
    is_signed: bool = False
    """It has accounts, and gets signed calls."""

    @property
    def pid(self) -> int:
        """Of the process with proxy and broker."""
        return self.target.pid


@contextmanager
def ours(folder: Path, kernel: str) -> Iterator[Served]:
    """Our broker."""
    port = free_port()
    with our_broker(folder, kernel, f"grpcServerPort={port}") as target:
        yield Served(target, port)


@contextmanager
def ours_with_accounts(folder: Path, kernel: str) -> Iterator[Served]:
    """Our broker with access control."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings, label = (f"grpcServerPort={free_port()}", "aclEnable=true"), f"{kernel}, accounts"
    with our_broker(folder, kernel, *settings, home=folder, label=label) as target:
        yield Served(target, int(settings[0].partition("=")[2]), is_signed=True)


@contextmanager
def java_proxy(folder: Path) -> Iterator[Served]:
    """The proxy of 5.3.3 in local mode."""
    folder.mkdir()
    names, remoting, proxied, grpc = (free_port() for _ in range(4))
    java = ["java", "-server", f"-Duser.home={folder}", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC"]
    opens = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    java += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in opens]
    jars = [f"{build() / 'target' / 'lib'}/*" for build in (build_proxy_53, build_broker_53)]
    java += ["-XX:MaxDirectMemorySize=1g", "-cp", ":".join(jars)]
    broker = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": remoting,
        "namesrvAddr": f"127.0.0.1:{names}",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
    }
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": f"127.0.0.1:{names}",
        "grpcServerPort": grpc,
        "remotingListenPort": proxied,
        "localServeAddr": "127.0.0.1",
    }
    (folder / "names.conf").write_text(f"listenPort={names}\n")
    (folder / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in broker.items()))
    (folder / "proxy.json").write_text(json.dumps(proxy))
    starts = (
        ("namesrv.NamesrvStartup", "-c", "names.conf"),
        ("proxy.ProxyStartup", "-pm", "local", "-pc", "proxy.json", "-bc", "broker.conf"),
    )
    environment = {**os.environ, "ROCKETMQ_HOME": str(folder)}
    with ExitStack() as stack, (folder / "log").open("w") as log:
        for number, (name, *options) in enumerate(starts, 1):
            process = subprocess.Popen(
                [*java, f"org.apache.rocketmq.{name}", *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                env=environment,
            )
            stack.callback(process.wait, timeout=60)
            stack.callback(process.send_signal, signal.SIGTERM)
            deadline = time.monotonic() + READY_SECONDS_MAX
            while (text := (folder / "log").read_text()).lower().count("success") < number:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"not ready: {text[-2000:]}")
                time.sleep(0.1)
        yield Served(Target("java", f"127.0.0.1:{remoting}", process.pid), grpc)


def rewind(target: Target, group: str) -> None:
    """Make a group that begins at the first message."""
    make_group(target, group, OPERATOR)
    wire = Wire(target.address, OPERATOR)
    for queue_id in range(QUEUES):
        fields = {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id, "commitOffset": 0}
        wire.ask(RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    wire.close()


# -- the table ------------------------------------------------------------------------------------
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", default="native,python")
    parser.add_argument("--java", action="store_true")
    parser.add_argument("--accounts", action="store_true")
    parser.add_argument("--filters", action="store_true")
    chosen = parser.parse_args()
    rows: dict[tuple[str, str], list[Row]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerolox-grpc-")))
        kernels = chosen.kernels.split(",")
        all_served = [stack.enter_context(ours(folder / each, each)) for each in kernels]
        if chosen.accounts:
            closed = (ours_with_accounts(folder / f"closed-{each}", each) for each in kernels)
            all_served += [stack.enter_context(each) for each in closed]
        if chosen.java:
            all_served.append(stack.enter_context(java_proxy(folder / "java")))
        for served in all_served:
            make_topic(served.target, TOPIC, QUEUES, OPERATOR)
            if served.target.label == "java":
                run_sends(served, JAVA_WARM_SECONDS)
            fill(served.target, (chosen.rounds + 1) * chosen.count, signer=OPERATOR, tag=TAG)
        for number in range(chosen.rounds):
            for served in all_served:
                for what, row in run_all(served, number, chosen):
                    name = served.target.label
                    rows.setdefault((what, name), []).append(row)
                    print(f"{what:22} {name:16} {row.rate:9,.0f}/s {row.cpu:7.2f} µs", flush=True)
    return 0 if is_fast(rows) else 1


def run_all(served: Served, number: int, chosen: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """All loads at a server, in a round."""
    yield "send", run_sends(served, chosen.seconds)
    filters = {"": ("*", pb.TAG)}
    if chosen.filters:
        filters |= {" by tag": (TAG, pb.TAG), " by SQL92": ("region = 'eu-1'", pb.SQL)}
    for name, (expression, kind) in filters.items():
        group = f"grpc-{number}{name.replace(' ', '-')}"
        rewind(served.target, group)
        yield f"receive + ack{name}", run_receives(served, group, chosen.count, expression, kind)


def is_fast(rows: dict[tuple[str, str], list[Row]]) -> bool:
    """Print the medians; whether the native kernel is above the floors."""
    good = True
    for (what, name), found in rows.items():
        cpu = statistics.median(each.cpu for each in found)
        rate = statistics.median(each.rate for each in found)
        java = rows.get((what, "java"))
        times = statistics.median(each.cpu for each in java) / cpu if java else 0.0
        beside = f"; {times:.1f} times Java's rate for its CPU" if java else ""
        print(f"median: {what:22} {name:16} {rate:9,.0f}/s {cpu:7.2f} µs of CPU{beside}")
        if name == "native":
            good = good and (not java or times >= JAVA_FLOOR)
            good = good and (what != "send" or 1e6 / cpu >= RATE_FLOOR)
    return good


if __name__ == "__main__":
    sys.exit(main())
