"""The servers that software of other versions is run against."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from tests.support.servers.clusters import QUICK_CHECKS, JavaPeer
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["RUN_SECONDS_MAX", "Servers", "servers_of"]

RUN_SECONDS_MAX = 600

SETTINGS = {
    "brokerName": "broker-a",
    "enablePropertyFilter": "true",
    "messageDelayLevel": " ".join(["1s"] * 18),
    **QUICK_CHECKS,
}


class Servers(NamedTuple):
    """A name server and a broker that run."""

    kind: str
    """``ours`` or ``java``."""
    namesrv: str
    broker: str


@contextlib.contextmanager
def servers_of(kind: str, folder: Path) -> Iterator[Servers]:
    """``kerolox up``, or the Java servers of 4.9."""
    if kind == "ours":
        with Up(folder, settings=SETTINGS) as up:
            yield Servers(kind, up.namesrv, up.broker)
    else:
        settings = tuple(f"{key}={value}" for key, value in SETTINGS.items())
        with JavaPeer(folder, settings=settings) as peer:
            namesrv, broker = (f"127.0.0.1:{port}" for port in (peer.namesrv_port, peer.port))
            yield Servers(kind, namesrv, broker)
