"""The services of ``deploy/compose`` as processes of this machine.

Each has a loopback address of its own, where its ports are the same everywhere: those of the file,
moved to a range that nobody else's wildcard listener or outgoing connection has.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from kerolox.errors import ClientError
from tests.support.eventually import wait_until
from tests.support.servers.command import Server

__all__ = [
    "COMPOSE",
    "CONFIG",
    "DATA",
    "DEPLOY",
    "IMAGE_CONFIG",
    "SHIFT",
    "Composed",
    "interpolated",
    "loopback_hosts",
    "read_compose",
    "wait_for_route",
]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
IMAGE_CONFIG = DEPLOY / "docker"
DATA, CONFIG = "/var/lib/kerolox", "/etc/kerolox/"

SHIFT = 2_000
"""Added to each port: below those that ``free_port`` gives to servers of other tests, of which some
listen on all addresses, and apart from the default ports."""
FIGURES_PORT = {"broker": 5557, "namesrv": 5558}
NAMESRV_PORT, CONSOLE_PORT = 9876, 8089

_VARIABLE = re.compile(r"\$\{(\w+)(?::(-|\?)([^}]*))?\}")
_PORT = re.compile(r"\b(9876|808\d|555[78]|109\d\d)\b")


def loopback_hosts(names: Iterable[str], first: int = 1) -> dict[str, str]:
    """Name → an address that no other process of the tests has."""
    number = os.getpid()
    network = f"127.{64 + number % 128}.{number // 128 % 256}"
    return {name: f"{network}.{at}" for at, name in enumerate(names, first)}


def interpolated(text: str, variables: dict[str, str]) -> str:
    """As compose does it: ``${NAME}``, ``${NAME:-default}``, ``${NAME:?error}``."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        found = variables.get(name, "")
        assert found or kind == "-", f"{name}: {rest}"
        return found or rest

    return _VARIABLE.sub(value, text)


def read_compose(**variables: str) -> dict[str, Any]:
    """The file with the variables that have to be set, and these."""
    text = interpolated(COMPOSE.read_text(), {"GRAFANA_PASSWORD": "secret", **variables})
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def wait_for_route(topic: str, brokers: int, name_servers: str, settings: ClientSettings) -> None:
    """Until each of the name servers leads clients to so many brokers of a topic: a broker tells
    them after it has made the topic, and a client asks any of them."""
    for address in name_servers.split(";"):
        with Admin(address, settings=settings) as admin:

            def is_known(admin: Admin = admin) -> bool:
                with contextlib.suppress(ClientError):
                    return len(admin.describe_route(topic).brokers) == brokers
                return False

            wait_until(is_known, what=f"{address} knows {topic} of {brokers} brokers")


class Composed:
    """Our services of the file, of which each runs its own command.

    Args:
        folder: for their data, settings and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        services = read_compose()["services"]
        self.services = {n: each for n, each in services.items() if "kerolox" in each["image"]}
        self.hosts = loopback_hosts(self.services)
        self.servers: dict[str, Server] = {}

    def local(self, text: str) -> str:
        """With our addresses and ports for those of the services."""
        for name in sorted(self.hosts, key=len, reverse=True):
            text = re.sub(rf"(?<![\w/-]){name}(?![\w.-])", self.hosts[name], text)
        return _PORT.sub(lambda match: str(int(match[1]) + SHIFT), text)

    def arguments(self, name: str) -> list[str]:
        """A service's command, with paths of this machine; its settings are written there."""
        role, *rest = self.services[name]["command"]
        host = self.hosts[name]
        found = [role, *(self._argument(name, role, each) for each in rest)]
        if role == "console":
            found[found.index("0.0.0.0")] = host
            return [*found, "--port", self.local(str(CONSOLE_PORT))]
        found += ["--host", host]
        return [*found, "--port", self.local(str(NAMESRV_PORT))] if role == "namesrv" else found

    def environment(self, name: str) -> dict[str, str]:
        """What the service's process has besides ours."""
        given = self.services[name].get("environment", {})
        # A variable that the host does not have leaves nothing of its text.
        return {key: self._argument(name, "", text or "") for key, text in given.items()}

    def name_servers(self) -> str:
        """As clients have them."""
        return self.local("namesrv-a:9876;namesrv-b:9876")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start each service, what it depends on first; in the end they stop well."""
        with contextlib.ExitStack() as stack:
            for name in self._order():
                server = Server(
                    self.folder / "run" / name, *self.arguments(name), **self.environment(name)
                )
                self.servers[name] = stack.enter_context(server)
            yield

    def _order(self) -> list[str]:
        order: list[str] = []
        while len(order) < len(self.services):
            order += [
                name
                for name, each in self.services.items()
                if name not in order and set(each.get("depends_on", ())) <= set(order)
            ]
        return order

    def _argument(self, name: str, role: str, text: str) -> str:
        if text.startswith(DATA):
            volumes = self.services[name]["volumes"]
            assert any(each.split(":")[1] == DATA for each in volumes), f"{name} loses its data"
            return str(self.folder / name) + text.removeprefix(DATA)
        if text.startswith(CONFIG):
            return str(self._settings(name, role, text))
        return self.local(text)

    def _settings(self, name: str, role: str, path: str) -> Path:
        """The file that is mounted there, or the image's, as it is on this machine."""
        mounts = [each.split(":") for each in self.services[name]["volumes"]]
        mounted = [COMPOSE.parent / each[0] for each in mounts if each[1] == path]
        source = mounted[0] if mounted else IMAGE_CONFIG / Path(path).name
        text = self.local(source.read_text()).replace("=*", f"={self.hosts[name]}")
        text += f"metricsPromExporterPort={FIGURES_PORT[role] + SHIFT}\n"
        target = self.folder / name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target
