from __future__ import annotations

from typing import Any

import pytest

from kerolox.client import ProducerSettings, PullConsumerSettings, PushConsumerSettings
from kerolox.client.aio.network.identity import client_id_of, name_servers_of
from kerolox.errors import ConfigError


def test_the_defaults_are_rocketmqs() -> None:
    producer, consumer = ProducerSettings(), PushConsumerSettings()
    assert (producer.send_timeout_ms, producer.retries) == (3_000, 2)
    assert (producer.retry_when_not_stored_ok, producer.latency_fault_enable) == (False, False)
    assert (producer.compress_bytes_min, producer.message_bytes_max) == (4096, 4 * 1024 * 1024)
    assert (producer.create_topic_key, producer.default_topic_queue_nums) == ("TBW102", 4)
    assert (consumer.pull_batch_size, consumer.consume_batch_max) == (32, 1)
    assert (consumer.cached_messages_max, consumer.cached_mib_max) == (1000, 100)
    assert (consumer.cached_span_max, consumer.consume_concurrency) == (2000, 20)
    assert (consumer.suspend_timeout_ms, consumer.pull_timeout_ms) == (15_000, 30_000)
    assert consumer.local_offset_folder.name == ".rocketmq_offsets"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (ProducerSettings, {"send_timeout_ms": 0}),
        (ProducerSettings, {"retries": -1}),
        (ProducerSettings, {"compress_level": 10}),
        (ProducerSettings, {"heartbeat_interval_ms": "30"}),
        (PushConsumerSettings, {"consume_concurrency": 1001}),
        (PushConsumerSettings, {"pull_batch_size": 1025}),
        (PushConsumerSettings, {"consume_batch_max": True}),
        (PushConsumerSettings, {"pull_timeout_ms": 15_000}),
        (PushConsumerSettings, {"allocation": "AVERAGE"}),
        (PullConsumerSettings, {"suspended_pull_timeout_ms": 20_000}),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(
    settings: type[Any], wrong: dict[str, object]
) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=name):
        settings(**wrong)


def test_a_copy_can_be_changed_but_the_original_not() -> None:
    settings = ProducerSettings()
    assert settings.changed(retries=5).retries == 5
    with pytest.raises(AttributeError):
        settings.retries = 5  # type: ignore[misc]


def test_name_servers_are_joined_by_semicolons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_servers_of("a:1; b:2;;a:1") == ("a:1", "b:2")
    monkeypatch.setenv("NAMESRV_ADDR", "c:3")
    assert name_servers_of("") == ("c:3",)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        name_servers_of(" ")


@pytest.mark.parametrize("text", ["http://a:1", "http://a:1/", " http://a:1 "])
def test_one_endpoint_may_have_a_scheme(text: str) -> None:
    assert name_servers_of(text) == ("a:1",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://http://a:1", "begins with http://, which no address does"),
        ("http://a:1;http://b:2", "are several: write them without http://"),
        ("a:1;http://b:2", "begins with http://, which no address does"),
        ("https://a:1", "begins with https://, which no address does"),
    ],
)
def test_a_scheme_where_none_belongs_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        name_servers_of(text)


@pytest.mark.parametrize("text", ["a", "a:", ":9876", "a:x", "a:0", "a:65536", "a:9876,b:9876"])
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="name server"):
        name_servers_of(text)


def test_each_client_is_an_instance_of_its_own() -> None:
    first, second = (client_id_of("1.2.3.4", "DEFAULT", keep_default=False) for _ in range(2))
    assert first != second
    assert first.startswith("1.2.3.4@")
    assert "#" in first
    assert client_id_of("1.2.3.4", "DEFAULT", keep_default=True) == "1.2.3.4@DEFAULT"
    assert client_id_of("1.2.3.4", "mine", keep_default=False) == "1.2.3.4@mine"
