from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig


def test_defaults_are_those_of_rocketmq() -> None:
    config = NamesrvConfig.load(None)
    assert config.listen_port == 9876
    assert config.kv_config_path == Path.home() / "namesrv" / "kvConfig.json"
    assert config.config_store_path == Path.home() / "namesrv" / "namesrv.properties"
    assert (config.product_env_name, config.cluster_test) == ("center", False)
    assert not config.order_message_enable


def test_a_file_of_rocketmq_is_read_and_becomes_the_store_path(tmp_path: Path, caplog) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(
        f"listenPort=19876\nkvConfigPath={tmp_path}/kv.json\norderMessageEnable=true\n"
        "serverWorkerThreads=8\nrocketmqHome=/opt/rocketmq\n"
    )
    config = NamesrvConfig.load(path)
    assert (config.listen_port, config.order_message_enable) == (19876, True)
    assert config.kv_config_path == tmp_path / "kv.json"
    assert config.config_store_path == path
    assert "serverWorkerThreads" in caplog.text


def test_overrides_are_stronger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=1\n")
    assert NamesrvConfig.load(path, listen_port=2).listen_port == 2
    assert NamesrvConfig.load(path, listen_port=None).listen_port == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("listenPrt=1", "unknown setting 'listenPrt' \\(did you mean 'listenPort'\\?\\)"),
        ("listenPort=10911 #mine", "listenPort: .* a comment must be on a line of its own"),
        ("listenPort=70000", "listenPort: 70000 is too large"),
        ("clusterTest=TRUE", "clusterTest: 'TRUE' is neither true nor false"),
    ],
)
def test_a_wrong_line_is_an_error_with_file_and_key(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=rf"namesrv\.conf: {reason}"):
        NamesrvConfig.load(path)


def test_an_update_keeps_all_other_settings() -> None:
    config = NamesrvConfig(listen_port=1, order_message_enable=False)
    updated = config.changed({"orderMessageEnable": "true"}, "request")
    assert updated == NamesrvConfig(listen_port=1, order_message_enable=True)
