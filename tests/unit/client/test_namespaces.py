"""Names with and without a namespace, as NamespaceUtil of 4.9.8 has them."""

from __future__ import annotations

import pytest

from kerolox.client import ProducerSettings
from kerolox.client.aio.network.identity import name_servers_of, namespace_of
from kerolox.client.core.namespaces import (
    namespace_of_endpoint,
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from kerolox.errors import ConfigError
from kerolox.message import MessageQueue

PAIRS = [
    ("T", "ns%T"),
    ("%RETRY%g", "%RETRY%ns%g"),
    ("%DLQ%g", "%DLQ%ns%g"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("TBW102", "TBW102"),
    ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ("", ""),
]


@pytest.mark.parametrize(("name", "wrapped"), PAIRS)
def test_a_namespace_stands_before_the_name_and_behind_retry_and_dlq(
    name: str, wrapped: str
) -> None:
    assert with_namespace("ns", name) == wrapped
    assert with_namespace("ns", wrapped) == wrapped
    assert without_namespace("ns", wrapped) == name
    assert without_namespace("ns", name) == name


def test_without_a_namespace_names_stay_as_they_are() -> None:
    assert with_namespace("", "other%T") == without_namespace("", "other%T") == "other%T"


def test_names_of_other_namespaces_are_left_alone() -> None:
    assert without_namespace("ns", "other%T") == "other%T"
    assert without_namespace("ns", "%RETRY%nsx%g") == "%RETRY%nsx%g"


def test_queues_are_renamed_by_their_topic() -> None:
    queue = MessageQueue("T", "b", 1)
    assert queue_with_namespace("ns", queue) == MessageQueue("ns%T", "b", 1)
    assert queue_without_namespace("ns", MessageQueue("ns%T", "b", 1)) == queue
    assert queue_with_namespace("", queue) is queue_without_namespace("", queue) is queue


@pytest.mark.parametrize(
    ("address", "namespace"),
    [
        ("http://MQ_INST_123_abc.example.com:8080", "MQ_INST_123_abc"),
        ("MQ_INST_123_abc.example.com:8080", "MQ_INST_123_abc"),
        ("http://example.com:8080", ""),
        ("127.0.0.1:9876", ""),
    ],
)
def test_an_instance_s_address_implies_its_namespace(address: str, namespace: str) -> None:
    assert namespace_of_endpoint(address) == namespace
    assert namespace_of("", address) == namespace
    assert namespace_of("given", address) == "given"


def test_an_endpoint_is_asked_without_its_scheme() -> None:
    assert name_servers_of("http://MQ_INST_1_a.host:80") == ("MQ_INST_1_a.host:80",)


def test_a_namespace_that_no_name_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace"):
        ProducerSettings(namespace="a%b")
