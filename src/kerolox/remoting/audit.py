"""The audit line: what requests of operators changed, and what was denied or refused.

Each is one line of JSON on the logger :data:`kerolox.remoting.AUDIT_LOGGER`, with members in this
order; ``-`` stands for what is not known:

==========  =======================================================================================
time        UTC, to the millisecond: ``2026-01-31T12:00:00.000Z``
outcome     ``changed``; ``denied``: access control did; ``refused``: for another reason;
            ``left-out``: a number of lines that were not written
server      ``broker`` or ``name server``
account     access key of the account that signed; ``?key`` where its signature was not accepted
subject     of the client's certificate
from        address of the client
call        of a client that speaks gRPC: the call that made the request
client      its client id
request     name of the request code
code        the request code
opaque      the request's number on its connection
...         what was changed or asked for: ``topic``, ``group``, ``settings`` ... with its name
old, new    values before and after, null where there was or is none; of settings with several
            members those alone that differ
automatic   true: nobody asked for it by itself, as a topic that a send made
reason      why it was denied or refused, with its response ``answer``
==========  =======================================================================================

What strangers sent is escaped (:func:`kerolox.text.printable`) and cut, so that a line stays one
line of JSON with at most :data:`LINE_CHARACTERS_MAX` characters. A secret is ``***``.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from kerolox.addresses import network_of
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import SEND_LONG_NAMES
from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.limits.rates import Rates
from kerolox.text import printable

LINE_CHARACTERS_MAX = 1800
"""Of one line; the longest texts are cut for it."""

DENIALS_OF_ADDRESS = (1.0, 10.0)
"""Lines about denials and refusals of one address: a second, and at once."""

DENIALS_OF_ALL = (10.0, 100.0)
"""The same of all addresses together."""

CHANGES_OF_ALL = (100.0, 10_000.0)
"""Lines about changes: without access control anybody may change things as fast as he can."""

LEFT_OUT_SECONDS = 10.0
"""After so long it is told how many lines were left out."""

HIDDEN = "***"

_SECRET = re.compile(r"secret|password|passphrase|signature|token", re.IGNORECASE)
_ALL = ""
_OBJECT_FIELDS = (
    "topic",
    "group",
    "consumerGroup",
    "producerGroup",
    "groupName",
    "namespace",
    "key",
    "clusterName",
    "brokerName",
    "brokerAddr",
    "accessKey",
)
"""What of a refused request's header is told; the names are those of the header."""
_TEXT_CUTS = (256, 64, 16, 8)
"""Characters that each text keeps, four for each member that a value keeps: the first with which
the line is short enough."""
_MEMBERS_OF_CHARACTERS = 4

_log = logging.getLogger(AUDIT_LOGGER)

Values = str | Mapping[str, object] | msgspec.Struct | None
"""What something was or became: a text, or members by name; None: it was or is not there."""


