"""``role.json``: what it makes of the settings, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.broker.role import Role
from kerolox.broker.roles import record
from kerolox.broker.roles.record import RoleFile, RoleRecord, forget_role, role_of, was_slave
from kerolox.errors import ConfigError, StoreError
from tests.support.clients.peer import small_config

SLAVE = RoleRecord(
    epoch=7,
    broker_role="SLAVE",
    broker_id=2,
    master_address="127.0.0.1:1",
    master_ha_address="127.0.0.1:2",
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = RoleFile(tmp_path)
    assert file.load() == RoleRecord()
    file.save(SLAVE)
    assert file.load() == SLAVE
    assert json.loads(file.path.read_text())["brokerRole"] == "SLAVE"


def test_a_prepared_record_counts_when_it_is_saved_and_takes_no_room_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RoleFile(tmp_path)
    file.save(SLAVE)
    os.chmod(file.path, 0o600)
    master = RoleRecord(epoch=8, broker_role="ASYNC_MASTER", former_id=2)
    file.prepare(master)
    assert file.load() == SLAVE

    def full(*args: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(record, "replace_file", full)
        file.save(master)
        assert file.load() == master
        assert file.path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(OSError, match="no room"):
            file.save(SLAVE)
    # What was prepared and did not come to pass goes with the next change.
    file.prepare(SLAVE)
    file.save(RoleRecord(epoch=9))
    assert file.load() == RoleRecord(epoch=9)
    assert not file.prepared_path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"epoch":"x"}', '{"epoch":-1}', '{"brokerRole":"LEADER"}', '{"brokerId":-1}'],
)
def test_a_broken_record_stops_the_start_and_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "role.json").write_text(text)
    with pytest.raises(StoreError, match="put it right, or remove it"):
        RoleFile(tmp_path).load()


def test_a_record_is_stronger_than_the_settings_and_the_master_that_they_name(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path)
    assert role_of(RoleRecord(epoch=7), config) == Role.of(config, 7)
    role = role_of(SLAVE, config)
    assert (role.broker_role, role.broker_id, role.epoch) == ("SLAVE", 2, 7)
    of_slave = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": "127.0.0.1:9"}
    config = BrokerConfig.load_for_start(None, store_path_root_dir=tmp_path, **of_slave)
    assert Role.of(config).ha_master_address == "127.0.0.1:9"
    role = role_of(RoleRecord(epoch=7, broker_role="SYNC_MASTER"), config)
    assert (role.broker_role, role.broker_id) == ("SYNC_MASTER", 0)
    assert role.ha_master_address == ""


@pytest.mark.asyncio
async def test_what_a_record_says_is_shown_in_place_of_the_settings_and_no_reload_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\n")
    config = BrokerConfig.load(file, store_path_root_dir=tmp_path / "store", listen_port=0)
    config.config_folder.mkdir(parents=True)
    RoleFile(config.config_folder).save(SLAVE)
    of_record = {"brokerRole": "SLAVE", "brokerId": "2", "haMasterAddress": ""}
    async with Broker(config) as broker:
        assert of_record.items() <= broker.parts.dynamic_config.shown().items()
        file.write_text("brokerName=a\nbrokerRole=SLAVE\nbrokerId=5\n")
        await broker.reload_settings()
        assert of_record.items() <= broker.parts.dynamic_config.shown().items()
        assert broker.parts.role.current.broker_id == 2
        assert "wait for a restart" not in caplog.text


def test_no_slave_has_a_transient_store_pool(tmp_path: Path) -> None:
    config = small_config(tmp_path, transient_store_pool_enable=True)
    with pytest.raises(ConfigError, match="transientStorePoolEnable"):
        role_of(SLAVE, config)


@pytest.mark.parametrize(
    ("record", "settings", "expected"),
    [
        (RoleRecord(), {}, False),
        (RoleRecord(), {"broker_role": "SLAVE", "broker_id": 1}, True),
        # So RocketMQ has it of every broker under a controller.
        (RoleRecord(), {"broker_role": "SLAVE", "broker_id": -1}, False),
        (RoleRecord(master_role="ASYNC_MASTER"), {}, True),
        (RoleRecord(broker_role="SLAVE"), {}, True),
        (RoleRecord(broker_role="SYNC_MASTER"), {"broker_role": "SLAVE", "broker_id": 1}, False),
    ],
)
def test_a_former_slave_is_known_by_its_record_and_settings(
    tmp_path: Path, record: RoleRecord, settings: dict[str, Any], expected: bool
) -> None:
    config = small_config(tmp_path, enable_controller_mode=True, controller_addr="h:1", **settings)
    config.config_folder.mkdir(parents=True)
    file = RoleFile(config.config_folder)
    file.save(record)
    assert was_slave(file.load(), config) == expected
    if settings.get("broker_id") != 1:
        forget_role(config)
        assert was_slave(file.load(), config) == expected


@pytest.mark.asyncio
async def test_a_slave_that_its_settings_made_the_master_is_no_former_slave(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config.config_folder.mkdir(parents=True)
    file = RoleFile(config.config_folder)
    file.save(RoleRecord(epoch=3, master_role="ASYNC_MASTER"))
    async with Broker(config):
        pass
    assert file.load() == RoleRecord(epoch=3)


@pytest.mark.asyncio
async def test_a_broker_is_what_its_record_says_until_that_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_config(tmp_path).config_folder
    folder.mkdir(parents=True)
    RoleFile(folder).save(SLAVE)
    async with Broker(small_config(tmp_path)) as broker:
        status = broker.parts.roles.status()
        assert (status.broker_role, status.broker_id, status.epoch) == ("SLAVE", 2, 7)
        assert status.master_address == "127.0.0.1:1"
        assert not broker.parts.writing.gate.writable
    [line] = [each for each in caplog.messages if "role.json" in each]
    assert "brokerRole=ASYNC_MASTER and brokerId=0 of the settings do not count" in line
    forget_role(small_config(tmp_path))
    async with Broker(small_config(tmp_path)) as broker:
        status = broker.parts.roles.status()
        assert (status.broker_role, status.broker_id, status.epoch) == ("ASYNC_MASTER", 0, 7)
        assert broker.parts.writing.gate.writable
