"""What requests may change of a broker's settings (25), and what whoever sends them can't do."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.config import read_properties, setting_keys
from kerolox.dynamic_config import CHANGE_BYTES_MAX, CHANGE_LINES_MAX, WAITING_MAX
from kerolox.kernel.settings import StoreSettings
from kerolox.properties import parse_properties
from kerolox.protocol.codes import RequestCode
from tests.support.clients.peer import Peer, peer_of, small_config

KEYS = {name: key for key, name in setting_keys(BrokerConfig).items()}
FIELDS = {each.name: each for each in dataclasses.fields(BrokerConfig) if each.name in KEYS}

NEVER = """
    configBlackList brokerName brokerClusterName brokerId brokerIP1 brokerIP2 listenHost listenPort
    vipPortEnable namesrvAddr updateNamesrvAddrEnable brokerRole msgTraceTopicName aclEnable useTLS
    maxErrorRateOfBloomFilter expectConsumerNumUseFilter storePathRootDir storePathCommitLog
    mappedFileSizeCommitLog mappedFileSizeConsumeQueue maxHashSlotNum maxIndexNum
    messageDelayLevel enableDLegerCommitLog enableMultiDispatch enableLmq enableConsumeQueueExt
    mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt enableCalcFilterBitMap
    readOnlyCommitLogStorePaths warmMapedFileEnable flushLeastPagesWhenWarmMapedFile
    useReentrantLockWhenPutMessage transientStorePoolEnable transientStorePoolSize
    fastFailIfNoBufferInStorePool brokerConfigPath maxConnectionsPerAddress advertisedAddress
