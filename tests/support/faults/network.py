"""Hosts with a network between them that delays, loses and cuts: network namespaces, and a switch
in this process that every packet passes.

A host is a namespace of Linux with one *tun* device; the switch reads each device's packets and
writes them to the one of their destination, later or never as it is told. This process has a
device of its own, so it reaches the hosts and they reach it. It needs root, ``/dev/net/tun`` and
``ip`` of iproute2, and no module of the kernel for faults.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import heapq
import itertools
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Host", "Network", "Way", "why_no_network"]

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TUN = "/dev/net/tun"
PACKET_BYTES_MAX = 9_000
"""The devices' MTU: large, so that there are few packets."""
WAITING_MAX = 10_000
"""Packets on their way at a time; more are lost."""
_numbers = itertools.count()


@dataclass
class Way:
    """What becomes of the packets from one host to another."""

    delay_seconds: float = 0.0
    loss: float = 0.0
    """Share of the packets that are lost."""
    is_cut: bool = False
    """All are lost."""


@dataclass(frozen=True)
class Host:
    """A host of the network, or this process's own."""

    address: str
    namespace: str = ""

    @property
    def prefix(self) -> tuple[str, ...]:
        """Begins the command of a process that runs there."""
        return ("ip", "netns", "exec", self.namespace) if self.namespace else ()


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert not done.returncode, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


class Network:
    """A context manager; its hosts are gone behind it.

    Attributes:
        own: the host that this process is.
        hosts: the others.
    """

    def __init__(self, hosts: int) -> None:
        self._count = hosts
        self._stack = contextlib.ExitStack()
        self._devices: dict[bytes, int] = {}
        self._ways: dict[tuple[bytes, bytes], Way] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._switch, daemon=True)
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            net = self._free_net()
            self.own = Host(f"{net}.1")
            self._add(stack, self.own, net)
            for number in range(2, self._count + 2):
                namespace = f"kerolox-{os.getpid()}-{next(_numbers)}"
                _ip("netns", "add", namespace)
                stack.callback(_ip, "netns", "del", namespace)
                host = Host(f"{net}.{number}", namespace)
                self._add(stack, host, net)
                self.hosts.append(host)
            self._end, wake = os.pipe()
            stack.callback(os.close, self._end)
            self._thread.start()
            stack.callback(self._thread.join)
            stack.callback(os.close, wake)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def way(self, one: Host, other: Host) -> Way:
        """What becomes of packets from one to another."""
        ends = _packed(one.address), _packed(other.address)
        return self._ways.setdefault(ends, Way())

    def set(
        self,
        one: Host,
        other: Host,
        *,
        delay_seconds: float = 0.0,
        loss: float = 0.0,
        is_cut: bool = False,
    ) -> None:
        """Say it for both directions; without a fault: all is well again."""
        for way in (self.way(one, other), self.way(other, one)):
            way.delay_seconds, way.loss, way.is_cut = delay_seconds, loss, is_cut

    def _free_net(self) -> str:
        """The first three numbers of addresses that nobody has here."""
        while True:
            net = f"10.{random.randrange(64, 192)}.{random.randrange(256)}"
            if f"{net}." not in _ip("-4", "addr"):
                return net

    def _add(self, stack: contextlib.ExitStack, host: Host, net: str) -> None:
        device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, device)
        name = f"kx{os.getpid() % 1_000_000}n{next(_numbers)}"
        wanted = struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(device, TUNSETIFF, wanted)
        there: tuple[str, ...] = ()
        if host.namespace:
            _ip("link", "set", name, "netns", host.namespace)
            there = ("-n", host.namespace)
            _ip(*there, "link", "set", "lo", "up")
        _ip(*there, "addr", "add", f"{host.address}/24", "dev", name)
        _ip(*there, "link", "set", name, "mtu", str(PACKET_BYTES_MAX), "up")
        self._devices[_packed(host.address)] = device

    def _switch(self) -> None:
        """Pass packets on until the end of the network."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            for device in self._devices.values():
                selector.register(device, selectors.EVENT_READ)
            while True:
                rest = self._late[0][0] - time.monotonic() if self._late else None
                for key, _ in selector.select(None if rest is None else max(rest, 0)):
                    if key.fd == self._end:
                        return
                    self._read(key.fd)
                now = time.monotonic()
                while self._late and self._late[0][0] <= now:
                    _, _, device, packet = heapq.heappop(self._late)
                    self._write(device, packet)

    def _read(self, device: int) -> None:
        try:
            packet = os.read(device, PACKET_BYTES_MAX + 100)
        except OSError:
            return
        ends = packet[12:16], packet[16:20]
        target = self._devices.get(ends[1])
        way = self._ways.get(ends)
        if target is None or packet[0] >> 4 != 4:
            return
        if way is None:
            self._write(target, packet)
        elif not way.is_cut and random.random() >= way.loss:
            if not way.delay_seconds:
                self._write(target, packet)
            elif len(self._late) < WAITING_MAX:
                due = time.monotonic() + way.delay_seconds
                heapq.heappush(self._late, (due, next(self._order), target, packet))

    def _write(self, device: int, packet: bytes) -> None:
        # A device whose queue is full loses packets, as any does.
        with contextlib.suppress(OSError):
            os.write(device, packet)


@functools.cache
def why_no_network() -> str:
    """Why this machine lets us have none; empty: it does."""
    if shutil.which("ip") is None:
        return "ip (iproute2) is not here"
    try:
        with Network(1):
            return ""
    except (OSError, AssertionError) as error:
        return f"no namespaces, or no {TUN}: {error}"
