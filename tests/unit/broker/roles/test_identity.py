"""``identity_of_java/`` was written by the classes of RocketMQ 5.3.3."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kerolox.broker.roles.identity import BrokerIdentity, IdentityFile
from kerolox.errors import StoreError

OF_JAVA = Path(__file__).with_name("identity_of_java")
NAMES = "DefaultCluster", "broker-a"
CODE = "127.0.0.1:10911;1700000000000"


@pytest.fixture
def file(tmp_path: Path) -> IdentityFile:
    return IdentityFile(tmp_path / "brokerIdentity", *NAMES)


def test_files_of_rocketmq_are_read_and_written_the_same(file: IdentityFile) -> None:
    asked = file.ask(3, CODE)
    assert file.asked_path.read_bytes() == (OF_JAVA / "brokerIdentity-temp").read_bytes()
    assert file.load() == asked == BrokerIdentity(*NAMES, 3, CODE)
    assert file.got(BrokerIdentity(*NAMES, 2, CODE)) == BrokerIdentity(*NAMES, 2)
    assert file.path.read_bytes() == (OF_JAVA / "brokerIdentity").read_bytes()
    assert file.load() == BrokerIdentity(*NAMES, 2)
    assert [each.name for each in file.path.parent.iterdir()] == ["brokerIdentity"]


def test_what_was_given_counts_more_than_what_was_asked_for(file: IdentityFile) -> None:
    for name in ("brokerIdentity", "brokerIdentity-temp"):
        shutil.copy(OF_JAVA / name, file.path.parent)
    assert file.load() == BrokerIdentity(*NAMES, 2)


def test_only_a_broker_with_an_id_leaves_its_controllers(file: IdentityFile) -> None:
    file.leave()
    assert not file.has_left
    file.got(BrokerIdentity(*NAMES, 2, CODE))
    file.leave()
    assert file.has_left
    file.come_back()
    file.come_back()
    assert not file.has_left
    assert file.load() == BrokerIdentity(*NAMES, 2)


def test_an_id_that_another_broker_has_is_forgotten(file: IdentityFile) -> None:
    file.ask(3, CODE)
    file.forget_asked()
    file.forget_asked()
    assert file.load() is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is no broker's identity"),
        ("DefaultCluster#broker-a", "is no broker's identity"),
        ("DefaultCluster#broker-a#0", "is no broker's identity"),
        ("DefaultCluster#broker-a#x", "is no broker's identity"),
        ("DefaultCluster#broker-b#1", "it is that of broker-b of DefaultCluster, not of broker-a"),
    ],
)
def test_a_file_of_no_such_broker_is_refused(file: IdentityFile, text: str, fault: str) -> None:
    file.path.write_text(text)
    with pytest.raises(StoreError, match=fault):
        file.load()
