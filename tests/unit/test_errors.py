from __future__ import annotations

import pytest

from kerolox.errors import (
    AccessDeniedError,
    BrokerError,
    BrokerSystemError,
    KeroloxError,
    RemoteProtocolError,
    RemotingError,
    TopicNotFoundError,
)


def test_each_response_code_has_at_most_one_class() -> None:
    with pytest.raises(TypeError, match="response code 17 already has a class"):

        class Other(BrokerError, code=17):
            pass


def test_a_response_becomes_the_error_of_its_code() -> None:
    error = BrokerError.from_response(17, "topic[T] not exist", "10.0.0.1:10911")
    assert type(error) is TopicNotFoundError
    assert (error.code, error.remark, error.address) == (17, "topic[T] not exist", "10.0.0.1:10911")
    assert str(error) == (
        "code 17 from 10.0.0.1:10911: topic[T] not exist; "
        "create the topic, or start the broker with autoCreateTopicEnable=true"
    )
    assert type(BrokerError.from_response(1, None)) is BrokerSystemError


def test_a_refusal_of_access_control_has_a_kind_of_its_own() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=a"
    error = BrokerError.from_response(1, remark, "10.0.0.1:10911")
    assert type(error) is AccessDeniedError
    assert isinstance(error, BrokerSystemError)
    assert (error.code, error.remark) == (1, remark)
    assert str(error).endswith("and at what the account may do there")


def test_a_code_without_a_class_is_a_broker_error_with_that_code() -> None:
    error = BrokerError.from_response(4711, None)
    assert type(error) is BrokerError
    assert str(error) == "code 4711: no remark"


def test_all_errors_have_one_root() -> None:
    assert issubclass(RemoteProtocolError, RemotingError)
    assert issubclass(RemotingError, KeroloxError)
    assert issubclass(BrokerError, KeroloxError)
