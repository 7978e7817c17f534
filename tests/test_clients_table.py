"""The table ``docs/clients.md``: each scenario stands in it, and each name in it is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interop import (
    test_go_clients,
    test_go_features,
    test_java_clients,
    test_java_features,
    test_java_versions,
    test_node_clients,
    test_spring,
)
from tests.interop.grpc5.driver import LACKS
from tests.interop.grpc5.scenarios import OWN_FACTS
from tests.interop.grpc5.scenarios import SCENARIOS as GRPC_SCENARIOS
from tests.support.programs import JAVA_VERSIONS, SPRING_STARTERS

ROOT = Path(__file__).resolve().parent.parent
INTEROP = ROOT / "tests" / "interop"
CONTRACT = ROOT / "tests" / "contract"
SCENARIOS = (
    {*test_java_clients.SCENARIOS, *test_java_features.SCENARIOS, "mqadmin"},
    {*test_go_clients.SCENARIOS, *test_go_features.SCENARIOS},
    set(test_node_clients.SCENARIOS),
)
TEXT, _, VERSIONS_TEXT = (ROOT / "docs" / "clients.md").read_text().partition("## Other versions")
TEXT, _, GRPC_TEXT = TEXT.partition("## Clients of 5.x")
VERSIONS_TEXT, _, FURTHER_TEXT = VERSIONS_TEXT.partition("## Further software")
FURTHER_TEXT, _, OWN_TEXT = FURTHER_TEXT.partition("## Kerolox's own clients")
FURTHER = {
    "rocketmq-tools": ("test_mqadmin_55.py", r'\nVERSIONS = \("([\d.]+)"'),
    "rocketmq-proxy": ("proxy/pom.xml", r"rocketmq-proxy</artifactId>\s*<version>([\d.]+)<"),
    "rocketmq-client-java": (
        "javagrpc/pom.xml",
        r"rocketmq-client-java</artifactId>\s*<version>([\d.]+)<",
    ),
    "rocketmq-client-nodejs": ("nodegrpc/package.json", r'"rocketmq-client-nodejs": "([\d.]+)"'),
    "rocketmq-python-client": (
        "pythongrpc/requirements.txt",
        r"rocketmq-python-client==([\d.]+)",
    ),
    "rocketmq-clients": ("gogrpc/go.mod", r"rocketmq-clients/golang/v5 v([\d.]+)"),
    "rocketmq": ("rustgrpc/Cargo.toml", r'\nrocketmq = "=([\d.]+)"'),
    "rocketmq-client-rust": ("rust/Cargo.toml", r'rocketmq-client-rust = \{ version = "=([\d.]+)"'),
    "camel-rocketmq": ("frameworks/camel/pom.xml", r"<camel.version>([\d.]+)<"),
    "spring-cloud-starter-stream-rocketmq": (
        "frameworks/stream/pom.xml",
        r"spring-cloud-starter-stream-rocketmq</artifactId>\s*<version>([\d.]+)<",
    ),
    "rocketmq-python-cvs": ("cpp/requirements.txt", r"rocketmq-python-cvs==([\d.]+)"),
}
"""Software, the file that names the version which the tests run, and how."""
NOT_OURS = {
    "more_retry_queues",
    "mqadmin",
    "orderly_kill",
    "request_to_kerolox",
    "shares_with_kerolox",
    "timed",
    "topic_made_again",
}
"""Scenarios of Java's that our clients have no counterpart of on both brokers, or are part of
themselves."""


def rows() -> list[list[str]]:
    """Feature, Java, Go, Node.js."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]


@pytest.mark.parametrize("client", [0, 1, 2])
def test_scenarios_and_names_in_the_table_are_the_same(client: int) -> None:
    named = {name for row in rows() for name in re.findall(r"`([\w.]+)`", row[client + 1])}
    files = {name for name in named if name.endswith(".py")}
    assert not [name for name in files if not (INTEROP / name).is_file()]
    assert named - files == SCENARIOS[client]


