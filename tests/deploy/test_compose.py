"""The compose file: its form, and its services as processes of this machine."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import compose_spec
import pytest
import yaml

from kerolox import Message
from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings
from kerolox.client.sync import Producer, PullConsumer
from kerolox.controller.config import ControllerConfig
from kerolox.doctor import Severity, check_file
from kerolox.doctor.checks.brokers import FILES_WANTED
from kerolox.errors import ClientError
from tests.deploy.composed import (
    COMPOSE,
    DEPLOY,
    Composed,
    interpolated,
    read_compose,
    wait_for_route,
)
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox

pytestmark = pytest.mark.xdist_group("deploy-compose")

BROKERS = ("broker-a-master", "broker-a-slave", "broker-b-master", "broker-b-slave")
TOPIC = "Orders"


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    services = Composed(tmp_path_factory.mktemp("compose"))
    added = ("console", "user", "add", "anna", "--role", "admin", "--password-stdin")
    (services.folder / "console").mkdir()
    done = kerolox(*added, stdin=b"a long passphrase\n", **services.environment("console"))
    assert done.returncode == 0, done.stderr
    with services.running():
        yield services


@pytest.fixture(scope="module")
def admin(composed: Composed) -> Iterator[Admin]:
    for address in composed.name_servers().split(";"):
        with Admin(address) as one:
            wait_until(
                lambda one=one: len(list(one.cluster_status())) == len(BROKERS),
                what=f"{address} knows all brokers",
            )
    with Admin(composed.name_servers()) as operator:
        yield operator


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_compose_accepts_the_file() -> None:
    text = yaml.safe_dump(read_compose())
    assert set(compose_spec.PyCompose.from_yaml(text).service_names()) >= set(BROKERS)
    with pytest.raises(ValueError, match="depend"):
        compose_spec.PyCompose.from_yaml(text.replace("depends_on", "depend_on"))


def test_every_mounted_file_of_the_compose_file_is_there() -> None:
    read = read_compose()
    for service in read["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            is_there = (COMPOSE.parent / source).exists()
            assert is_there if source.startswith(".") else source in read["volumes"], mount


def test_no_service_of_ours_has_more_rights_than_it_needs() -> None:
    for service in Composed(Path()).services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["ulimits"]["nofile"] == FILES_WANTED
        assert "privileged" not in service
    for service in read_compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_controllers_beside_the_cluster_agree_on_who_they_are() -> None:
    path = COMPOSE.parent / "controllers.yaml"
    read = yaml.safe_load(interpolated(path.read_text(), {}))
    of_prometheus = read["services"].pop("prometheus")
    assert set(compose_spec.PyCompose.from_yaml(yaml.safe_dump(read)).service_names()) == {
        f"controller-{number}" for number in range(3)
    }
    [mount] = of_prometheus["volumes"]
    source, place, _ = mount.split(":")
    [scraped] = yaml.safe_load((COMPOSE.parent / source).read_text())
    [job] = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    [found] = job["file_sd_configs"]
    assert any(fnmatch(place, each) for each in found["files"])
    port = ControllerConfig().metrics_prom_exporter_port
    assert scraped["targets"] == [f"{name}:{port}" for name in read["services"]]
    for name, service in read["services"].items():
        command = service["command"]
        self_id = command[command.index("--self-id") + 1]
        config = ControllerConfig.load(
            COMPOSE.parent / "controller.conf", controller_d_leger_self_id=self_id
        )
        assert config.own_address == f"{name}:9878"
        assert len(config.members) == 3
        assert service["cap_drop"] == ["ALL"]
        assert service["image"] == read_compose()["services"]["namesrv-a"]["image"]
        [port] = service["ports"]
        assert port.startswith("127.0.0.1:")
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in read["volumes"] or (COMPOSE.parent / source).exists()


@pytest.mark.parametrize("name", BROKERS)
def test_the_settings_of_each_broker_have_no_fault(name: str) -> None:
    findings = check_file(COMPOSE.parent / f"{name}.conf")
    assert [each for each in findings if each.severity > Severity.NOTE] == []


def test_clients_are_led_to_each_broker_under_the_port_that_is_published() -> None:
    services = read_compose(KEROLOX_HOST="mq.example.com", KEROLOX_BIND="0.0.0.0")["services"]
    for name in BROKERS:
        command = services[name]["command"]
        advertised = command[command.index("--advertise") + 1]
        port = advertised.removeprefix("mq.example.com:")
        conf = (COMPOSE.parent / f"{name}.conf").read_text().splitlines()
        assert {f"listenPort={port}", f"brokerIP2={name}"} <= set(conf)
        [grpc] = [line.partition("=")[2] for line in conf if line.startswith("grpcServerPort=")]
        published = [f"0.0.0.0:{each}:{each}" for each in (port, grpc)]
        assert services[name]["ports"] == published


def test_a_message_goes_through_the_composed_cluster(composed: Composed, admin: Admin) -> None:
    masters = [node for node in admin.cluster_status() if node.broker_id == 0]
    assert {node.broker_name for node in masters} == {"broker-a", "broker-b"}
    admin.create_topic(TOPIC, queues=2)
    wait_for_route(TOPIC, 2, composed.name_servers(), ClientSettings())
    bodies = {f"order {number}".encode() for number in range(8)}
    with Producer("shop", composed.name_servers()) as producer:
        sent = [producer.send(Message(TOPIC, body)) for body in bodies]
    assert {each.queue.broker_name for each in sent} == {"broker-a", "broker-b"}
    found = set()
    with PullConsumer("billing", composed.name_servers()) as consumer:
        for queue in consumer.queues(TOPIC):
            offset = consumer.min_offset(queue)
            while offset < consumer.max_offset(queue):
                pulled = consumer.pull(queue, offset)
                found |= {message.body for message in pulled.messages}
                offset = pulled.next_offset
    assert found == bodies


def test_the_slaves_of_the_composed_cluster_follow(admin: Admin) -> None:
    def follow() -> bool:
        roles = [admin.broker_role(node.address) for node in admin.cluster_status()]
        slaves = [role for role in roles if role.role == "SLAVE"]
        ends = {role.broker_name: role.log_end for role in roles if role.role != "SLAVE"}
        return (
            len(slaves) == 2
            and all(role.is_following for role in slaves)
            and all(role.log_end == ends[role.broker_name] for role in slaves)
        )

    wait_until(lambda: _holds(follow), what="both slaves follow and have all")


def _holds(condition: object) -> bool:
    try:
        return bool(condition())  # type: ignore[operator]
    except ClientError:
        return False


def test_the_console_of_the_composed_cluster_answers(composed: Composed) -> None:
    address = composed.servers["console"].addresses["console"]
    assert "Log in" in get(f"http://{address}/login")
    users = composed.environment("console")["KEROLOX_CONSOLE_USERS"]
    assert kerolox("console", "user", "list", "--users", users).stdout == "anna admin\n"


def test_prometheus_finds_metrics_under_each_of_its_targets(composed: Composed) -> None:
    read = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())
    [job] = read["scrape_configs"]
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert f'job="{job["job_name"]}"' in alerts
    [targets] = [each["targets"] for each in job["static_configs"]]
    assert {each.split(":")[0] for each in targets} == set(composed.services) - {"console"}
    for target in targets:
        assert "process_open_fds" in get(f"http://{composed.local(target)}/metrics")
    [rules] = read["rule_files"]
    assert f"../prometheus/alerts.yml:{rules}:ro" in str(read_compose()["services"]["prometheus"])


def test_grafana_is_given_our_board_and_the_source_of_its_metrics() -> None:
    services = read_compose()["services"]
    folder = COMPOSE.parent / "grafana"
    [provider] = yaml.safe_load((folder / "dashboards.yaml").read_text())["providers"]
    assert f"../grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
    assert (DEPLOY / "grafana" / "kerolox.json").exists()
    [source] = yaml.safe_load((folder / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


@pytest.mark.parametrize(
    "place",
    [
        "namesrv-b:5558/health/live",
        "broker-b-slave:5557/health/live",
        "broker-b-slave:5557/health/ready",
        "console:8089/health",
    ],
)
def test_the_health_check_of_the_image_asks_each_role(composed: Composed, place: str) -> None:
    assert health(f"http://{composed.local(place)}") == (0, "")


def test_the_health_check_says_what_a_server_answered(composed: Composed) -> None:
    url = f"http://{composed.local('namesrv-a:5558/health/dead')}"
    assert health(url) == (1, f"{url}: 404\n")


def health(url: str) -> tuple[int, str]:
    """Exit code and stderr of the image's check."""
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "docker" / "health.py")],
        env={"KEROLOX_HEALTH": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr
