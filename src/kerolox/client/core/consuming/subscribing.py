"""From the expression that a user gives to what brokers learn that a group wants."""

from __future__ import annotations

import dataclasses
import time

from kerolox.errors import ConfigError
from kerolox.filter.filter_class import FilterClass
from kerolox.filter.sql92 import compile_sql92
from kerolox.filter.sql92_error import SQL92, Sql92Error
from kerolox.filter.tags import Subscription, looks_like_sql92, subscription_of

TAG = "TAG"
"""``ExpressionType.TAG``."""


class Versions:
    """The versions of one consumer's subscriptions: later ones are greater, also after its clock
    was set back. A broker of RocketMQ ignores a subscription whose version is not."""

    def __init__(self) -> None:
        self._last = 0

    def later(self, subscription: Subscription) -> Subscription:
        """The subscription, with a version of its own."""
        self._last = max(subscription.version, self._last + 1)
        return dataclasses.replace(subscription, version=self._last)


def wanted(
    topic: str, expression: str | FilterClass, expression_type: str | None = None
) -> Subscription:
    """What a group wants of a topic (``FilterAPI.build``), as brokers know it. ConfigError: the
    expression names no tag or is no condition, or there is no such type.

    ``expression``: ``*`` for all, tags joined by ``||``, a condition on properties, or a Java
    class. ``expression_type``: ``TAG`` or ``SQL92``; None: SQL92 if it has a comparison or another
    part of SQL92 that is no tag.
    """
    if expression_type not in (None, TAG, SQL92):
        raise ConfigError(f"expression_type is {expression_type!r}; it must be TAG or SQL92")
    if isinstance(expression, FilterClass):
        return _of_class(topic, expression, expression_type)
    is_sql92 = expression_type == SQL92
    if expression_type is None:
        is_sql92 = looks_like_sql92(expression)
    try:
        if not is_sql92:
            return subscription_of(topic, expression)
        compile_sql92(expression)
    except (ValueError, Sql92Error) as error:
        hint = "" if expression_type else "; expression_type='TAG' takes it for a list of tags"
        raise ConfigError(f"{error}{hint if is_sql92 else ''}") from None
    return Subscription(
        topic=topic,
        expression=expression,
        expression_type=SQL92,
        version=time.time_ns() // 1_000_000,
    )


def _of_class(topic: str, filter_class: FilterClass, expression_type: str | None) -> Subscription:
    if expression_type is not None:
        raise ConfigError(f"expression_type is {expression_type!r}; a filter class has none")
    return Subscription(
        topic=topic,
        expression=filter_class.name,
        version=time.time_ns() // 1_000_000,
        class_filter_mode=True,
        class_source=filter_class.source,
    )