def test_no_cell_is_empty_and_what_a_client_cannot_is_proved() -> None:
    cells = [cell for row in rows() for cell in row[1:]]
    assert len(cells) > 60
    for cell in cells:
        assert re.search(r"`\w", cell) or re.fullmatch(r"— \(\d\)", cell), cell
        for number in re.findall(r"\((\d)\)", cell):
            assert re.search(rf"^{number}\. ", TEXT, re.MULTILINE)


def grpc_columns() -> dict[str, list[str]]:
    """The cells of each client by gRPC, without those that name programs and tests."""
    lines = [line for line in GRPC_TEXT.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {head: list(column[3:]) for head, *column in list(zip(*cells, strict=True))[1:]}


@pytest.mark.parametrize("client", ["Java", "Node.js", "Python", "Go", "Rust"])
def test_scenarios_by_grpc_and_names_in_the_table_are_the_same(client: str) -> None:
    [column] = [cells for head, cells in grpc_columns().items() if head.startswith(client)]
    named = [name for cell in column for name in re.findall(r"`(\w+)`", cell)]
    tests = {name for name in named if name.startswith("test_")}
    lacked = {
        name
        for (kind, name), facts in OWN_FACTS.items()
        if kind == client.lower().removesuffix(".js") and str(facts[0]).startswith(LACKS)
    }
    assert sorted(set(named) - tests) == sorted(GRPC_SCENARIOS.keys() - lacked)
    text = (INTEROP / "test_grpc_clients.py").read_text()
    assert [name for name in tests if f"def {name}(" not in text] == []


def test_no_cell_of_a_client_by_grpc_is_empty() -> None:
    for cells in grpc_columns().values():
        for cell in cells:
            assert re.search(r"`\w", cell) or re.fullmatch(r"— \(\d\)", cell), cell
            for number in re.findall(r"\((\d)\)", cell):
                assert re.search(rf"^{number}\. ", GRPC_TEXT, re.MULTILINE)


def test_the_table_of_versions_says_what_runs_and_what_a_broker_of_4_9_lacks() -> None:
    lines = [line for line in VERSIONS_TEXT.splitlines() if line.startswith("| ")]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    said: dict[tuple[str, str], str] = {}
    versions: list[str] = []
    for name, *rest in cells:
        if name.endswith(".py"):
            versions = rest
        elif not name.startswith("-"):
            said |= {(version, name): cell for version, cell in zip(versions, rest, strict=True)}
    wanted = {
        (version, name): "5" if version >= "5" and name in test_java_versions.NOT_OF_4_9 else "yes"
        for version in JAVA_VERSIONS
        for name in test_java_versions.scenarios(version)
    }
    for starter in SPRING_STARTERS:
        for name in test_spring.SCENARIOS:
            wanted[starter, name] = "5" if name in test_spring.NOT_OF_4_9 else "yes"
    assert {key: cell for key, cell in said.items() if cell != "—"} == wanted


def test_the_table_of_further_software_says_what_versions_run() -> None:
    lines = [line for line in FURTHER_TEXT.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    said = {re.findall(r"`([\w-]+)`", software)[0]: version for software, version, _ in cells}
    runs = {
        name: re.findall(pattern, (INTEROP / file).read_text())
        for name, (file, pattern) in FURTHER.items()
    }
    assert {name: [version] for name, version in said.items()} == runs
    for _, _, tests in cells:
        [file, *_more] = files = re.findall(r"`(test_\w+\.py)`", tests)
        assert [each for each in files if not (INTEROP / each).is_file()] == []
        assert (INTEROP / file).is_file()


def test_each_scenario_of_java_has_tests_of_our_clients_on_both_brokers() -> None:
    lines = [line for line in OWN_TEXT.splitlines() if line.startswith("| ")][2:]
    cells = [[set(re.findall(r"`([\w:]+)`", cell)) for cell in line.split("|")] for line in lines]
    assert set().union(*(java for _, java, *_ in cells)) == SCENARIOS[0] - NOT_OURS
    for name in set().union(*(ours for _, _, ours, *_ in cells)):
        file, _, test = name.partition("::")
        path = CONTRACT / f"test_clients_{file}.py"
        path = path if path.exists() else CONTRACT / f"test_{file}.py"
        assert f"def test_{test}(" in path.read_text(), name
