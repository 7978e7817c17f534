"""The programs of the guide for clients of RocketMQ 5 in Java, Go and Node.js, as they stand there.
With ``KEROLOX_SOFTWARE=all``: ``test_grpc_clients.py`` runs these clients, too.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.protocol.bodies import SubscriptionGroupConfig
from tests.docs.examples import ROOT
from tests.interop.grpc5.guide import check_first_message, example
from tests.support.eventually import wait_until
from tests.support.programs import build_java_grpc_client, build_node_grpc_client
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(600), pytest.mark.xdist_group("proxy")]

GO_MODULE = ROOT / "tests" / "interop" / "gogrpc"
LINES_MAX = 39
RUN_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("guide")
    with Up(folder, grpc=True) as started, Admin(started.namesrv) as admin:
        admin.create_topic("Orders", queues=4)
        admin.put_group(SubscriptionGroupConfig(group_name="billing"))
        yield started


def java(folder: Path, code: str) -> list[str]:
    (folder / "FirstMessage.java").write_text(code)
    libraries = build_java_grpc_client() / "target" / "lib"
    (own,) = libraries.glob("rocketmq-client-java-*.jar")
    path = f"{own}:{libraries}/*"
    return ["java", f"-Duser.home={folder}", "-cp", path, "FirstMessage.java"]


def go(folder: Path, code: str) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO_MODULE / name, folder)
    (folder / "main.go").write_text(code)
    subprocess.run(["go", "build", "-o", "first", "."], cwd=folder, check=True)
    return [str(folder / "first")]


def javascript(folder: Path, code: str) -> list[str]:
    (folder / "first.mjs").write_text(code)
    (folder / "node_modules").symlink_to(build_node_grpc_client().parent / "node_modules")
    return ["node", "first.mjs"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(java, marks=pytest.mark.java),
        pytest.param(go, marks=pytest.mark.go),
        pytest.param(javascript, marks=pytest.mark.node),
    ],
)
def test_a_program_of_the_guide_sends_receives_and_acknowledges(
    up: Up, tmp_path: Path, made: Callable[[Path, str], list[str]]
) -> None:
    code = example(made.__name__, up.grpc)
    assert len(code.splitlines()) <= LINES_MAX
    check_first_message(made(tmp_path, code), tmp_path, RUN_SECONDS_MAX)
    with Admin(up.namesrv) as admin:

        def is_done() -> bool:
            progress = admin.group_progress("billing")
            return not progress.lag and not progress.in_flight

        wait_until(is_done, what="the acknowledgement")
