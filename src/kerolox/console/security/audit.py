"""Audit lines of the console and of tools for agents, in the form of those of brokers
(:mod:`kerolox.remoting.audit`).

``outcome`` is ``changed``, ``failed`` (a cluster refused, or did not answer in time: then it may be
done), ``denied`` (no role, no token, or actions are off), ``login``, ``login-failed`` or
``logout``; ``server`` is ``console`` or ``mcp``, ``account`` the user, ``from`` the address,
``action`` the route. Further members name what was acted on, then ``old``, ``new``, ``reason``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from kerolox.clock import now_ms
from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.audit import (
    DENIALS_OF_ADDRESS,
    DENIALS_OF_ALL,
    audit_text,
    utc_text,
    without_secrets,
)
from kerolox.remoting.limits.rates import Rates

__all__ = ["Audit", "AuditLine"]

LINES_KEPT_MAX = 1_000
"""Of the last lines, for the page that shows them."""
DETAIL_CHARACTERS_MAX = 2_000
"""Of one of these, beside who, from where and what for."""

_log = logging.getLogger(AUDIT_LOGGER)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line as the page has it."""

    at_ms: int
    """Since the epoch."""
    outcome: str
    account: str
    address: str
    action: str
    detail: str
    """Further members, as JSON."""


class Audit:
    """Writes the lines, and keeps the last ones."""

    def __init__(self, server: str) -> None:
        """``server``: what the lines call it, ``console`` or ``mcp``."""
        self._server = server
        self._kept: deque[AuditLine] = deque(maxlen=LINES_KEPT_MAX)
        self._denials = Rates(*DENIALS_OF_ALL)
        self._by_address = Rates(*DENIALS_OF_ADDRESS)

    def last(self) -> list[AuditLine]:
        """The lines since the console started, newest first; as many as are kept."""
        return list(reversed(self._kept))

    def changed(self, account: str, address: str, action: str, what: Mapping[str, object]) -> None:
        """An action is done."""
        self._write("changed", account, address, action, what)

    def failed(self, account: str, address: str, action: str, what: Mapping[str, object]) -> None:
        """An action was tried by somebody who may, and the cluster did not do it."""
        self._write("failed", account, address, action, what)

    def session(
        self, outcome: str, account: str, address: str, what: Mapping[str, object] | None = None
    ) -> None:
        """Somebody logged in, or out, or tried to. ``what``: further members, of a provider."""
        if outcome != "login-failed" or self._may_log(address):
            self._write(outcome, account, address, "session", what or {})

    def denied(self, account: str, address: str, action: str, what: Mapping[str, object]) -> None:
        """Somebody asked for what he may not; told as often as the rates allow."""
        if self._may_log(address):
            self._write("denied", account, address, action, what)

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
        told = {name: without_secrets(name, value) for name, value in what.items()}
        detail = {name: value for name, value in told.items() if value not in (None, {}, "")}
        self._kept.append(
            AuditLine(
                now_ms(),
                outcome,
                account or "-",
                address,
                action,
                audit_text(detail)[:DETAIL_CHARACTERS_MAX] if detail else "",
            )
        )
        line = {
            "time": utc_text(),
            "outcome": outcome,
            "server": self._server,
            "account": account or "-",
            "from": address,
            "action": action,
            **told,
        }
        _log.info("%s", audit_text(line))
