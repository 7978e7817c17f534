"""Ending half messages in bulk: a request of Kerolox's own, END_HALF_MESSAGES (31037).

Whoever writes many half messages for one decision ends them by ranges of the half queue, not one by
one: a job writes the name of its attempt into each half (``PropertyKey.SINK``), and the request
names the attempts that count. A RocketMQ broker answers code 3 (REQUEST_CODE_NOT_SUPPORTED).

The header is :class:`~kerolox.protocol.headers.EndHalfMessagesHeader`, the body a
:class:`HalfSelection` as JSON, the answer's members are those of :class:`EndedHalves`.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.bodies import decode_request, encode_body
from kerolox.protocol.codes import MessageSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import EndHalfMessagesHeader
from kerolox.protocol.names import NAME_BYTES_MAX, Int64, Name

ATTEMPTS_MAX = 10_000
"""Most attempts that one request may name."""

_NUMBER_DIGITS_MAX = 19


class Attempt(NamedTuple):
    """One try of one task to write its part of a batch, as ``KEROLOX_SINK`` names it."""

    query: str
    """Of a stream its query id; any name without a slash."""
    batch: int
    partition: int
    attempt: int

    @property
    def text(self) -> str:
        """``query/batch/partition/attempt``; ValueError: no property could hold it, or it could not
        be read again.
        """
        text = "/".join(map(str, self))
        if Attempt.parse(text) != self:
            raise ValueError(
                f"{text[:80]!r} names no attempt: the query is 1 to {NAME_BYTES_MAX} bytes with "
                "the numbers, without a slash or control characters; numbers are 0 or more"
            )
        return text

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The attempt that a text names; None when it names none."""
        parts = text.split("/")
        if len(parts) != 4 or not parts[0].isprintable() or len(text.encode()) > NAME_BYTES_MAX:
            return None
        query, *texts = parts
        if not query or not all(map(_is_number, texts)):
            return None
        batch, partition, attempt = map(int, texts)
        return cls(query, batch, partition, attempt)


class HalfSelection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which halves are meant: those of some attempts, or of a query up to a batch."""

    attempts: list[Name] = []
    """Their halves, and no others, when ``query`` is empty."""
    keep: list[Name] = []
    """With ``query``: attempts whose halves are not meant."""
    last_batch: Int64 = -1
    """With ``query``: the last batch whose halves are meant."""
    query: Name = ""
    """All halves of this query are meant, up to ``last_batch``. Only to roll back."""

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a request's body; an empty one selects nothing. BodyError: it is none, or names too
        many attempts.
        """
        return decode_request(body, cls) if body else cls()

    def fault(self, *, is_commit: bool) -> str:
        """Why no request may say this; empty: it may."""
        named = len(self.attempts) + len(self.keep)
        if named > ATTEMPTS_MAX:
            return f"{named} attempts are named, at most {ATTEMPTS_MAX} may be"
        if self.query and (is_commit or self.attempts):
            return "a whole query is rolled back only, and without attempts beside it"
        if self.keep and not self.query:
            return "attempts to keep go with a query"
        return ""


class HalfSelector:
    """Decides by the text of a half's ``KEROLOX_SINK`` whether a selection means it."""

    def __init__(self, selection: HalfSelection) -> None:
        """Nothing is decided yet."""
        self._selection = selection
        self._attempts = frozenset(selection.attempts)
        self._keep = frozenset(selection.keep)
        self._decided: dict[str, bool] = {}

    def chooses(self, text: str) -> bool:
        """Whether a half with this text is meant. Most halves repeat a text, so it is kept."""
        decided = self._decided.get(text)
        if decided is None:
            decided = self._decide(text)
            if len(self._decided) >= ATTEMPTS_MAX:
                self._decided.clear()
            self._decided[text] = decided
        return decided

    def _decide(self, text: str) -> bool:
        query = self._selection.query
        if not query:
            return text in self._attempts
        attempt = Attempt.parse(text)
        return (
            attempt is not None
            and attempt.query == query
            and attempt.batch <= self._selection.last_batch
            and text not in self._keep
        )


class EndedHalves(NamedTuple):
    """What one request, or several that follow each other, did to a range of the half queue."""

    next_offset: int
    """Everything before it is dealt with; the next request begins there."""
    max_offset: int
    """The end of the half queue as the broker saw it."""
    ended: int
    """Halves that were open and are ended now."""
    ended_before: int
    """Halves that are meant and were ended before, one way or the other; copies that the check
    service made of them do not count."""
    half_batches: bool = False
    """The broker takes half messages in batches (SEND_BATCH_MESSAGE)."""

    @property
    def fields(self) -> dict[str, object]:
        """The members of the answer."""
        return {
            "nextOffset": self.next_offset,
            "maxOffset": self.max_offset,
            "ended": self.ended,
            "endedBefore": self.ended_before,
            "halfBatches": self.half_batches,
        }

    @classmethod
    def of(cls, answer: RemotingCommand) -> Self:
        """Read the members of an answer with code 0; RemoteProtocolError: one is missing or no
        number.
        """
        members = answer.ext_fields
        try:
            done = cls(
                int(members["nextOffset"]),
                int(members["maxOffset"]),
                int(members["ended"]),
                int(members["endedBefore"]),
                members.get("halfBatches") == "true",
            )
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"the answer to END_HALF_MESSAGES has no number: {error!r}"
            ) from None
        if min(done) < 0:
            raise RemoteProtocolError("the answer to END_HALF_MESSAGES has a negative number")
        return done


def end_half_messages_request(
    group: str, start: int, end: int, selection: HalfSelection, *, commit: bool
) -> RemotingCommand:
    """The request to end the selected halves from offset ``start`` to before ``end`` of the half
    queue; ``end`` may lie behind the queue's. An empty range asks whether a broker knows it.
    ValueError: the selection is none that a request may have.
    """
    fault = selection.fault(is_commit=commit)
    if fault:
        raise ValueError(fault)
    decision = MessageSysFlag.TRANSACTION_COMMIT if commit else MessageSysFlag.TRANSACTION_ROLLBACK
    header = EndHalfMessagesHeader(
        producer_group=group, from_offset=start, to_offset=end, commit_or_rollback=decision
    )
    command = RemotingCommand.request(RequestCode.END_HALF_MESSAGES, header.encode())
    command.body = encode_body(selection)
    return command


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX
