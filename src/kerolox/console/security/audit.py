"""Audit lines of the console, in the form of those of brokers (:mod:`kerolox.remoting.audit`).

``outcome`` is ``changed``, ``failed`` (a cluster refused, or did not answer in time: then it may be
done), ``denied`` (no role, no token, or actions are off), ``login``, ``login-failed`` or
``logout``; ``server`` is ``console``, ``account`` the user, ``from`` the address, ``action`` the
route. Further members name what was acted on, then ``old``, ``new``, ``reason``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.audit import (
    DENIALS_OF_ADDRESS,
    DENIALS_OF_ALL,
    audit_text,
    utc_text,
    without_secrets,
)
from kerolox.remoting.limits.rates import Rates

__all__ = ["Audit"]

_log = logging.getLogger(AUDIT_LOGGER)


class Audit:
    """Writes the lines."""

    def __init__(self) -> None:
        self._denials = Rates(*DENIALS_OF_ALL)
        self._by_address = Rates(*DENIALS_OF_ADDRESS)

    def changed(self, account: str, address: str, action: str, what: Mapping[str, object]) -> None:
        """An action is done."""
        self._write("changed", account, address, action, what)

    def failed(self, account: str, address: str, action: str, what: Mapping[str, object]) -> None:
        """An action was tried by somebody who may, and the cluster did not do it."""
        self._write("failed", account, address, action, what)

    def session(self, outcome: str, account: str, address: str) -> None:
        """Somebody logged in, or out, or tried to."""
        if outcome != "login-failed" or self._may_log(address):
            self._write(outcome, account, address, "session", {})

    def denied(self, account: str, address: str, action: str, reason: str) -> None:
        """Somebody asked for what he may not; told as often as the rates allow."""
        if self._may_log(address):
            self._write("denied", account, address, action, {"reason": reason})

    def _may_log(self, address: str) -> bool:
        return self._by_address.take(address) and self._denials.take("")

    def _write(
        self,
        outcome: str,
        account: str,
        address: str,
        action: str,
        what: Mapping[str, object],
    ) -> None:
        line = {
            "time": utc_text(),
            "outcome": outcome,
            "server": "console",
            "account": account or "-",
            "from": address,
            "action": action,
            **{name: without_secrets(name, value) for name, value in what.items()},
        }
        _log.info("%s", audit_text(line))
