"""A Java cluster that is ill: its remarks and settings are read as ours are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.doctor.patients import Said, broker, found, named, said
from tests.doctor.test_paths import ACCOUNTS
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import Server

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("doctor-java")]

SETTINGS = (
    *("aclEnable=true", "brokerRole=SYNC_MASTER", "longPollingEnable=false"),
    *("brokerPermission=4", "maxMessageSize=65536"),
)


class Ill(NamedTuple):
    name_server: str
    broker: str
    twin: str


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ill]:
    """A Java cluster, with a broker of ours that has the name of Java's."""
    root = tmp_path_factory.mktemp("java")
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(JavaPeer(root / "peer", settings=SETTINGS, accounts=ACCOUNTS))
        twin: Server = stack.enter_context(broker(root / "twin", "broker-a", "127.0.0.1:1"))
        at = f"127.0.0.1:{peer.namesrv_port}"
        yield Ill(at, f"127.0.0.1:{peer.port}", twin.addresses["broker"])


def looked_at(ill: Ill, key: str, secret: str, *arguments: object) -> list[Said]:
    given = {"KEROLOX_ACCESS_KEY": key, "KEROLOX_SECRET_KEY": secret}
    return found(ill.name_server, *arguments, **given)


def test_settings_of_a_java_broker_that_hurt_are_named(ill: Ill) -> None:
    findings = looked_at(ill, "operator", "operator-secret", "--broker", ill.twin)
    named(said(findings, "no-slave", ill.broker), "SLAVE_NOT_AVAILABLE", "start its slave")
    named(said(findings, "long-polling-off", ill.broker), "set it to true")
    named(said(findings, "broker-permission", ill.broker), "brokerPermission is 4")
    twins = said(findings, "two-brokers-of-one-name")
    named(twins, "broker-a with id 0", ill.broker, ill.twin, "another brokerName")
    codes = [each["code"] for each in findings]
    assert len(codes) == 4, [each for each in findings if each["code"] == "check-failed"]


def test_a_java_broker_says_why_it_denies_an_account(ill: Ill) -> None:
    wrong = said(looked_at(ill, "operator", "wrong-secret"), "account-refused", ill.broker)
    named(wrong, "Check signature failed", "secret key is not the one")
    unknown = said(looked_at(ill, "nobody", "some-secret"), "account-refused", ill.broker)
    named(unknown, "No acl config for nobody", "no such access key")
    named(said(found(ill.name_server), "account-refused", ill.broker), "give an account")
