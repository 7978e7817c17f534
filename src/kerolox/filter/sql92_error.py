"""The name of SQL92 expressions on the wire, and the error of one that is none.

Most brokers meet no such expression. They have this, and import what compiles one when it comes.
"""

from __future__ import annotations

from kerolox.errors import KeroloxError

SQL92 = "SQL92"
"""The kind of an expression (``ExpressionType``)."""


class Sql92Error(KeroloxError, ValueError):
    """The expression can't be compiled (``MQFilterException``); the text says where and why."""
