"""Settings changed while a broker runs (25), and shown (26)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.properties import parse_properties
from kerolox.protocol.codes import RequestCode
from tests.support.clients.peer import SMALL, Peer, peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand


async def change(peer: Peer, **values: object) -> RemotingCommand:
    body = "".join(f"{key}={value}\n" for key, value in values.items())
    return await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())


async def shown(peer: Peer) -> tuple[dict[str, str], dict[str, int]]:
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    version = json.loads(answer.ext_fields["version"])
    return parse_properties(answer.body.decode()), version


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
    rules = broker.parts.writing.cleaner.retention.rules
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
    later = any_broker.parts.now_ms() + 86_400_000
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
    in_force = settings["flushIntervalCommitLog"]
    answer = await change(peer, flushIntervalCommitLog=4_711, traceOn="false")
    file = broker.config.settings_file
    expected = f"written to {file}, in force at the next start: flushIntervalCommitLog"
    assert (answer.code, answer.remark) == (0, expected)
    assert broker.config.flush_interval_commit_log == int(in_force)
    settings, later = await shown(peer)
    assert (settings["flushIntervalCommitLog"], settings["traceOn"]) == (in_force, "false")
    assert settings["pendingRestart.flushIntervalCommitLog"] == "4711"
    assert later["counter"] == version["counter"] + 1
    assert "set flushIntervalCommitLog=4711, in force at the next start" in caplog.text
    assert "set traceOn=false, in force now" in caplog.text
    written = BrokerConfig.load_for_start(store_path_root_dir=broker.config.store_path_root_dir)
    assert (written.flush_interval_commit_log, written.trace_on) == (4_711, False)
    answer = await change(peer, flushIntervalCommitLog=in_force)
    assert (answer.code, answer.remark) == (0, None)
    assert "pendingRestart.flushIntervalCommitLog" not in (await shown(peer))[0]


async def test_the_file_that_was_loaded_keeps_what_else_it_has(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    text = "# ours\nmessageStorePlugIn = mine\n\nlistenPort=1\n traceOn = true\n"
    path.write_text(text)
    async with Broker(small_config(tmp_path, path=path)) as broker, peer_of(broker) as peer:
        assert (await change(peer, traceOn="false", regionId="north")).code == 0
        assert (await shown(peer))[0]["brokerConfigPath"] == str(path)
    assert path.read_text() == text.replace("true", "false") + "regionId=north\n"
    assert (tmp_path / "broker.conf.bak").read_text() == text


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


# -- the file read again ------------------------------------------------------------------------
async def test_a_reload_takes_what_is_live_and_names_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "broker.conf"
    path.write_text("regionId=here\nfileReservedTime=5\n")
    async with Broker(small_config(tmp_path, path=path)) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        path.write_text("regionId=north\nflushIntervalCommitLog=7\nbrokerName=other\n")
        await broker.reload_settings()
        assert (await peer.send("T")).ext_fields["MSG_REGION"] == "north"
        assert broker.config.file_reserved_time == 72
        settings, version = await shown(peer)
        assert settings["brokerName"] == "broker-t"
        assert settings["pendingRestart.flushIntervalCommitLog"] == "7"
        assert version["counter"] == 1
        assert "in force now: fileReservedTime=72, regionId=north" in caplog.text
        assert "wait for a restart: flushIntervalCommitLog=7" in caplog.text
        # Options of the command line stay stronger than the file.
        assert "pendingRestart.brokerName" not in settings


async def test_a_reload_of_a_wrong_or_missing_file_changes_nothing_and_is_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("regionId=here\n")
    async with Broker(small_config(tmp_path, path=path)) as broker:
        path.write_text("regionId=north\ndeleteWhen=25\n")
        await broker.reload_settings()
        path.unlink()
        await broker.reload_settings()
        assert broker.config.region_id == "here"
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert [text.split(": ")[:2] for text in errors] == [
        ["settings stay as they are", str(path)],
        ["settings stay as they are", str(path)],
    ]
    assert "deleteWhen" in errors[0]


async def test_a_reload_of_other_name_servers_registers_with_them(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=127.0.0.1:1\n")
    config = BrokerConfig.load(path, **_without(small_config(tmp_path), "namesrv_addr"))
    async with Broker(config) as broker:
        path.write_text("namesrvAddr=127.0.0.1:2\n")
        await broker.reload_settings()
        assert broker.config.name_servers == ("127.0.0.1:2",)
        await until(lambda: "127.0.0.1:2" in broker.parts.peers.registration.failing)


async def test_a_broker_that_no_file_made_has_nothing_to_reload(broker: Broker) -> None:
    before = broker.config.as_properties()
    await broker.reload_settings()
    assert broker.config.as_properties() == before


def _without(config: BrokerConfig, name: str) -> dict[str, object]:
    return {each: getattr(config, each) for each in SMALL if each != name} | {
        "store_path_root_dir": config.store_path_root_dir
    }


# -- changes kept over a start without a file ---------------------------------------------------
async def test_what_requests_changed_is_read_by_the_next_start_without_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**SMALL, "store_path_root_dir": tmp_path / "store"}
    async with Broker(BrokerConfig.load_for_start(**given)) as broker, peer_of(broker) as peer:
        assert (await change(peer, traceOn="false", flushIntervalCommitLog=7)).code == 0
    kept = tmp_path / "store" / "config" / "broker.properties"
    assert kept.read_text().startswith("# Settings that requests have changed.")
    kept.write_text(kept.read_text() + "listenPort=1\nstorePathRootDir=/x\n")
    config = BrokerConfig.load_for_start(**given)
    assert (config.trace_on, config.flush_interval_commit_log) == (False, 7)
    assert (config.listen_port, config.store_path_root_dir) == (0, tmp_path / "store")
    assert f"{kept}: not read: listenPort, storePathRootDir;" in caplog.text
    async with Broker(config) as broker, peer_of(broker) as peer:
        settings, _ = await shown(peer)
        assert settings["brokerConfigPath"] == str(kept)
        assert not [key for key in settings if key.startswith("pendingRestart.")]


async def test_a_start_with_a_file_does_not_read_them_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**SMALL, "store_path_root_dir": tmp_path / "store"}
    kept = tmp_path / "store" / "config" / "broker.properties"
    kept.parent.mkdir(parents=True)
    kept.write_text("traceOn=false\n")
    path = tmp_path / "broker.conf"
    path.write_text("regionId=here\n")
    config = BrokerConfig.load_for_start(path, **given)
    assert (config.trace_on, config.region_id) == (True, "here")
    assert f"{kept} is not read, since {path} is given" in caplog.text
