"""Claim: thousands of TLS handshakes starve nobody.

Full handshakes by the thousand from two processes, while a plain connection asks every few
milliseconds: how long its answers take, before and meanwhile.

    python benchmarks/handshakes.py [--count 5000] [--key rsa|p256]

The processes that shake hands are nice, so that what is measured is the broker and not how the
machine shares its processors between them and the one that asks.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import trustme

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import Target, cpu_seconds, our_broker
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

KEYS = {"rsa": trustme.KeyType.RSA, "p256": trustme.KeyType.ECDSA}
WIDTH = 50
"""Handshakes of a process under way at the same time."""

ASK_SECONDS = 0.005


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


SHAKE = """
import asyncio, os, ssl, sys, time
os.nice(10)
sys.path.insert(0, {root!r})
from benchmarks.handshakes import context
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
    kind = KEYS[options.key]
    issued = trustme.CA(key_type=kind).issue_cert("127.0.0.1", key_type=kind)
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
        half = str(options.count // 2)
        clients = [
            subprocess.Popen([*command, port, half, str(WIDTH)], stdout=subprocess.PIPE, text=True)
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
        print(f"CPU of the broker per handshake: {cpu / options.count * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--key", choices=KEYS, default="rsa")
    handshakes(parser.parse_args())


if __name__ == "__main__":
    main()
