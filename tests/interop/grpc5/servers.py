"""Servers for clients of RocketMQ 5: ours, and RocketMQ's proxy 5.3.3 in local mode, with the
broker in its process. Both speak TLS."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from kerolox.admin.sync import Admin
from tests.interop.grpc5.driver import Server
from tests.support.eventually import wait_until
from tests.support.programs import build_broker_53, build_proxy_53, java_of
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kerolox.client import ClientSettings
    from tests.support.servers.tls import Authority

__all__ = ["PROXY_STARTED", "Served", "java_proxy", "our_server"]

PROXY_STARTED = "rocketmq-proxy startup successfully"
START_SECONDS_MAX = 180.0
SETTINGS = {
    "brokerName": "broker-a",
    "enablePropertyFilter": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 500,
    "transactionCheckMax": 10_000,
}


class Served(NamedTuple):
    """A server that runs."""

    namesrv: str
    server: Server
    up: Up | None = None
    """Ours; None: it is Java's."""


@contextlib.contextmanager
def our_server(folder: Path, authority: Authority, **settings: object) -> Iterator[Served]:
    """``kerolox up`` with a port for gRPC."""
    certificate, key = authority.files("127.0.0.1")
    tls = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": certificate,
        "tls.server.keyPath": key,
    }
    with Up(folder / "up", settings={**SETTINGS, **tls, **settings}, grpc=True) as up:
        yield Served(up.namesrv, Server(up.grpc), up)


class _Proxy(JavaPeer):
    """The Java name server, and a proxy in place of a broker: it brings one."""

    def __init__(self, data: Path, settings: tuple[str, ...], proxy: dict[str, object]) -> None:
        super().__init__(data, settings=settings, built=build_broker_53)
        self.grpc_port = free_port()
        self._proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            "brokerConfigPath": str(data / "broker.conf"),
            **proxy,
        }

    def _start(self, name: str, main_class: str, settings: list[str]) -> None:
        if name != "broker":
            super()._start(name, main_class, settings)
            return
        (self.data / "broker.conf").write_text("\n".join(settings) + "\n")
        self._proxy["namesrvAddr"] = f"127.0.0.1:{self.namesrv_port}"
        configuration, log = self.data / "proxy.json", self.data / "proxy.log"
        configuration.write_text(json.dumps(self._proxy))
        home = self.data / "home"
        command = java_of(
            build_proxy_53(),
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pm", "local", "-pc", str(configuration)),
            options=(f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"),
        )
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._processes.append(process)

        def started() -> bool:
            assert process.poll() is None, log.read_text()
            return PROXY_STARTED in log.read_text()

        wait_until(started, what="the start of the proxy", seconds=START_SECONDS_MAX)


@contextlib.contextmanager
def java_proxy(folder: Path, authority: Authority) -> Iterator[Served]:
    """The proxy of 5.3.3 with its broker, and a name server."""
    certificate, key = authority.files("127.0.0.1")
    tls = {
        "tlsTestModeEnable": False,
        "tlsKeyPath": str(authority.readable_key(key)),
        "tlsCertPath": str(certificate),
    }
    settings = {
        **SETTINGS,
        "recallMessageEnable": "true",
        "timerPrecisionMs": 1000,
        # A transaction that is asked about again before its end is written is delivered twice.
        "transactionOpBatchInterval": 100,
    }
    lines = tuple(f"{name}={value}" for name, value in settings.items())
    peer = _Proxy(folder / "java", lines, tls)
    server = Server(f"127.0.0.1:{peer.grpc_port}")
    with peer:
        yield Served(f"127.0.0.1:{peer.namesrv_port}", server)


@contextlib.contextmanager
def admin_of(served: Served, settings: ClientSettings | None = None) -> Iterator[Admin]:
    """An operator of a server, once its broker is known."""
    with Admin(served.namesrv, settings=settings) as admin:
        wait_until(lambda: admin.cluster_info().brokers, what="the broker's registration")
        yield admin
