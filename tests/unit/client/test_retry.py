from __future__ import annotations

import pytest

from kerolox.client.core.sending.retry import (
    FILTER_REFUSED,
    NOT_STORED_CODES,
    is_passing,
    is_retried,
)
from kerolox.errors import (
    ACL_EXCEPTION,
    BrokerError,
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    MessageIllegalError,
    RemoteProtocolError,
    RequestTimeoutError,
)


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
def test_these_codes_are_worth_another_broker(code: int) -> None:
    assert is_retried(BrokerError.from_response(code, ""))


@pytest.mark.parametrize("code", [2, 13, 3, 15])
def test_other_codes_are_not(code: int) -> None:
    assert not is_retried(BrokerError.from_response(code, ""))


@pytest.mark.parametrize(
    "error", [ConnectError, ConnectionLostError, RequestTimeoutError, ClientError]
)
def test_trouble_on_the_way_is(error: type[Exception]) -> None:
    assert is_retried(error("x"))


@pytest.mark.parametrize("error", [LocalProtocolError, ClientClosedError, ValueError])
def test_what_fails_everywhere_is_not(error: type[Exception]) -> None:
    assert not is_retried(error("x"))


def test_the_list_of_codes_can_be_chosen() -> None:
    assert is_retried(MessageIllegalError(), codes={13})
    assert not is_retried(BrokerError.from_response(17, ""), codes=set())


@pytest.mark.parametrize("code", [1, 2, 14, 17])
def test_a_broker_that_refuses_with_these_codes_may_do_it_later(code: int) -> None:
    assert is_passing(BrokerError.from_response(code, "not now"))


@pytest.mark.parametrize("error", [ConnectError, ConnectionLostError, RequestTimeoutError])
def test_a_broker_that_is_away_may_come_back(error: type[Exception]) -> None:
    assert is_passing(error("x"))


@pytest.mark.parametrize(
    "error",
    [
        BrokerError.from_response(16, ""),
        BrokerError.from_response(1, f"{ACL_EXCEPTION}: no"),
        BrokerError.from_response(1, f"the broker {FILTER_REFUSED} by SQL92"),
        RemoteProtocolError("x"),
        LocalProtocolError("x"),
        ClientError("x"),
    ],
)
def test_an_account_a_setting_or_another_protocol_stays_what_it_is(error: Exception) -> None:
    assert not is_passing(error)


def test_after_a_failure_within_the_broker_a_message_may_be_stored() -> None:
    assert not NOT_STORED_CODES & {1, 10, 11, 12}