class Peer(Protocol):
    """A client's connection, as an audit line shows it."""

    remote_address: str
    certificate_subject: str | None

    @property
    def audited(self) -> Mapping[str, str]:
        """More members of the line."""

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port."""


class Asked(Protocol):
    """A request and who sent it."""

    @property
    def command(self) -> RemotingCommand:
        """The request."""

    @property
    def connection(self) -> Peer:
        """Where it came from."""

    @property
    def account(self) -> str:
        """Access key of the account that signed it; empty: nobody did, or nobody looked."""


class Audit:
    """Writes the audit lines of one server, and counts them."""

    def __init__(self, server: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``server``: what the lines call it; ``clock``: seconds, tests turn one by hand."""
        self._server = server
        self.counts = {"changed": 0, "denied": 0, "refused": 0}
        """What happened, by outcome, whether a line tells it or not."""
        self._left_out = dict.fromkeys(self.counts, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._changes = Rates(*CHANGES_OF_ALL, clock=clock)
        self._denials = Rates(*DENIALS_OF_ALL, clock=clock)
        self._by_address = Rates(*DENIALS_OF_ADDRESS, clock=clock)

    def shown(self) -> dict[str, int]:
        """Name → count of changes, denials and refusals, for operators."""
        return {f"audit{outcome.capitalize()}": count for outcome, count in self.counts.items()}

    def changed(
        self,
        request: Asked,
        kind: str,
        name: str,
        old: Values = None,
        new: Values = None,
        *,
        automatic: bool = False,
    ) -> None:
        """Something was changed by a request: call it when it is so. Without a difference between
        ``old`` and ``new`` nothing is reported.

        Args:
            request: who wanted it.
            kind: of what was changed: ``topic``, ``group``, ``settings``; a member of the line, so
                none that it has already.
            name: of what was changed.
            old, new: before and after; both None where there is nothing to compare.
            automatic: the request was for something else, which needed this.
        """
        before, after = _members(old), _members(new)
        if before == after and before is not None:
            return
        self.counts["changed"] += 1
        if not self._changes.take(_ALL):
            self._leave_out("changed")
            return
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            before = {key: before[key] for key in keys if key in before}
            after = {key: after[key] for key in keys if key in after}
        more: dict[str, object] = {kind: name}
        full_name = f"{kind} {name}"
        more |= {
            "old": without_secrets(full_name, before),
            "new": without_secrets(full_name, after),
        }
        if automatic:
            more["automatic"] = True
        self._write("changed", request.command, request.connection, request.account, more)

    def denied(
        self, command: RemotingCommand, connection: Peer, reason: str, *, account: str = ""
    ) -> None:
        """Access control denied a request, for a reason that has no secrets.

        ``account``: what was proven to be the asker's; empty: what the request says is told.
        """
        self._refusal("denied", command, connection, account, {"reason": reason})

    def refused(self, request: Asked, answer: int, reason: str) -> None:
        """A request that would have changed something was answered with an error."""
        more = {"reason": reason, "answer": answer}
        self._refusal("refused", request.command, request.connection, request.account, more)

    def close(self) -> None:
        """Tell what was left out up to now."""
        if self._timer is not None:
            self._timer.cancel()
            self._log_left_out()

    def _refusal(
        self,
        outcome: str,
        command: RemotingCommand,
        connection: Peer,
        account: str,
        more: Mapping[str, object],
    ) -> None:
        self.counts[outcome] += 1
        # First its own share: who has none of it left takes nothing from the others.
        if not self._by_address.take(network_of(connection.peer[0])) or not self._denials.take(
            _ALL
        ):
            self._leave_out(outcome)
            return
        fields = {SEND_LONG_NAMES.get(name, name): text for name, text in _given(command)}
        asked = {name: fields[name] for name in _OBJECT_FIELDS if name in fields}
        self._write(outcome, command, connection, account, {**asked, **more})

    def _write(
        self,
        outcome: str,
        command: RemotingCommand,
        connection: Peer,
        account: str,
        more: Mapping[str, object],
    ) -> None:
        claimed = command.ext_fields.get("AccessKey", "")
        line = {
            "time": utc_text(),
            "outcome": outcome,
            "server": self._server,
            "account": account or (f"?{claimed}" if claimed else "-"),
            "subject": connection.certificate_subject or "-",
            "from": connection.remote_address,
            **connection.audited,
            "request": _code_name(command.code),
            "code": command.code,
            "opaque": command.opaque,
            **more,
        }
        _log.info("%s", audit_text(line))

    def _leave_out(self, outcome: str) -> None:
        self._left_out[outcome] += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LEFT_OUT_SECONDS, self._log_left_out)

    def _log_left_out(self) -> None:
        self._timer = None
        left_out = {outcome: count for outcome, count in self._left_out.items() if count}
        self._left_out = dict.fromkeys(self._left_out, 0)
        line = {"time": utc_text(), "outcome": "left-out", "server": self._server, **left_out}
        _log.info("%s", audit_text(line))


def is_secret(name: str) -> bool:
    """Whether the value of a setting or field of that name is told to nobody."""
    return _SECRET.search(name) is not None


def _members(values: Values) -> object:
    return msgspec.to_builtins(values) if isinstance(values, msgspec.Struct) else values


def without_secrets(name: str, value: object) -> object:
    """What may be said of a value of that name, or of its members."""
    if isinstance(value, Mapping):
        return {each: without_secrets(each, member) for each, member in value.items()}
    return HIDDEN if is_secret(name) and value is not None else value


def _given(command: RemotingCommand) -> list[tuple[str, str]]:
    """The fields of a header; those of one letter only where a send has them."""
    short = command.code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    return [(name, text) for name, text in command.ext_fields.items() if short or len(name) > 1]


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "-"


def utc_text() -> str:
    """The time as audit lines have it."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def audit_text(line: Mapping[str, object]) -> str:
    """An audit line of these members: texts escaped, and cut until it is short enough."""
    text = ""
    for characters in _TEXT_CUTS:
        shown = _shown(line, characters)
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= LINE_CHARACTERS_MAX:
            break
    return text


def _shown(value: object, characters: int, depth: int = 0) -> object:
    """A value with texts that are safe and short, in few members."""
    if value is None or isinstance(value, bool | int | float):
        return value
    count_max = max(characters // _MEMBERS_OF_CHARACTERS, 16 if depth == 0 else 0)
    if isinstance(value, Mapping) and depth < 3:
        items = list(value.items())
        shown = {
            printable(str(name), characters_max=characters): _shown(each, characters, depth + 1)
            for name, each in items[:count_max]
        }
        if len(items) > count_max:
            shown["…"] = f"{len(items) - count_max} more"
        return shown
    if isinstance(value, list | tuple | set | frozenset) and depth < 3:
        members = list(value)
        texts = [_shown(each, characters, depth + 1) for each in members[:count_max]]
        return texts + [f"… {len(members) - count_max} more"] * (len(members) > count_max)
    return printable(str(value), characters_max=characters)