""".split()
"""What names a file, a folder, an address, a port or a topic, and what files depend on."""


async def change(peer: Peer, body: str | bytes) -> Any:
    data = body.encode() if isinstance(body, str) else body
    return await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=data)


async def in_force(peer: Peer) -> dict[str, str]:
    return parse_properties((await peer.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())


async def test_what_names_files_folders_addresses_or_ports_stays_and_says_why(
    broker: Broker, peer: Peer
) -> None:
    before = await in_force(peer)
    for key in NEVER:
        answer = await change(peer, f"traceOn=false\n{key}={before[key]}\n")
        assert answer.code == 16, key
        assert key in answer.remark
        assert "edit the settings file and restart" in answer.remark
    assert await in_force(peer) == before
    assert not broker.config.settings_file.exists()


def test_only_settings_outside_that_list_are_on_the_allow_list() -> None:
    config = BrokerConfig.load(None)
    allowed = {KEYS[name] for name in FIELDS if config.is_wire(name)}
    assert not allowed & set(NEVER)
    assert not [
        name for name, each in FIELDS.items() if "Path" in str(each.type) and config.is_wire(name)
    ]
    assert all(
        isinstance(getattr(config, name), bool | int | float)
        or name in ("region_id", "delete_when", "flush_disk_type", "log_level")
        or name == "default_message_request_mode"
        for name in FIELDS
        if config.is_wire(name)
    )


def test_what_the_store_has_a_copy_of_is_live_only_if_it_is_told() -> None:
    copied = {each.name for each in dataclasses.fields(StoreSettings)} & set(FIELDS)
    # The broker tells the store the first, and the store doesn't examine the second.
    told = {"max_message_size", "default_query_max_num"}
    assert {name for name in copied if BrokerConfig.is_live(name)} == told


def extremes(name: str) -> list[str]:
    """Texts of the least and the greatest value that a setting may have."""
    metadata, value = FIELDS[name].metadata, getattr(BrokerConfig.load(None), name)
    if "choices" in metadata:
        return [metadata["choices"][0], metadata["choices"][-1]]
    if isinstance(value, bool):
        return ["false", "true"]
    if isinstance(value, int):
        low, high = metadata.get("min", -(1 << 63)), metadata.get("max", (1 << 63) - 1)
        return [str(low), str(high)]
    return {
        "region_id": ["", "r" * 255],
        "delete_when": ["00", "23"],
        "disk_space_warning_level_ratio": ["0.01", "1.0"],
        "disk_space_clean_forcibly_ratio": ["0.01", "1.0"],
    }[name]


@pytest.mark.parametrize("which", [0, 1])
async def test_a_broker_starts_with_whatever_a_request_was_allowed_to_set(
    tmp_path: Path, kernel: str, which: int
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# none yet\n")
    config = small_config(tmp_path, path=path)
    del (given := dict(config.source.overrides))["max_message_size"]
    allowed = [name for name in FIELDS if config.is_wire(name)]
    started = Broker(BrokerConfig.load(path, **given), kernel=kernel)
    async with started as broker, peer_of(broker) as peer:
        for name in allowed:
            text = f"{KEYS[name]}={extremes(name)[which]}\n"
            answer = await change(peer, text)
            assert answer.code == 0, (text, answer.remark)
    again = BrokerConfig.load_for_start(path, **given)
    assert {name: str(getattr(again, name)).lower() for name in allowed} == {
        name: extremes(name)[which].lower() for name in allowed
    } | ({"delete_when": ["00", "23"][which]})
    async with Broker(again, kernel=kernel) as broker, peer_of(broker) as peer:
        assert set(read_properties(path)) == {KEYS[name] for name in allowed}
        assert (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0


async def test_a_value_is_written_so_that_a_start_reads_that_value_and_no_key_more(
    broker: Broker, peer: Peer
) -> None:
    assert (await change(peer, "regionId=a\\\\u000ab\\u00e4 =:#\\\\\n")).code == 0
    assert (await in_force(peer))["regionId"] == "a\\u000abä =:#\\"
    assert read_properties(broker.config.settings_file) == {"regionId": "a\\u000abä =:#\\"}
    for forged in (
        "north\\u000astorePathRootDir=/x",
        "north\\nlistenPort=1",
        "a\\u2028b",
        "\\u0000",
    ):
        answer = await change(peer, f"regionId={forged}\n")
        assert (answer.code, "control character" in answer.remark) == (1, True)
    assert list(read_properties(broker.config.settings_file)) == ["regionId"]


async def test_every_value_has_a_length(broker: Broker, peer: Peer) -> None:
    assert (await change(peer, "regionId=" + "ä" * 127)).code == 0
    for text in (
        "regionId=" + "ä" * 128,
        "deleteWhen=" + "1;" * 600,
        "fileReservedTime=" + "9" * 65,
    ):
        answer = await change(peer, text)
        assert (answer.code, "bytes are too many" in answer.remark) == (1, True)
    answer = await change(peer, "regionId=" + "x" * CHANGE_BYTES_MAX)
    assert (answer.code, f"at most {CHANGE_BYTES_MAX}" in answer.remark) == (1, True)
    assert broker.config.settings_file.stat().st_size < 2048


async def test_a_request_with_many_or_huge_keys_costs_three_comparisons_at_most(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, *_, **__: compared.append(name))
    many = "".join(f"traceO{number}=1\n" for number in range(CHANGE_LINES_MAX - 1))
    answer = await change(peer, many)
    assert (answer.code, len(compared)) == (1, 3)
    assert len(answer.remark) < 300
    answer = await change(peer, many + "one=more\n\n")
    assert (answer.code, f"at most {CHANGE_LINES_MAX}" in answer.remark) == (1, True)
    answer = await change(peer, "k" * (CHANGE_BYTES_MAX - 2) + "=1")
    assert (answer.code, len(compared)) == (1, 3)
    assert len(answer.remark) < 300
    assert (await change(peer, b"a=\xff")).code == 1


async def test_name_servers_are_changed_by_requests_only_if_a_setting_allows_it(
    tmp_path: Path, broker: Broker, peer: Peer
) -> None:
    answer = await change(peer, "namesrvAddr=127.0.0.1:1\n")
    assert (answer.code, "updateNamesrvAddrEnable=true allows it" in answer.remark) == (16, True)
    assert broker.config.name_servers == ()
    allowed = small_config(tmp_path / "allowed", update_namesrv_addr_enable=True)
    async with Broker(allowed) as other, peer_of(other) as client:
        assert (await change(client, "namesrvAddr=127.0.0.1:99999\n")).code == 1
        assert (await change(client, "namesrvAddr=127.0.0.1:1\n")).code == 0
        assert other.config.name_servers == ("127.0.0.1:1",)


async def test_a_change_of_what_has_no_effect_says_so(broker: Broker, peer: Peer) -> None:
    answer = await change(peer, "sendMessageThreadPoolNums=9\n")
    assert answer.code == 1
    assert answer.remark.startswith("nothing changed: sendMessageThreadPoolNums has no effect")
    answer = await change(peer, "sendMessageThreadPoolNums=9\ntraceOn=false\n")
    assert answer.code == 0
    assert "sendMessageThreadPoolNums has no effect here (one event loop" in answer.remark
    assert read_properties(broker.config.settings_file) == {"traceOn": "false"}


async def test_the_black_list_of_the_file_refuses_more(tmp_path: Path) -> None:
    config = small_config(tmp_path, config_black_list="traceOn; regionId")
    async with Broker(config) as broker, peer_of(broker) as peer:
        for line in ("traceOn=false", "regionId=x"):
            answer = await change(peer, line)
            assert (answer.code, "configBlackList" in answer.remark) == (16, True)
        assert (await change(peer, "fileReservedTime=3")).code == 0


async def test_a_full_disk_leaves_what_is_live_in_force_and_says_so(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kerolox.config.write_with_backup", full)
    answer = await change(peer, "fileReservedTime=1\nflushIntervalCommitLog=7\n")
    assert answer.code == 1
    assert answer.remark.endswith(
        "can't be written: No space left on device; in force until the next start: fileReservedTime"
    )
    assert broker.config.file_reserved_time == 1
    assert not [key for key in await in_force(peer) if key.startswith("pendingRestart.")]
    monkeypatch.undo()
    assert (await change(peer, "fileReservedTime=1\n")).code == 0


async def test_a_file_that_was_broken_by_hand_is_not_written_and_nothing_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("regionId=here\n")
    async with Broker(small_config(tmp_path, path=path)) as broker, peer_of(broker) as peer:
        path.write_text("regionId=here\nlistnPort=1\n")
        answer = await change(peer, "traceOn=false\n")
        assert answer.code == 1
        assert f"{path}: unknown setting 'listnPort'" in answer.remark
        assert broker.config.trace_on
    assert path.read_text() == "regionId=here\nlistnPort=1\n"


async def test_changes_wait_in_bounded_number(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = broker.parts.dynamic_config
    async with settings._writing:
        first = [
            asyncio.create_task(settings.change(b"traceOn=true", "a")) for _ in range(WAITING_MAX)
        ]
        await asyncio.sleep(0)
        assert (await change(peer, "traceOn=false\n")).code == 2
    assert await asyncio.gather(*first) == [""] * WAITING_MAX
    assert (await change(peer, "traceOn=false\n")).code == 0


async def test_a_cancelled_request_leaves_nothing_half_done(broker: Broker) -> None:
    settings = broker.parts.dynamic_config
    request = asyncio.create_task(settings.change(b"regionId=north", "a"))
    await asyncio.sleep(0)  # the request begins; who looks now and then may find it done
    (work,) = settings._tasks
    request.cancel()
    await work
    assert broker.config.region_id == "north"
    assert read_properties(broker.config.settings_file) == {"regionId": "north"}


async def test_an_option_stronger_than_the_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("updateNamesrvAddrEnable=true\n")
    config = small_config(tmp_path, path=path, namesrv_addr="127.0.0.1:1")
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await change(peer, "namesrvAddr=127.0.0.1:2\n")
        assert answer.code == 0
        assert answer.remark.endswith("and counts at the next start: namesrvAddr")
        assert broker.config.name_servers == ("127.0.0.1:2",)
    assert config.reloaded().name_servers == ("127.0.0.1:1",)
