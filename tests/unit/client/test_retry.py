from __future__ import annotations

import pytest

from kerolox.client.core.sending.retry import is_retried
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    MessageIllegalError,
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
