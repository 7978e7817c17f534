"""The chart with accounts and enforced TLS, as processes: they find and let in each other."""

from __future__ import annotations

import contextlib
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from kerolox import Credentials, Message, ProducerSettings, TlsSettings
from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from kerolox.client.sync import Producer
from kerolox.errors import AccessDeniedError, ClientError
from tests.deploy.composed import DATA, SHIFT, loopback_hosts, wait_for_route
from tests.deploy.test_helm import of_kind, render
from tests.support.eventually import wait_until
from tests.support.servers.command import Server, kerolox

pytestmark = pytest.mark.xdist_group("deploy-secured")

FOLDERS = {
    "/etc/kerolox-accounts": "accounts",
    "/etc/kerolox-account": "account",
    "/etc/kerolox-console": "users",
    "/etc/kerolox-tls": "tls",
}
PORTS = {"namesrv": (9876, 5558), "broker": (10911, 5557)}
ACCOUNTS = """
accounts:
  - {accessKey: operator, secretKey: "a long secret", admin: true}
  - {accessKey: shop-service, secretKey: "another secret", topicPerms: [Orders=PUB]}
"""
VALUES: dict[str, Any] = {
    "nameServers": {"replicas": 1},
    "brokers": {"groups": ["a"], "replicas": 2},
    "accounts": {"existingSecret": "accounts"},
    "tls": {"existingSecret": "certificate", "mode": "enforcing"},
    "console": {"enabled": True, "usersSecret": "users"},
}


