"""Refusals that several parts answer requests with."""

from __future__ import annotations

from kerolox.errors import BrokerError
from kerolox.protocol.codes import SEE_FAQ, ResponseCode


def system_error(remark: str) -> BrokerError:
    """Code 1, for all that has no code of its own."""
    return BrokerError(remark, code=ResponseCode.SYSTEM_ERROR)


def system_busy(remark: str) -> BrokerError:
    """Code 2, which lets a client try again or another broker."""
    return BrokerError(remark, code=ResponseCode.SYSTEM_BUSY)


def no_permission(remark: str) -> BrokerError:
    """Code 16: the broker, the topic or the group does not allow it."""
    return BrokerError(remark, code=ResponseCode.NO_PERMISSION)


def no_topic(name: str) -> BrokerError:
    """Code 17: a topic to read is not there."""
    return BrokerError(
        f"topic[{name}] not exist, apply first please! {SEE_FAQ}",
        code=ResponseCode.TOPIC_NOT_EXIST,
    )


def no_group(name: str) -> BrokerError:
    """Code 26: a group that reads is not there."""
    return BrokerError(
        f"subscription group [{name}] does not exist, {SEE_FAQ}",
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


def no_expression_filter(expression_type: str | None) -> BrokerError:
    """``enablePropertyFilter`` is false."""
    return system_error(
        f"The broker does not support consumer to filter message by {expression_type}"
    )


def parse_failed() -> BrokerError:
    """What a group wants of a topic can't be understood."""
    return BrokerError(
        "parse the consumer's subscription failed", code=ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )
