"""Claim: with TLS at least twice the Java broker's rate at half its CPU; handshakes starve nobody.

Sends with many in flight, over TLS, to the Java broker and to ours in turn, and to ours without TLS
beside them: medians of rates and of CPU per message, then JSON. Or full handshakes by the thousand,
while a plain connection asks every few milliseconds: how long its answers take.

    python benchmarks/tls.py [--passes 3] [--seconds 5] [--sizes 128,1024] [--apart]
    python benchmarks/tls.py --handshakes 5000 [--key rsa|p256]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trustme

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import Target, java_broker, our_broker
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

CONNECTIONS = 4
IN_FLIGHT = 64
ASK_SECONDS = 0.005
TICKS = os.sysconf("SC_CLK_TCK")


def context() -> ssl.SSLContext:
    """Of a client that believes anybody."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def connect(target: Target, secure: bool) -> socket.socket:
    host, _, port = target.address.rpartition(":")
    plain = socket.create_connection((host, int(port)))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context().wrap_socket(plain) if secure else plain


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def frame(size: int, queue: int) -> bytes:
    fields: dict[str, object] = {"a": "p", "b": "TlsBench", "c": "TBW102", "d": 4, "e": queue}
    fields |= {"f": 0, "g": 1_700_000_000_000, "h": 0, "i": "", "j": 0, "k": False, "m": False}
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=b"x" * size)
    return command.encode()


class Answers:
    """Counts whole frames of a stream."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def take(self) -> int:
        """Read once; how many came to their end."""
        read = self._sock.recv(256 * 1024)
        if not read:
            raise ConnectionError("the broker closed the connection")
        data = self._rest + read
        at = count = 0
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if end > len(data):
                break
            if count == 0 and b'"code":0' not in data[at:end]:
                raise RuntimeError(f"refused: {data[at:end]!r}")
            at = end
            count += 1
        self._rest = data[at:]
        return count


def send(
    target: Target, size: int, secure: bool, until: float, done: list[int], is_apart: bool
) -> None:
    """Keep so many in flight on one connection; apart: each in a write and a record of its own."""
    with connect(target, secure) as sock:
        request = frame(size, len(done) % 4)
        answers = Answers(sock)
        sock.sendall(request)
        while not answers.take():
            pass
        sock.sendall(request * IN_FLIGHT)
        total = 0
        while time.monotonic() < until:
            count = answers.take()
            total += count
            if count and not is_apart:
                sock.sendall(request * count)
            for _ in range(count if is_apart else 0):
                sock.sendall(request)
        done.append(total)


def one_run(
    target: Target, size: int, secure: bool, seconds: float, is_apart: bool
) -> dict[str, float]:
    done: list[int] = []
    start, cpu = time.monotonic(), cpu_seconds(target.pid)
    threads = [
        threading.Thread(target=send, args=(target, size, secure, start + seconds, done, is_apart))
        for _ in range(CONNECTIONS)
    ]
    own = time.process_time()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    spent = time.monotonic() - start
    total = sum(done)
    return {
        "rate": total / spent,
        "cpu_us": (cpu_seconds(target.pid) - cpu) / total * 1e6,
        "generator_cpu_us": (time.process_time() - own) / total * 1e6,
    }


def speed(options: argparse.Namespace) -> None:
    runs: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        small = ("mappedFileSizeCommitLog=268435456", "fileReservedTime=1")
        java = stack.enter_context(java_broker(root / "java", *small))
        ours = stack.enter_context(our_broker(root / "ours", options.kernel, *small))
        cases = [(java, "java tls", True), (ours, "ours tls", True), (ours, "ours plain", False)]
        for target, _, secure in cases:
            one_run(target, 128, secure, options.seconds, options.apart)
        for turn in range(options.passes):
            for size in map(int, options.sizes.split(",")):
                for target, label, secure in cases:
                    found = one_run(target, size, secure, options.seconds, options.apart)
                    runs[size, label].append(found)
                    print(turn, size, label, {k: round(v, 2) for k, v in found.items()}, flush=True)
    rows: list[dict[str, Any]] = []
    for (size, label), found in runs.items():
        medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
        rows.append({"size": size, "label": label, **medians})
        print(f"{size:>6} {label:<11} {medians['rate']:>10,.0f}/s {medians['cpu_us']:>7.2f} us")
    print(json.dumps(rows))


SHAKE = """
import asyncio, ssl, sys, time
sys.path.insert(0, {root!r})
from benchmarks.tls import context
async def main(port, count, width):
    left, made = count, 0
    shared = context()
    async def work():
        nonlocal left, made
        while left > 0:
            left -= 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=shared)
            made += 1
            writer.transport.abort()
    start = time.monotonic()
    await asyncio.gather(*(work() for _ in range(width)))
    print(made, time.monotonic() - start)
asyncio.run(main(*map(int, sys.argv[1:])))
"""


def handshakes(options: argparse.Namespace) -> None:
    """Answers of a plain connection before handshakes by the thousand, and meanwhile."""
    authority = trustme.CA(key_type=trustme.KeyType[options.key_type])
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType[options.key_type])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pem = Path(folder) / "server.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
        ours = stack.enter_context(
            our_broker(Path(folder) / "ours", options.kernel, f"tls.server.certPath={pem}")
        )
        times: list[float] = []
        is_over = threading.Event()

        def ask() -> None:
            with connect(ours, False) as sock:
                request, answers = frame(128, 0), Answers(sock)
                while not is_over.wait(ASK_SECONDS):
                    begun = time.monotonic()
                    sock.sendall(request)
                    while not answers.take():
                        pass
                    times.append(time.monotonic() - begun)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(3)
        before = list(times)
        times.clear()
        cpu = cpu_seconds(ours.pid)
        command = [sys.executable, "-c", SHAKE.format(root=str(Path(__file__).parents[1]))]
        port = ours.address.rpartition(":")[2]
        half = str(options.handshakes // 2)
        clients = [
            subprocess.Popen([*command, port, half, "50"], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [client.communicate()[0].strip() for client in clients]
        cpu = cpu_seconds(ours.pid) - cpu
        is_over.set()
        asking.join()
        for label, found in (("before", before), ("meanwhile", times)):
            found.sort()
            high = found[int(len(found) * 0.99)]
            print(
                f"{label:<10} {len(found):>6} answers, median {statistics.median(found) * 1e3:.2f} "
                f"ms, p99 {high * 1e3:.2f} ms, longest {found[-1] * 1e3:.2f} ms"
            )
        for line in (Path(folder) / "ours" / "log").read_text().splitlines()[-200:]:
            if " closing " in line or "refusing" in line:
                print(line)
                break
        print(f"handshakes and seconds of each client: {said}")
        print(f"CPU of the broker per handshake: {cpu / options.handshakes * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", default="128,1024")
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--apart", action="store_true", help="each message in a record of its own")
    parser.add_argument("--handshakes", type=int, default=0)
    parser.add_argument("--key", choices=("rsa", "p256"), default="rsa")
    options = parser.parse_args()
    options.key_type = {"rsa": "RSA", "p256": "ECDSA"}[options.key]
    if options.handshakes:
        handshakes(options)
    else:
        speed(options)


if __name__ == "__main__":
    main()
