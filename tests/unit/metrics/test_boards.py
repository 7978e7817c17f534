"""The board and the alert rules: each expression is PromQL, and of metrics that servers have.

That the rules fire when they should is for ``promtool test rules``, with ``alerts_test.yml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kerolox.broker.metrics.broker_stats import TOPIC_PUT_SIZE
from kerolox.controller.config import ControllerConfig
from kerolox.controller.server import Controller
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import ApplyBrokerIdHeader
from kerolox.protocol.names import DLQ_PREFIX, GROUP_GET_NUMS, TOPIC_PUT_NUMS
from kerolox.remoting.client import RemotingClient
from tests.support.clients.grpc_peer import grpc_peer
from tests.support.clients.peer import peer_of
from tests.support.clients.requests import heartbeat_body
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.test_calls import message, sent
from tests.unit.broker.replication.pairs import fill, pair
from tests.unit.broker.test_exposition import HOST, PROM, fetch

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "kerolox.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
OF_SCRAPES = {"job", "instance"}
"""Labels that Prometheus adds."""

Labels = dict[str, set[str]]
"""Name of a metric → the labels that its series have."""


def expressions() -> list[str]:
    """Those of the board, with a value for what Grafana puts in, and of the rules."""
    targets = [target for panel in BOARD["panels"] for target in panel.get("targets", ())]
    board = [
        target["expr"].replace("$__rate_interval", "5m").replace("$__range", "3h")
        for target in targets
    ]
    return board + [rule["expr"] for rule in RULES]


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all within it."""
    yield expression
    for name in ("expr", "param", "lhs", "rhs", "vector_selector"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from parts(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from parts(inner)


def used(text: str) -> tuple[Labels, set[str]]:
    """Metrics of an expression with the labels that it picks by, and labels that it groups by."""
    picked: Labels = {}
    grouped: set[str] = set()
    for part in parts(promql.parse(text)):
        if isinstance(part, promql.VectorSelector):
            labels = {matcher.name for matcher in part.matchers.matchers}
            picked.setdefault(part.name, set()).update(labels)
        elif isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            grouped.update(part.modifier.labels)
    assert picked, text
    return picked, grouped


async def of_controller(folder: Path) -> str:
    """What a controller shows that knows a broker."""
    config = ControllerConfig(
        controller_d_leger_peers=f"n0-{HOST}:{free_port()}",
        controller_store_path=folder / "controller",
        listen_host=HOST,
        metrics_exporter_type="PROM",
        metrics_prom_exporter_port=0,
    )
    header = ApplyBrokerIdHeader(
        cluster_name="c", broker_name="b", applied_broker_id=1, register_check_code=f"{HOST}:1;1"
    )
    request = RemotingCommand.request(RequestCode.CONTROLLER_APPLY_BROKER_ID, header.encode())
    async with Controller(config, tick_seconds=0.02) as controller, RemotingClient() as client:

        async def is_known() -> bool:
            return (await client.invoke(config.own_address, request)).code == 0

        await until(is_known)
        return (await fetch(controller.metrics_port, "/metrics"))[1]


async def scraped(folder: Path) -> Labels:
    """What a name server, a master, its slave and a controller show once each kind of metric has a
    series."""
    settings = NamesrvConfig.load(
        None, listen_host=HOST, listen_port=0, kv_config_path=folder / "kv.json", **PROM
    )
    async with (
        NameServer(settings) as names,
        pair(
            folder, KERNELS[-1], of_master={**PROM, "grpc_server_port": free_port()}, of_slave=PROM
        ) as (master, slave),
    ):
        await fill(master, 1)
        parts = master.parts
        for topic in ("T", DLQ_PREFIX + "g"):
            parts.broker_stats.add(TOPIC_PUT_NUMS, topic, 1)
            parts.broker_stats.add(TOPIC_PUT_SIZE, topic, 1)
        parts.tables.topics.create_for_group(DLQ_PREFIX + "g", 1)
        parts.broker_stats.add(GROUP_GET_NUMS, "T@g", 1)
        parts.broker_stats.add("GROUP_GET_SIZE", "T@g", 1)
        parts.tables.offsets.commit("g", "T", 0, 0, HOST)
        async with peer_of(master) as peer:
            body = heartbeat_body("c", group="g", topics={"T": "*"}, producers=["p"])
            assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == 0
            async with grpc_peer(master.config.grpc_server_port) as client:
                await sent(client, message())
            texts = [
                (await fetch(port, "/metrics"))[1]
                for port in (master.metrics_port, slave.metrics_port, names.metrics_port)
            ]
    texts.append(await of_controller(folder))
    found: Labels = {"up": set(OF_SCRAPES)}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set(OF_SCRAPES)).update(sample.labels)
    return found


async def test_expressions_are_of_metrics_and_labels_that_servers_have(tmp_path: Path) -> None:
    found = await scraped(tmp_path)
    for text in expressions():
        picked, grouped = used(text)
        unknown = picked.keys() - found.keys()
        assert not unknown, f"{text}: no server has {unknown}"
        for name, labels in picked.items():
            assert labels <= found[name], f"{text}: {name} has no {labels - found[name]}"
        everywhere = set[str]().union(*(found[name] for name in picked))
        assert grouped <= everywhere, f"{text}: nothing has {grouped - everywhere}"


def test_a_mistake_in_an_expression_is_found() -> None:
    assert used("sum by (a) (rate(x{b='c'}[5m])) / y > 0") == ({"x": {"b"}, "y": set()}, {"a"})
    with pytest.raises(ValueError, match="parenthesis"):
        used("sum by (a) rate(x[5m]")


def test_the_boards_panels_have_places_and_ids_of_their_own() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_rule_says_what_is_wrong_and_has_a_unit_test() -> None:
    tests = (DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    assert len(RULES) == 10
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["alert"] in tests
