"""The chart: Helm renders and lints it, and Kubernetes' own types judge what comes out."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from kerolox.broker.config import BrokerConfig
from kerolox.config import load_settings
from kerolox.console.settings import PORT as CONSOLE_PORT
from kerolox.controller.config import ControllerConfig
from kerolox.doctor import Severity, check_file
from kerolox.namesrv.config import NamesrvConfig
from tests.deploy.composed import DEPLOY
from tests.deploy.rendered import CHART, KINDS, faults, render

# Each test imports it for itself: it starts threads, which a worker that is forked would lack.
if os.environ.get("CI") != "true" and find_spec("helm_python") is None:
    pytest.skip("helm_python is not here", allow_module_level=True)

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "nameServers": {"replicas": 3, "storage": {"storageClassName": "fast"}},
    "brokers": {
        "groups": ["a", "b", "payments"],
        "replicas": 3,
        "settings": {
            "mappedFileSizeCommitLog": 1073741824,
            "diskSpaceWarningLevelRatio": 0.95,
            "haAllowedSlaves": "10.*.*.*",
        },
        "external": {
            "enabled": True,
            "addresses": {
                f"{group}-{index}": f"{group}-{index}.example.com:10911"
                for group in ("a", "b", "payments")
                for index in range(3)
            },
            "grpcAddresses": {"a-0": "a-0.example.com:8081"},
        },
    },
    "controllers": {
        "replicas": 3,
        "secret": "one for all",
        "settings": {"scanNotActiveBrokerInterval": 1000},
    },
    "antiAffinity": "hard",
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "mq", "operator": "Exists"}],
    "accounts": {"existingSecret": "accounts"},
    "tls": {"existingSecret": "certificate", "mode": "enforcing"},
    "console": {
        "enabled": True,
        "usersSecret": "users",
        "oidcSecret": "oidc",
        "actions": True,
        "rootPath": "/mq",
    },
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
CASES = [
    pytest.param({}, id="defaults"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param(
        {
            "brokers": {"groups": ["a"], "replicas": 1, "replication": "ASYNC_MASTER"},
            "controllers": {"replicas": 1},
            "console": {"enabled": True, "oidcSecret": "oidc", "trustProxy": "10.0.0.1"},
        },
        id="small",
    ),
]


def of_kind(objects: dict[tuple[str, str], dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [each for (kind, _), each in objects.items() if kind in kinds]


def pods(objects: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["spec"]["template"] for each in of_kind(objects, "StatefulSet", "Deployment")]


@pytest.mark.parametrize("values", CASES)
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    import helm_python

    said = helm_python.lint(str(CHART), values, strict=True)
    assert said["errors"] == []
    # An icon is recommended, and there is none.
    assert [each for each in said["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("values", CASES)
def test_each_object_of_the_chart_has_the_form_of_its_kind(values: dict[str, Any]) -> None:
    for key, each in render(**values).items():
        if (each["apiVersion"], each["kind"]) in KINDS:
            assert faults(each) == [], key
        else:
            assert each["apiVersion"] == "monitoring.coreos.com/v1"


def test_the_types_find_what_is_wrong_with_an_object() -> None:
    good = render()["StatefulSet", "mq-kerolox-namesrv"]
    container = good["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    container["ports"][0] = {"name": "namesrv", "containerPort": "9876"}
    del good["spec"]["serviceName"], good["spec"]["selector"]
    place = "StatefulSet.spec.template.spec.containers[0]"
    assert {
        f"{place}.livenesProbe: no such field",
        f"{place}.ports[0].containerPort: '9876' is no int",
        "StatefulSet.spec.selector is missing",
    } <= set(faults(good))


@pytest.mark.parametrize(
    "values",
    [
        {"brokers": {"replica": 2}},
        {"brokers": {"groups": ["A_B"]}},
        {"brokers": {"settings": {"brokerId": 7}}},
        {"brokers": {"external": {"addresses": {"a-0": "mq.example.com"}}}},
        {"nameServers": {"replicas": 0}},
        {"tls": {"mode": "disabled"}},
        {"console": {"enabled": True}},
        {"brokers": {"external": {"enabled": True}}},
        {"brokers": {"settings": {"enableControllerMode": True}}},
        {"controllers": {"replicas": 2}},
        {"controllers": {"replicas": 3}, "accounts": {"existingSecret": "accounts"}},
    ],
    ids=str,
)
def test_the_chart_refuses_values_that_do_not_fit(values: dict[str, Any]) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError):
        render(**values)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, {"users"}),
        ({"oidcSecret": "s"}, {"users", "oidc"}),
        ({"usersSecret": "", "oidcSecret": "s"}, {"oidc"}),
    ],
    ids=str,
)
def test_the_console_of_the_chart_signs_in_by_what_is_given(
    values: dict[str, str], options: set[str]
) -> None:
    console = {"enabled": True, "usersSecret": "users", **values}
    spec = render(console=console)["Deployment", "mq-kerolox-console"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    arguments = container["args"]
    files = {
        each: arguments[arguments.index(f"--{each}") + 1]
        for each in ("users", "oidc")
        if f"--{each}" in arguments
    }
    assert set(files) == options
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in spec["volumes"]}
    for each, path in files.items():
        volume = volumes[mounted[path.rpartition("/")[0]]]
        assert volume["secret"]["secretName"] == {**console}[f"{each}Secret"]


@pytest.mark.parametrize("values", CASES)
def test_config_check_has_nothing_against_the_rendered_settings(
    values: dict[str, Any], tmp_path: Path
) -> None:
    checked = set()
    for each in of_kind(render(**values), "ConfigMap", "Secret"):
        for name, text in (each.get("data") or each["stringData"]).items():
            if name == "tls.properties":
                continue
            (tmp_path / name).write_text(text)
            findings = check_file(tmp_path / name)
            assert [found for found in findings if found.severity > Severity.NOTE] == [], name
            checked.add(name)
    assert {"namesrv.conf", "mq-kerolox-broker-a-0.conf"} <= checked
    controllers = {each for each in checked if "controller" in each}
    assert len(controllers) == values.get("controllers", {}).get("replicas", 0)


def test_controllers_and_brokers_of_the_chart_know_where_controllers_are() -> None:
    objects = render(**EVERYTHING)
    name = "mq-kerolox-controller"
    container = objects["StatefulSet", name]["spec"]["template"]["spec"]["containers"][0]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert objects["Service", name]["spec"]["clusterIP"] == "None"
    addresses = [
        f"{name}-{index}.{name}.messaging.svc.cluster.local:{ports['controller']}"
        for index in range(3)
    ]
    for index in range(3):
        text = objects["Secret", name]["stringData"][f"{name}-{index}.conf"]
        settings = load_settings(ControllerConfig, _properties(text), where="here")
        assert list(settings.members.values()) == addresses
        assert settings.own_address == addresses[index]
        assert settings.controller_secret == "one for all"
        assert settings.scan_not_active_broker_interval == 1_000
    for group in ("a", "b", "payments"):
        broker = f"mq-kerolox-broker-{group}"
        lines = _properties(objects["ConfigMap", broker]["data"][f"{broker}-2.conf"])
        assert lines["controllerAddr"].split(";") == addresses
        assert (lines["enableControllerMode"], lines["allAckInSyncStateSet"]) == ("true", "true")
        # Under a controller slaves show no account.
        assert "haAclEnable" not in lines


def _properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("values", CASES)
def test_each_broker_has_a_place_and_an_address_of_its_own(values: dict[str, Any]) -> None:
    objects = render(**values)
    places, addresses, grpc = set(), set(), set()
    for each in of_kind(objects, "StatefulSet"):
        if "broker" not in each["metadata"]["name"]:
            continue
        name, service = each["metadata"]["name"], each["spec"]["serviceName"]
        assert objects["Service", service]["spec"]["clusterIP"] == "None"
        for index in range(each["spec"]["replicas"]):
            text = objects["ConfigMap", name]["data"][f"{name}-{index}.conf"]
            lines = dict(line.split("=", 1) for line in text.splitlines())
            assert len(lines) == len(text.splitlines()), "a key stands twice"
            places.add((lines["brokerName"], lines["brokerId"]))
            addresses.add(lines["brokerIP1"])
            assert (lines["brokerRole"] == "SLAVE") is (index > 0)
            assert lines["brokerIP1"] == f"{name}-{index}.{service}.messaging.svc.cluster.local"
            assert lines["brokerIP2"] == lines["brokerIP1"]
            grpc.add(lines["grpcAdvertisedAddress"])
    assert len(places) == len(addresses) == len(grpc) > 0


def test_large_numbers_of_settings_stay_as_they_are() -> None:
    text = render(**EVERYTHING)["ConfigMap", "mq-kerolox-broker-a"]["data"]
    lines = text["mq-kerolox-broker-a-0.conf"].splitlines()
    assert {"mappedFileSizeCommitLog=1073741824", "diskSpaceWarningLevelRatio=0.95"} <= set(lines)
    assert "advertisedAddress=a-0.example.com:10911" in lines
    assert "grpcAdvertisedAddress=a-0.example.com:8081" in lines


@pytest.mark.parametrize("values", CASES)
def test_services_budgets_and_claims_fit_the_pods(values: dict[str, Any]) -> None:
    objects = render(**values)
    brokers = {each for kind, each in objects if kind == "StatefulSet" and "-broker-" in each}
    for each in of_kind(objects, "Service", "PodDisruptionBudget"):
        spec = each["spec"]
        wanted = spec["selector"].get("matchLabels", spec["selector"])
        own = dict(wanted)
        own.pop("statefulset.kubernetes.io/pod-name", None)
        chosen = [pod for pod in pods(objects) if own.items() <= pod["metadata"]["labels"].items()]
        name = each["metadata"]["name"]
        # Any broker is where a client by gRPC may begin.
        assert len(chosen) == (len(brokers) if name.endswith("-grpc") else 1), name
        named = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in spec.get("ports", ())} <= named
    for each in of_kind(objects, "StatefulSet", "Deployment"):
        template = each["spec"]["template"]
        assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        claims = each["spec"].get("volumeClaimTemplates", ())
        volumes |= {claim["metadata"]["name"] for claim in claims}
        [container] = template["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    budgets = {each["metadata"]["name"] for each in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == {each["metadata"]["name"] for each in of_kind(objects, "StatefulSet")}


@pytest.mark.parametrize("values", CASES)
def test_no_pod_of_the_chart_has_more_rights_than_it_needs(values: dict[str, Any]) -> None:
    for pod in pods(render(**values)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        [container] = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("values", CASES)
def test_probes_ask_the_ports_on_which_servers_answer(values: dict[str, Any]) -> None:
    figures = {
        "broker": BrokerConfig().metrics_prom_exporter_port,
        "namesrv": NamesrvConfig().metrics_prom_exporter_port,
        "controller": ControllerConfig().metrics_prom_exporter_port,
        "console": CONSOLE_PORT,
    }
    for pod in pods(render(**values)):
        [container] = pod["spec"]["containers"]
        numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe, path in (("livenessProbe", "live"), ("readinessProbe", "ready")):
            asked = container[probe]["httpGet"]
            assert numbers[asked["port"]] == figures[container["name"]]
            is_console = container["name"] == "console"
            assert asked["path"] == ("/health" if is_console else f"/health/{path}")


def test_prometheus_is_told_of_servers_and_of_our_alerts() -> None:
    objects = render(**EVERYTHING)
    [monitor] = of_kind(objects, "ServiceMonitor")
    [rule] = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    [expression] = monitor["spec"]["selector"]["matchExpressions"]
    [endpoint] = monitor["spec"]["endpoints"]
    for each in of_kind(objects, "Service"):
        labels = each["metadata"]["labels"]
        assert labels[monitor["spec"]["jobLabel"]] == "kerolox"
        has_figures = any(port["name"] == endpoint["port"] for port in each["spec"]["ports"])
        is_chosen = labels.get(expression["key"]) in expression["values"]
        assert is_chosen is has_figures, each["metadata"]["name"]