class Secured:
    """Pods of the chart as processes, each with a loopback address in place of its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = render(**VALUES)
        names = []
        for each in of_kind(self.objects, "StatefulSet"):
            name = each["metadata"]["name"]
            names += [f"{name}-{index}" for index in range(each["spec"]["replicas"])]
        # Name servers first, then masters: a slave learns of a later one when it registers again.
        names.sort(key=lambda name: ("namesrv" not in name, name))
        self.hosts = loopback_hosts(names, 101)
        self.console_host = loopback_hosts(["console"], 100)["console"]
        self._make_secrets()

    @property
    def name_server(self) -> str:
        return f"{next(iter(self.hosts.values()))}:{9876 + SHIFT}"

    @property
    def tls(self) -> TlsSettings:
        return TlsSettings(ca=self.folder / "tls" / "ca.crt")

    def _make_secrets(self) -> None:
        for name in FOLDERS.values():
            (self.folder / name / "conf").mkdir(parents=True)
        authority = trustme.CA()
        issued = authority.issue_cert(*self.hosts.values(), self.console_host)
        issued.cert_chain_pems[0].write_to_path(str(self.folder / "tls" / "tls.crt"))
        issued.private_key_pem.write_to_path(str(self.folder / "tls" / "tls.key"))
        authority.cert_pem.write_to_path(str(self.folder / "tls" / "ca.crt"))
        tools = 'accessKey: operator\nsecretKey: "a long secret"\n'
        (self.folder / "accounts" / "plain_acl.yml").write_text(ACCOUNTS)
        (self.folder / "accounts" / "tools.yml").write_text(tools)
        (self.folder / "account" / "conf" / "tools.yml").write_text(tools)
        users = ("--users", self.folder / "users" / "users.json")
        added = ("console", "user", "add", "anna", "--password-stdin", *users)
        assert kerolox(*added, stdin=b"a long passphrase\n").returncode == 0

    def local(self, text: str, name: str = "") -> str:
        """A text of the chart for this machine."""
        for pod, host in self.hosts.items():
            service = pod.rpartition("-")[0]
            text = text.replace(f"{pod}.{service}.messaging.svc.cluster.local", host)
        for place, here in FOLDERS.items():
            text = text.replace(f"{place}/", f"{self.folder / here}/")
            text = text if text != place else str(self.folder / here)
        text = text.replace(DATA, str(self.folder / "data" / name)).replace("$(POD_NAME)", name)
        return text.replace(":9876", f":{9876 + SHIFT}")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for pod in self.hosts:
                owner = pod.rpartition("-")[0]
                template = self.objects["StatefulSet", owner]["spec"]["template"]["spec"]
                [container] = template["containers"]
                settings = self._settings(pod, owner, container["name"])
                given = [
                    self.local(each, pod).replace("/etc/kerolox/", f"{settings}/")
                    for each in container["args"]
                ]
                given += ["--host", self.hosts[pod]]
                if container["name"] == "namesrv":
                    given += ["--port", str(9876 + SHIFT)]
                stack.enter_context(Server(self.folder / "run" / pod, *given))
            stack.enter_context(self._console())
            yield

    def _settings(self, pod: str, owner: str, role: str) -> Path:
        folder = self.folder / "settings" / pod
        folder.mkdir(parents=True)
        port, figures = PORTS[role]
        for name, text in self.objects["ConfigMap", owner]["data"].items():
            moved = f"listenPort={port + SHIFT}\n" if role == "broker" else ""
            moved += f"metricsPromExporterPort={figures + SHIFT}\n"
            text = self.local(text, pod).replace("=*", f"={self.hosts[pod]}")
            (folder / name).write_text(text + moved)
        return folder

    def _console(self) -> Server:
        template = self.objects["Deployment", "mq-kerolox-console"]["spec"]["template"]["spec"]
        [container] = template["containers"]
        settings = self.folder / "settings" / "console"
        settings.mkdir()
        texts = self.objects["ConfigMap", "mq-kerolox-console"]["data"]
        for name, text in texts.items():
            (settings / name).write_text(self.local(text))
        given = [self.local(each, "console") for each in container["args"]]
        given[given.index("0.0.0.0")] = self.console_host
        environment = {
            each["name"]: self.local(each["value"], "console").replace(
                "/etc/kerolox/", f"{settings}/"
            )
            for each in container["env"]
        }
        (self.folder / "data" / "console").mkdir(parents=True)
        port = ("--port", str(8089 + SHIFT))
        return Server(self.folder / "run" / "console", *given, *port, **environment)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    chart = Secured(tmp_path_factory.mktemp("chart"))
    operator = Credentials("operator", "a long secret")
    settings = ClientSettings(credentials=operator, tls=chart.tls)
    with chart.running(), Admin(chart.name_server, settings=settings) as admin:
        wait_until(lambda: len(list(admin.cluster_status())) == 2, what="both brokers are known")
        admin.create_topic("Orders", queues=2)
        wait_for_route("Orders", 1, chart.name_server, settings)
        yield chart


def test_slaves_of_the_chart_follow_with_accounts_and_tls(secured: Secured) -> None:
    operator = Credentials("operator", "a long secret")
    settings = ClientSettings(credentials=operator, tls=secured.tls)
    with Admin(secured.name_server, settings=settings) as admin:

        def follows() -> bool:
            with contextlib.suppress(ClientError):
                roles = [admin.broker_role(node.address) for node in admin.cluster_status()]
                return len(roles) == 2 and any(role.is_following for role in roles)
            return False

        wait_until(follows, what="the slave follows")
    account = Credentials("shop-service", "another secret")
    settings = ProducerSettings(credentials=account, tls=secured.tls)
    with Producer("shop", secured.name_server, settings=settings) as producer:
        # SYNC_MASTER: it is on the slave, too.
        wait_until(
            lambda: producer.send(Message("Orders", b"paid")).status.name == "SEND_OK",
            what="a message is on both",
        )


def test_strangers_are_refused_by_the_secured_chart(secured: Secured) -> None:
    stranger = Credentials("shop-service", "a wrong secret")
    settings = ProducerSettings(credentials=stranger, tls=secured.tls)
    with (
        Producer("shop", secured.name_server, settings=settings) as producer,
        pytest.raises(AccessDeniedError),
    ):
        producer.send(Message("Orders", b"free"))


def test_the_secured_console_answers_by_tls(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.folder / "tls" / "ca.crt"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    url = f"https://{secured.console_host}:{8089 + SHIFT}/health"
    with opener.open(url, timeout=60) as answer:
        assert answer.status == 200
