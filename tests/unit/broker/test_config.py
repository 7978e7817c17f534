"""Settings of the broker: files, overrides, mistakes."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from kerolox.broker.config import TRANSFER_BYTES_MAX, BrokerConfig
from kerolox.broker.unused_settings import UNUSED_KEYS
from kerolox.config import read_properties
from kerolox.errors import ConfigError
from kerolox.protocol.codes import FRAME_BYTES_MAX


def write(folder: Path, text: str) -> Path:
    path = folder / "broker.conf"
    path.write_text(text)
    return path


def test_a_broker_conf_of_rocketmq_is_read(tmp_path):
    path = write(
        tmp_path,
        "# a master\nbrokerClusterName = DefaultCluster\nbrokerName=broker-a\nbrokerId = 0\n"
        "brokerRole = ASYNC_MASTER\nflushDiskType = SYNC_FLUSH\nlistenPort=10921\n"
        "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\nbrokerIP1=10.0.0.9\n"
        f"storePathRootDir={tmp_path}/s\nmappedFileSizeCommitLog=1048576\n",
    )
    config = BrokerConfig.load(path)
    assert config.broker_name == "broker-a"
    assert config.listen_port == 10921
    assert config.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert config.broker_ip1 == "10.0.0.9"
    assert config.config_folder == tmp_path / "s" / "config"
    assert config.log_folders == (tmp_path / "s" / "commitlog",)
    settings = config.store_settings()
    assert settings.flush_disk_type == "SYNC_FLUSH"
    assert settings.mapped_file_size_commit_log == 1_048_576
    assert settings.store_path_root_dir == str(tmp_path / "s")


def test_the_defaults_are_those_of_rocketmq():
    config = BrokerConfig.load(None)
    assert (config.listen_port, config.broker_cluster_name) == (10911, "DefaultCluster")
    assert config.max_message_size == 4 * 1024 * 1024
    assert len(config.delay_levels_ms) == 18
    assert config.delay_levels_ms[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert config.delay_levels_ms[-1] == 7_200_000


def test_overrides_are_stronger_than_the_file(tmp_path):
    path = write(tmp_path, "listenPort=10921\n")
    assert BrokerConfig.load(path, listen_port=5, vip_port_enable=None).listen_port == 5


def test_every_setting_can_be_written_and_read_back(tmp_path):
    config = BrokerConfig.load(None, store_path_root_dir=tmp_path, broker_ip1="10.1.2.3")
    text = "".join(f"{key}={value}\n" for key, value in config.as_properties().items())
    assert BrokerConfig.load(write(tmp_path, text)) == config


def test_a_known_key_that_has_no_effect_is_one_warning(tmp_path, caplog):
    path = write(tmp_path, "highSpeedMode=true\nduplicationEnable=true\n")
    with caplog.at_level(logging.WARNING):
        BrokerConfig.load(path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: without effect: highSpeedMode (no request waits in a queue); "
        "duplicationEnable (RocketMQ 4.9 has no use for it)"
    ]
    assert not UNUSED_KEYS.keys() & set(BrokerConfig.load(None).as_properties())


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("flushDiskTyp=SYNC_FLUSH", ("'flushDiskTyp'", "did you mean 'flushDiskType'?")),
        ("listenport=1", ("'listenport'", "did you mean 'listenPort'?")),
        ("listenPort=10911 #mine", ("listenPort", "comment")),
        ("listenPort=ten", ("listenPort", "'ten' is no whole number")),
        ("listenPort=70000", ("listenPort", "the most is 65535")),
        ("listenPort=2", ("listenPort=2", "VIP port")),
        ("flushDiskType=SYNC", ("flushDiskType", "'SYNC' is none of ASYNC_FLUSH, SYNC_FLUSH")),
        ("autoCreateTopicEnable=yes", ("autoCreateTopicEnable", "neither true nor false")),
        ("brokerRole=SLAVE", ("brokerId=0", "an id above 0")),
        ("brokerId=1", ("brokerId=1", "a master has id 0")),
        ("brokerName=my broker", ("brokerName='my broker'",)),
        ("brokerIP1=my host", ("brokerIP1", "'my host' is neither an IP address nor a host")),
        ("namesrvAddr=localhost", ("namesrvAddr", "host:port")),
        ("namesrvAddr=localhost:99999", ("namesrvAddr", "1 to 65535")),
        ("mappedFileSizeConsumeQueue=1001", ("mappedFileSizeConsumeQueue", "multiple of 20")),
        (
            "storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/b,/a",
            ("readOnlyCommitLogStorePaths names every folder",),
        ),
        ("messageDelayLevel=1s 5x", ("messageDelayLevel", "'5x' is no delay")),
        ("messageDelayLevel=", ("messageDelayLevel", "write at least one delay")),
        ("messageDelayLevel=1s -5s", ("messageDelayLevel", "'-5s' is no delay")),
        ("deleteWhen=4am", ("deleteWhen", "'4am' is no list of hours")),
        ("diskSpaceWarningLevelRatio=90", ("diskSpaceWarningLevelRatio=90", "such as 0.90")),
        ("fileReservedTime=-1", ("fileReservedTime", "the least is 0")),
    ],
)
def test_a_setting_that_is_wrong_names_file_and_key(tmp_path, line: str, texts: tuple[str, ...]):
    path = write(tmp_path, line + "\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(path)
    for text in (str(path), *texts):
        assert text in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.conf: can't be read"):
        BrokerConfig.load(tmp_path / "nowhere.conf")


def test_the_environment_names_name_servers(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.7:9876")
    assert BrokerConfig.load(None).name_servers == ("10.0.0.7:9876",)


def test_a_host_name_is_resolved_for_the_records():
    assert BrokerConfig.load(None, broker_ip1="localhost").store_address() in ("127.0.0.1", "::1")
    with pytest.raises(ConfigError, match=r"brokerIP1: 'no\.such\.invalid' can't be resolved"):
        BrokerConfig.load(None, broker_ip1="no.such.invalid").store_address()


# -- files that people have ---------------------------------------------------------------------
CONFS = sorted((Path(__file__).parent / "confs").glob("*.conf"))


@pytest.mark.parametrize("path", CONFS, ids=lambda path: path.stem)
def test_a_broker_conf_as_they_are_copied_around_is_taken_with_one_warning(path: Path, caplog):
    config = BrokerConfig.load(path)
    assert config.broker_name
    found = [each.getMessage() for each in caplog.records if "without effect" in each.getMessage()]
    given = read_properties(path).keys() & UNUSED_KEYS.keys()
    assert len(found) == bool(given)
    for key in given:
        assert len(re.findall(rf"\b{key}\b", found[0])) == 1, key
        assert UNUSED_KEYS[key] in found[0]


def test_each_reason_is_said_once(tmp_path, caplog):
    path = write(tmp_path, "".join(f"{key}=1\n" for key in UNUSED_KEYS))
    BrokerConfig.load(path)
    line = caplog.records[0].getMessage()
    for reason in set(UNUSED_KEYS.values()):
        assert line.count(f"({reason})") == 1


def test_another_place_for_index_or_queues_is_said_to_be_none(tmp_path, caplog):
    root = tmp_path / "store"
    path = write(
        tmp_path,
        f"storePathRootDir={root}\nstorePathIndex=/ssd/index\nstorePathConsumeQueue={root}/consumequeue/\n"
        f"abortFile={tmp_path}/abort\n",
    )
    BrokerConfig.load(path)
    lines = [each.getMessage() for each in caplog.records][1:]
    assert lines == [
        f"{path}: storePathIndex=/ssd/index is not where it is: it is {root}/index, "
        "as storePathRootDir says",
        f"{path}: abortFile={tmp_path}/abort is not where it is: it is {root}/abort, "
        "as storePathRootDir says",
    ]


@pytest.mark.parametrize("name", ["mq-1.eu.example.com", "a.b_c-d%|9", "...a", "a" * 127])
def test_a_broker_may_have_the_full_name_of_its_host(tmp_path, name: str):
    assert BrokerConfig.load(write(tmp_path, f"brokerName={name}\n")).broker_name == name


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a/b", "../x", "a b", "ä", "a" * 128])
def test_a_broker_name_that_no_folder_can_have_is_refused(tmp_path, name: str):
    with pytest.raises(ConfigError, match="brokerName="):
        BrokerConfig.load(write(tmp_path, f"brokerName={name}\n"))


def test_the_default_name_is_that_of_the_host(monkeypatch):
    for host, name in (("mq.example.com", "mq.example.com"), ("a b", "a-b"), ("", "broker-a")):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert BrokerConfig().broker_name == name


def test_an_answer_to_a_pull_fits_a_frame_whatever_the_settings_say() -> None:
    config = BrokerConfig(
        max_transfer_bytes_on_message_in_memory=(1 << 31) - 1,
        max_transfer_bytes_on_message_in_disk=(1 << 31) - 1,
    )
    store = config.store_settings()
    assert store.max_transfer_bytes_on_message_in_memory == TRANSFER_BYTES_MAX
    assert store.max_transfer_bytes_on_message_in_disk == TRANSFER_BYTES_MAX
    assert TRANSFER_BYTES_MAX < FRAME_BYTES_MAX
