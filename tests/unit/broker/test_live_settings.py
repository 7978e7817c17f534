"""Settings changed while a broker runs (25), and shown (26)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.broker.live_settings import LIVE
from kerolox.config import parse_properties, read_properties, setting_keys
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.unit.broker.support import Peer, peer_of, small_config

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand


async def change(peer: Peer, **values: object) -> RemotingCommand:
    body = "".join(f"{key}={value}\n" for key, value in values.items())
    return await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())


async def shown(peer: Peer) -> tuple[dict[str, str], dict[str, int]]:
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    version = json.loads(answer.ext_fields["version"])
    return parse_properties(answer.body.decode()), version


def test_live_settings_are_settings() -> None:
    assert set(setting_keys(BrokerConfig).values()) >= LIVE


async def test_a_broker_without_permission_neither_reads_nor_writes_until_it_has_it_again(
    any_broker: Broker, any_peer: Peer
) -> None:
    await any_peer.create_topic("T")
    await any_peer.send("T")
    await any_peer.pull("T")
    assert (await change(any_peer, brokerPermission=2)).code == 0
    assert (await any_peer.pull("T")).code == 16
    assert (await change(any_peer, brokerPermission=6)).code == 0
    assert (await any_peer.pull("T")).code == 0


async def test_region_and_traces_change_in_hot_answers_too(
    any_broker: Broker, any_peer: Peer
) -> None:
    await any_peer.create_topic("T")
    before = await any_peer.send("T")
    await change(any_peer, regionId="north", traceOn="false")
    after = await any_peer.send("T")
    assert (before.ext_fields["MSG_REGION"], before.ext_fields["TRACE_ON"]) == (
        "DefaultRegion",
        "true",
    )
    assert (after.ext_fields["MSG_REGION"], after.ext_fields["TRACE_ON"]) == ("north", "false")


async def test_new_rules_of_retention_are_in_force(broker: Broker, peer: Peer) -> None:
    assert (await change(peer, fileReservedTime=5, deleteWhen="07")).code == 0
    rules = broker.cleaner.retention.rules
    assert (rules.file_reserved_ms, set(rules.delete_when)) == (5 * 3_600_000, {7})


async def test_longer_messages_are_taken_as_soon_as_they_may_be(
    any_broker: Broker, any_peer: Peer
) -> None:
    await any_peer.create_topic("T")
    limit = any_broker.config.max_message_size
    for most in (limit + 10, 10):
        assert (await change(any_peer, maxMessageSize=most)).code == 0
        for cold in ({}, {"unknownMember": "1"}):
            assert (await any_peer.send("T", bytes(most), **cold)).code == 0
            assert (await any_peer.send("T", bytes(most + 1), **cold)).code == 13


async def test_a_broker_that_is_to_accept_sends_later_takes_none_until_then(
    any_broker: Broker, any_peer: Peer
) -> None:
    await any_peer.create_topic("T")
    later = any_broker.now_ms() + 86_400_000
    assert (await change(any_peer, startAcceptSendRequestTimeStamp=later)).code == 0
    assert (await any_peer.send("T")).code == 1
    assert (await change(any_peer, startAcceptSendRequestTimeStamp=0)).code == 0
    assert (await any_peer.send("T")).code == 0


async def test_notices_of_changed_members_can_be_switched_off(broker: Broker, peer: Peer) -> None:
    await change(peer, notifyConsumerIdsChangedEnable="false")
    await peer.heartbeat("c1", topics={"T": "*"})
    await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert peer.notices == []
    await change(peer, notifyConsumerIdsChangedEnable="true")
    await peer.heartbeat("c1", topics={"T": "*", "U": "*"})
    await until(lambda: len(peer.notices) == 1)


async def test_what_can_t_change_now_waits_for_the_next_start(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings, version = await shown(peer)
    assert settings["maxIndexNum"] == str(broker.config.max_index_num)
    assert (await change(peer, maxIndexNum=4_711, traceOn="false")).code == 0
    assert broker.config.max_index_num != 4_711
    settings, later = await shown(peer)
    assert (settings["maxIndexNum"], settings["traceOn"]) == ("4711", "false")
    assert later["counter"] == version["counter"] + 1
    assert f"with the next start with -c {broker.config.settings_file}" in caplog.text
    written = BrokerConfig.load(broker.config.settings_file)
    assert written.max_index_num == 4_711
    assert not written.trace_on


async def test_the_file_that_was_loaded_keeps_what_else_it_has(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    config = small_config(tmp_path)
    lines = {**config.as_properties(), "brokerConfigPath": "", "messageStorePlugIn": "mine"}
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    async with Broker(BrokerConfig.load(path)) as broker, peer_of(broker) as peer:
        assert (await change(peer, traceOn="false")).code == 0
    kept = read_properties(path)
    assert (kept["traceOn"], kept["messageStorePlugIn"]) == ("false", "mine")
    assert (tmp_path / "broker.conf.bak").exists()


@pytest.mark.parametrize(
    ("key", "value", "code", "remark"),
    [
        ("brokerConfigPath", "/tmp/x", 16, "Can not update config in black list."),
        ("rocketmqHome", "x", 16, "Can not update config in black list."),
        ("configBlackList", "", 16, "Can not update config in black list."),
        ("traceOn", "perhaps", 1, "perhaps"),
        ("traceOnn", "true", 1, "traceOn"),
        ("deleteWhen", "25", 1, "25"),
    ],
)
async def test_a_change_that_can_t_be_is_refused_whole(
    broker: Broker, peer: Peer, key: str, value: str, code: int, remark: str
) -> None:
    answer = await change(peer, autoCreateTopicEnable="false", **{key: value})
    assert answer.code == code
    assert remark in str(answer.remark)
    assert broker.config.auto_create_topic_enable
    assert not broker.config.settings_file.exists()


async def test_nothing_is_changed_by_nothing(peer: Peer) -> None:
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG)).code == 0
    assert (await shown(peer))[1]["counter"] == 0
