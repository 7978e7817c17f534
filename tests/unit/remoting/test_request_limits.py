"""Limits of requests a second: who is counted with whom, what is reported, and switching."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from kerolox.kernel.feed import ALLOWANCE_MAX
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.limits.requests import LOG_SECONDS, RequestLimits

COMMAND = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2)
ADDRESS = "10.0.0.1:40000"


@dataclass
class Settings:
    max_requests_per_second_per_address: int = 0
    max_requests_per_second_per_account: int = 0
    request_burst_millis: int = 1000


class Hand:
    """A clock to turn by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(limits: RequestLimits, network: str, count: int) -> int:
    """How many of so many requests are let in."""
    refused = (limits.refuse_address(COMMAND, network, ADDRESS) for _ in range(count))
    return sum(each is None for each in refused)


def test_nothing_is_limited_unless_a_setting_says_so() -> None:
    limits = RequestLimits(clock=Hand())
    limits.use(Settings())
    assert not limits.is_on
    assert taken(limits, "a", 100_000) == 100_000
    assert limits.refuse_account(COMMAND, "k", ADDRESS) is None
    assert limits.allowance("a") == ALLOWANCE_MAX


def test_an_address_gets_its_burst_and_then_its_rate() -> None:
    clock = Hand()
    limits = RequestLimits(clock=clock)
    limits.use(Settings(100, request_burst_millis=500))
    assert taken(limits, "a", 1000) == 50
    assert taken(limits, "b", 1000) == 50
    clock.now = 0.25
    assert taken(limits, "a", 1000) == 25
    assert limits.counts.requests_refused_of_address == 950 * 2 + 975


def test_what_the_kernel_answered_counts_too() -> None:
    limits = RequestLimits(clock=Hand())
    limits.use(Settings(100))
    assert limits.allowance("a") == 100
    limits.spend("a", 70)
    assert limits.allowance("a") == 30
    assert taken(limits, "a", 100) == 30
    assert limits.allowance("a") == 0
    assert limits.allowance("b") == 100


def test_a_limit_of_accounts_leaves_nothing_to_the_kernel() -> None:
    limits = RequestLimits(clock=Hand())
    limits.use(Settings(max_requests_per_second_per_account=2))
    assert limits.allowance("a") == 0
    answers = [limits.refuse_account(COMMAND, "k", ADDRESS) for _ in range(3)]
    assert [each is None for each in answers] == [True, True, False]
    assert limits.refuse_account(COMMAND, "", ADDRESS) is None, "nobody proved to be anybody"
    assert limits.counts.requests_refused_of_account == 1


def test_the_answer_names_limit_and_setting_and_has_the_code_of_flow_control() -> None:
    limits = RequestLimits(clock=Hand())
    limits.use(Settings(1))
    taken(limits, "10.0.0.1", 1)
    busy = limits.refuse_address(COMMAND, "10.0.0.1", ADDRESS)
    assert busy is not None
    assert busy.code == 2
    assert busy.remark == (
        "[RATE_LIMIT]system busy, start flow control for a while: more than 1 requests a second "
        "from 10.0.0.1 (maxRequestsPerSecondPerAddress)"
    )


def test_refusals_are_told_now_and_then_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock = Hand()
    limits = RequestLimits(clock=clock)
    limits.use(Settings(1))
    taken(limits, "a", 1000)
    clock.now = LOG_SECONDS
    taken(limits, "a", 3)
    assert len(caplog.messages) == 2
    assert "refused as busy" in caplog.messages[0]
    assert caplog.messages[1].endswith("(998 more refused since the last such line)")


def test_other_settings_are_in_force_at_once_and_switches_are_told() -> None:
    limits = RequestLimits(clock=Hand())
    switches: list[bool] = []
    limits.on_switch(lambda: switches.append(limits.is_on))
    limits.use(Settings(10))
    assert taken(limits, "a", 100) == 10
    limits.use(Settings(1000))
    limits.use(Settings(0, 5))
    assert taken(limits, "a", 100) == 100
    limits.use(Settings())
    assert switches == [True, False]


def test_counts_have_the_names_that_operators_read() -> None:
    assert RequestLimits().counts.shown() == {
        "connections": 0,
        "connectionsRefused": 0,
        "connectionsRefusedOfAddress": 0,
        "requestsRefusedOfAddress": 0,
        "requestsRefusedOfAccount": 0,
    }
