"""What the guides of operators say works, command by command, and clients see no error of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.errors import BrokerError
from tests.docs.examples import ROOT, blocks_of
from tests.docs.shell import PageShell
from tests.replication.rolling import Diary, OurClients
from tests.support.eventually import wait_until
from tests.support.programs import java_command

if TYPE_CHECKING:
    from pathlib import Path

GUIDES = ROOT / "docs" / "guides"
TOPIC = "Orders"
SHARE = 20
"""Messages that are sent and taken between two blocks."""

pytestmark = pytest.mark.timeout(900)


def test_a_backup_is_taken_and_restored(tmp_path: Path) -> None:
    with PageShell(tmp_path) as shell:
        for block in blocks_of(GUIDES / "backup.md"):
            shell.run(block)
    assert "group shop: 0 messages left" in shell.output


def test_no_client_has_an_error_while_servers_are_restarted_added_and_taken_away(
    tmp_path: Path,
) -> None:
    first, *others = [b for b in blocks_of(GUIDES / "rolling.md") if b.needs == "shell"]
    diary = Diary(tmp_path / "diary")
    with PageShell(tmp_path, QUIET="1") as shell:
        at = ";".join(f"127.0.0.1:{shell.ports[name]}" for name in ("9876", "9877"))
        shell.run(first)
        clients = OurClients(at, TOPIC, diary)
        try:
            for block in others:
                shell.run(block)
                until_busier(diary)
            assert_known(at, {"broker-b", "broker-c"})
            clients.stop_sending()
            wait_until(lambda: sent(diary) <= taken(diary), seconds=120, what="all messages")
        finally:
            clients.end()
        assert not diary.words("failed")
        assert not list(tmp_path.glob("broker-a*"))


def sent(diary: Diary) -> set[str]:
    """Bodies that brokers acknowledged."""
    return {line.split()[0] for line in diary.words("sent")["ours"]}


def taken(diary: Diary) -> set[str]:
    """Bodies that came to the consumer."""
    return set(diary.words("took")["ours"])


def until_busier(diary: Diary) -> None:
    """Wait until more has been sent and taken."""
    kinds = [("sent", "ours"), ("took", "ours")]
    before = diary.counts("sent", "took")

    def is_busier() -> bool:
        now = diary.counts("sent", "took")
        return all(now.get(kind, 0) >= before.get(kind, 0) + SHARE for kind in kinds)

    wait_until(is_busier, what=f"{SHARE} more messages")


def assert_known(name_servers: str, brokers: set[str]) -> None:
    """Each name server knows these brokers and no other, and sends messages of the topic there."""
    for each in name_servers.split(";"):
        with Admin(each) as admin:
            assert set(admin.cluster_info().brokers) == brokers
            for topic in admin.list_topics():
                assert {
                    queue.broker_name for queue in admin.describe_route(topic).queues
                } <= brokers


def until_counting(name_server: str, broker: str) -> None:
    """Wait until a Java broker tells its figures: in the second after its start it has none, and
    answers with a NoSuchElementException."""

    def is_counting() -> bool:
        try:
            admin.broker_runtime(broker)
        except BrokerError:
            return False
        return True

    with Admin(name_server) as admin:
        wait_until(is_counting, what="figures of a Java broker")


@pytest.mark.java
def test_no_client_has_an_error_while_a_java_broker_becomes_ours_and_javas_again(
    tmp_path: Path,
) -> None:
    first, *others = [b for b in blocks_of(GUIDES / "migration.md") if b.needs == "shell"]
    diary = Diary(tmp_path / "diary")
    write_java_commands(tmp_path)
    with PageShell(tmp_path, QUIET="1") as shell:
        at = f"127.0.0.1:{shell.ports['9876']}"
        shell.run(first)
        until_counting(at, f"127.0.0.1:{shell.ports['10911']}")
        clients = OurClients(at, TOPIC, diary)
        try:
            for block in others:
                shell.run(block)
                until_busier(diary)
            clients.stop_sending()
            wait_until(lambda: sent(diary) <= taken(diary), seconds=120, what="all messages")
        finally:
            clients.end()
        assert not diary.words("failed")


def write_java_commands(folder: Path) -> None:
    """``mqbroker`` and ``mqshutdown`` of RocketMQ, for one broker on this machine."""
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "logback_broker.xml").write_text("<configuration/>")
    options = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-Dtls.server.mode=disabled")
    command = java_command("org.apache.rocketmq.broker.BrokerStartup", options=options)
    pid = folder / "java.pid"
    (folder / "bin").mkdir()
    for name, lines in (
        ("mqbroker", f'echo $$ > {pid}\nexec {shlex.join(command)} "$@"'),
        ("mqshutdown", f"kill $(cat {pid})"),
    ):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
