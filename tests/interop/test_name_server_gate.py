"""A real Java broker, ours and mqadmin at name servers that let only some change things."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ClientSettings, Credentials
from tests.interop.mqadmin import MqAdminProcess
from tests.support.eventually import wait_until
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import Server
from tests.support.servers.settings import small_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]


@contextmanager
def name_server(folder: Path, settings: str) -> Iterator[Server]:
    folder.mkdir()
    conf = folder / "namesrv.conf"
    conf.write_text(settings)
    arguments = ["namesrv", "--host", "127.0.0.1", "--port", 0, "--data", folder, "-c", conf]
    with Server(folder, *arguments, "--log-file", folder / "n.log") as server:
        yield server


def names(server: Server) -> list[str]:
    """The brokers that a name server knows."""
    with Admin(server.addresses["namesrv"]) as admin:
        return sorted(admin.cluster_info().brokers)


ACCOUNTS = """
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: somebody
  secretKey: somebody-secret
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
"""Broker and name server have the same file."""
KEY = ("-s", "N", "-k", "K")
CHANGES: dict[str, tuple[str, ...]] = {
    "updateKvConfig": (*KEY, "-v", "V"),
    "deleteKvConfig": KEY,
    "updateNamesrvConfig": ("-k", "orderMessageEnable", "-v", "true"),
    "wipeWritePerm": ("-b", "broker-a"),
    "addWritePerm": ("-b", "broker-a"),
    "deleteTopic": ("-c", "DefaultCluster", "-t", "Gone"),
}
"""What mqadmin changes of a name server; the first one is read again."""


def test_mqadmin_changes_a_name_server_with_an_administrators_account(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    names = tmp_path / "namesrv.conf"
    names.write_text(f"writerAccounts={accounts}\n")
    own = tmp_path / "registration.yml"
    own.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings = small_store(
        tmp_path,
        aclEnable="true",
        aclFile=accounts,
        namesrvCredentialsFile=own,
        brokerName="broker-a",
    )
    command = ["up", "--port", 0, "--namesrv-port", 0, "--data", tmp_path / "data"]
    command += ["-c", settings, "--namesrv-config", names, "--log-file", tmp_path / "u.log"]
    audit = tmp_path / "u.audit.log"
    home = tmp_path / "mqadmin"
    with Server(tmp_path, *command) as server, MqAdminProcess(home) as mqadmin:
        where = ("-n", server.addresses["namesrv"])
        operator = ClientSettings(credentials=Credentials("operator", "operator-secret"))
        with Admin(where[1], settings=operator) as admin:
            assert sorted(admin.cluster_info().brokers) == ["broker-a"], (
                "it signs what it registers"
            )
            admin.create_topic("Gone")
        tools = home / "conf" / "tools.yml"
        for account, complaint in (
            ("", "No accessKey is configured"),
            ("accessKey: somebody\nsecretKey: somebody-secret\n", "Need admin permission"),
            ("accessKey: somebody\nsecretKey: another-secret\n", "Check signature failed"),
            ("accessKey: stranger\nsecretKey: operator-secret\n", "No acl config for stranger"),
        ):
            if account:
                tools.write_text(account)
            for name, options in CHANGES.items():
                said = mqadmin.ask(name, *where, *options)
                assert complaint in said, (name, said)
                assert "-secret" not in said
        # Denials of an address have a line each until there are many.
        first = lines_of(audit, "denied")[0]
        assert (first["request"], first["account"]) == ("PUT_KV_CONFIG", "-")
        assert {line["server"] for line in lines_of(audit, "changed")} <= {"broker"}
        tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
        for name, options in CHANGES.items():
            said = mqadmin.run(name, *where, *options)
            assert "uccess" in said or " OK, " in said, (name, said)
            if name == "updateKvConfig":
                with Admin(where[1], settings=operator) as admin:
                    assert admin.get_key_value("N", "K") == "V"
        assert "orderMessageEnable = true" in " ".join(
            mqadmin.run("getNamesrvConfig", *where).replace("=", " = ").split()
        )
    changed = [line for line in lines_of(audit, "changed") if line["server"] == "name server"]
    assert {line["account"] for line in changed} == {"operator"}
    told = {line["request"] for line in changed}
    assert {"PUT_KV_CONFIG", "DELETE_KV_CONFIG", "UPDATE_NAMESRV_CONFIG"} <= told


def lines_of(audit: Path, outcome: str) -> list[dict[str, str]]:
    """What an audit log reports an outcome; registrations aside, which come by themselves."""
    lines = (json.loads(line[line.index("{") :]) for line in audit.read_text().splitlines())
    told = (line for line in lines if line["outcome"] == outcome)
    return [line for line in told if line.get("request") != "REGISTER_BROKER"]


def test_a_broker_with_a_wrong_account_is_not_registered(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    with name_server(tmp_path / "names", f"writerAccounts={accounts}\n") as server:
        address = server.addresses["namesrv"]
        for key, secret, says in (
            ("somebody", "somebody-secret", "Need admin permission for request code=103"),
            ("operator", "another-secret", "Check signature failed for accessKey=operator"),
        ):
            own = tmp_path / "registration.yml"
            own.write_text(f"accessKey: {key}\nsecretKey: {secret}\n")
            settings = small_store(tmp_path, namesrvCredentialsFile=own)
            command = ["broker", "--port", 0, "-n", address, "-c", settings]
            with Server(tmp_path, *command, "--data", tmp_path / "data") as broker:
                said = broker.log.read_text()
                assert f"NOT registered with {address}" in said
                assert says in said
                assert secret not in said
                assert names(server) == []
                own.write_text("accessKey: operator\nsecretKey: operator-secret\n")
                broker.process.send_signal(signal.SIGHUP)
                wait_until(lambda: names(server) != [], what="the registration")
                broker.stop()
            wait_until(lambda: names(server) == [], what="the farewell")


def test_a_java_broker_registers_where_it_is_on_the_list_and_nowhere_else(tmp_path: Path) -> None:
    with (
        name_server(tmp_path / "open", "writerAddresses=10.0.0.1,127.0.0.1\n") as listed,
        name_server(tmp_path / "shut", "writerAddresses=127.0.0.2\n") as other,
        MqAdminProcess(tmp_path / "mqadmin") as mqadmin,
    ):
        both = ";".join(server.addresses["namesrv"] for server in (listed, other))
        settings = (f"namesrvAddr={both}", "registerNameServerPeriod=10000")
        audit = tmp_path / "shut" / "n.audit.log"
        with JavaPeer(tmp_path / "java", settings=settings, with_namesrv=False) as peer:
            wait_until(lambda: names(listed) == ["broker-a"])
            wait_until(lambda: '"request":"REGISTER_BROKER"' in audit.read_text())
            assert names(other) == []
            key_value = ("-s", "N", "-k", "K", "-v", "V")
            done = mqadmin.run("updateKvConfig", "-n", listed.addresses["namesrv"], *key_value)
            assert "success" in done
            with pytest.raises(AssertionError, match=r"127\.0\.0\.1 is not among writerAddresses"):
                mqadmin.run("updateKvConfig", "-n", other.addresses["namesrv"], *key_value)
            peer.kill()
    denied = [line for line in audit.read_text().splitlines() if '"denied"' in line]
    assert any('"request":"PUT_KV_CONFIG"' in line for line in denied)
    assert '"changed"' not in audit.read_text()
