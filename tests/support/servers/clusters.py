"""Two clusters with one face: ours (``kerolox up``) and the Java broker, each on free ports."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.programs import build_java, java_of
from tests.support.servers.settings import ANY_DISK_JAVA
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "NO_TLS",
    "Cluster",
    "JavaPeer",
    "cluster",
    "java_cluster",
    "often_asking",
    "our_cluster",
    "start_java",
]

QUICK_CHECKS = {
    "transactionCheckInterval": 500,
    "transactionTimeOut": 300,
    # Of 15 questions, half a second apart, a busy machine may answer none.
    "transactionCheckMax": 10_000,
}
"""Producers are asked about open transactions soon, and as long as they need to answer."""

NO_TLS = ("-Dtls.server.mode=disabled",)
"""Most of the work of a start is the making of a key that hardly any test uses."""

SETTINGS = {**QUICK_CHECKS, "traceTopicEnable": "true", "enablePropertyFilter": "true"}
"""What both brokers of the contract tests are set to."""


@dataclass(frozen=True)
class Cluster:
    """A name server and a broker that run."""

    kind: str
    """``ours`` or ``java``."""
    name_server: str
    broker: str


class JavaPeer:
    """The Java name server and broker, as processes of their own on free ports.

    Args:
        data: folder for the store, the settings and the logs.
        settings: more lines of broker.conf.
        with_namesrv: start a name server too; without one the broker registers nowhere.
        with_broker: start a broker too.
        options: of both Java processes.
        accounts: the file of access control (``plain_acl.yml``).
        prefix: command that each process is started by.
        built: gives the folder with the libraries of both, those of 4.9 by default.
    """

    def __init__(
        self,
        data: Path,
        *,
        settings: tuple[str, ...] = (),
        with_namesrv: bool = True,
        with_broker: bool = True,
        options: tuple[str, ...] = NO_TLS,
        accounts: str = "",
        prefix: tuple[str, ...] = (),
        built: Callable[[], Path] = build_java,
    ) -> None:
        self.built = built
        self.options, self.accounts, self.prefix = options, accounts, prefix
        self.data = data
        self.settings = settings
        self.with_namesrv, self.with_broker = with_namesrv, with_broker
        self.port, self.namesrv_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> JavaPeer:
        home = self.data / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):
            (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
        if self.accounts:
            (home / "conf" / "plain_acl.yml").write_text(self.accounts)
        namesrv = [f"listenPort={self.namesrv_port}", f"kvConfigPath={home / 'kvConfig.json'}"]
        try:
            if self.with_namesrv:
                self._start("namesrv", "namesrv.NamesrvStartup", namesrv)
            if self.with_broker:
                self._start("broker", "broker.BrokerStartup", self._broker_settings())
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def broker(self) -> subprocess.Popen[bytes]:
        """The broker's process."""
        return self._processes[-1]

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        for process in self._processes:
            process.kill()
            process.wait(timeout=SECONDS_MAX)
        self._processes.clear()

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(timeout=SECONDS_MAX)
        self._processes.clear()

    def _broker_settings(self) -> list[str]:
        return [
            "brokerClusterName=DefaultCluster",
            "brokerName=broker-a",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"listenPort={self.port}",
            f"namesrvAddr=127.0.0.1:{self.namesrv_port}" if self.with_namesrv else "",
            f"storePathRootDir={self.data / 'store'}",
            f"storePathCommitLog={self.data / 'store' / 'commitlog'}",
            "mappedFileSizeCommitLog=67108864",
            # A machine that is busy with other tests is no reason to refuse a send.
            "waitTimeMillsInSendQueue=10000",
            "osPageCacheBusyTimeOutMills=10000",
            *_lines(ANY_DISK_JAVA),
            *self.settings,
        ]

    def _start(self, name: str, main_class: str, settings: list[str]) -> None:
        process = start_java(
            self.data,
            name,
            main_class,
            settings,
            built=self.built,
            options=self.options,
            prefix=self.prefix,
        )
        self._processes.append(process)


def start_java(
    data: Path,
    name: str,
    main_class: str,
    settings: Sequence[str],
    *,
    built: Callable[[], Path],
    options: tuple[str, ...] = NO_TLS,
    prefix: tuple[str, ...] = (),
) -> subprocess.Popen[bytes]:
    """A Java server that has started.

    Args:
        data: folder of its settings and its log, which have its ``name``.
        name: of the server.
        main_class: its class below ``org.apache.rocketmq``.
        settings: lines of its configuration.
        built: gives the folder with its libraries.
        options: of Java.
        prefix: command that the process is started by.
    """
    home, conf, log = data / "home", data / f"{name}.conf", data / f"{name}.log"
    conf.write_text("\n".join(settings) + "\n")
    options = (*options, f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
    main_class = f"org.apache.rocketmq.{main_class}"
    command = java_of(built(), main_class, "-c", str(conf), options=options)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def started() -> bool:
        assert process.poll() is None, log.read_text()
        return "boot success" in log.read_text()

    try:
        wait_until(started, what=f"the start of the Java {name}")
    except BaseException:
        process.kill()
        process.wait(timeout=SECONDS_MAX)
        raise
    return process


@contextmanager
def often_asking(kind: str, folder: Path, *, checks: int = 15) -> Iterator[Cluster]:
    """A cluster that asks often about open halves, 15 times within some seconds by default, and
    then sets them aside.

    Args:
        kind: ``ours`` or ``java``.
        folder: for its stores and logs.
        checks: how often it asks about a half.
    """
    often = {"transactionCheckInterval": 100, "transactionTimeOut": 50}
    often["transactionCheckMax"] = checks
    if kind == "ours":
        with Up(folder, settings=often) as up:
            yield Cluster(kind, up.namesrv, up.broker)
    else:
        with JavaPeer(folder, settings=_lines(often)) as peer:
            yield Cluster(kind, f"127.0.0.1:{peer.namesrv_port}", f"127.0.0.1:{peer.port}")


def _lines(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Lines of broker.conf."""
    return tuple(f"{key}={value}" for key, value in settings.items())


@pytest.fixture(scope="package")
def our_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """``kerolox up`` in a process of its own."""
    with Up(tmp_path_factory.mktemp("ours"), settings=SETTINGS) as up:
        yield Cluster("ours", up.namesrv, up.broker)


@pytest.fixture(scope="package")
def java_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The Java name server and broker."""
    with JavaPeer(tmp_path_factory.mktemp("java"), settings=_lines(SETTINGS)) as peer:
        yield Cluster("java", f"127.0.0.1:{peer.namesrv_port}", f"127.0.0.1:{peer.port}")


@pytest.fixture(scope="package", params=["ours", pytest.param("java", marks=pytest.mark.java)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each test runs on both."""
    name = {"ours": "our_cluster", "java": "java_cluster"}[request.param]
    made: Cluster = request.getfixturevalue(name)
    return made
