"""Answers of servers, read with checks: a server may be of any version, broken or hostile.

:func:`read_object` reads a body in either form of JSON, up to a length, off the event loop where
that takes long. Each check of a :class:`Members` checks what it finds, and an error names the
place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kerolox.client.threads import to_thread
from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError, decode_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

LENIENT_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Longest body that is read where it is no ordinary JSON: some 60,000 queues with their offsets.
That takes half a second a MiB."""

IN_LOOP_BYTES_MAX = 64 * 1024
"""A longer body is read in a thread, so that the event loop goes on."""

LONG_MAX = (1 << 63) - 1

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Members:
    """The members of one JSON object. What is absent or null has the default.

    All methods raise RemoteProtocolError where a member has another type than asked for.
    """

    __slots__ = ("_values", "_where")

    def __init__(self, value: object, where: str) -> None:
        """``where`` names the object in errors."""
        if not isinstance(value, Mapping):
            raise RemoteProtocolError(f"{where} is no JSON object but {_kind(value)}")
        self._values: Mapping[object, object] = value
        self._where = where

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._fault(name, "a text", value)
        return value

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of 64 bits (Java's ``long``)."""
        value = self._values.get(name)
        return default if value is None else self._whole(name, value)

    def required_number(self, name: str) -> int:
        """A whole number of 64 bits that must be there."""
        return self._whole(name, self._values.get(name))

    def real(self, name: str, default: float = 0.0) -> float:
        """A number."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fault(name, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._fault(name, "a finite number", value)
        return number

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._fault(name, "true or false", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a list."""
        found = self._list(name)
        for each in found:
            if not isinstance(each, str):
                raise self._fault(name, "a list of texts", each)
        return tuple(map(str, found))

    def members(self, name: str) -> Members:
        """An object; an absent one has no members."""
        return Members(self._object(name), f"{name} of {self._where}")

    def objects(self, name: str) -> list[Members]:
        """The objects of a list."""
        return [Members(each, f"{name} of {self._where}") for each in self._list(name)]

    def table(self, name: str) -> dict[str, Members]:
        """Objects by name."""
        where = f"{name} of {self._where}"
        return {str(key): Members(each, where) for key, each in self._object(name).items()}

    def lists(self, name: str) -> dict[str, list[Members]]:
        """Lists of objects by name."""
        table = self.members(name)
        return {key: table.objects(key) for key in self.names(name)}

    def names(self, name: str) -> list[str]:
        """The names in an object."""
        return [key for key in self._object(name) if isinstance(key, str)]

    def own_names(self) -> list[str]:
        """The names of the members."""
        return [key for key in self._values if isinstance(key, str)]

    def text_table(self, name: str) -> dict[str, str]:
        """Texts by name; numbers and truth values as Java writes them."""
        return {
            str(key): _as_text(value)
            for key, value in self._object(name).items()
            if isinstance(value, str | int | float)
        }

    def queues(self, name: str) -> dict[MessageQueue, Members]:
        """Objects by queue."""
        where = f"{name} of {self._where}"
        found = self._by_queue(name)
        return {queue: Members(value, where) for queue, value in found.items()}

    def queue_numbers(self, name: str) -> dict[MessageQueue, int]:
        """Whole numbers by queue, sorted by queue."""
        return {
            queue: self._whole(name, value) for queue, value in sorted(self._by_queue(name).items())
        }

    def queue(self) -> MessageQueue:
        """The queue that the members describe."""
        return MessageQueue(
            self.text("topic"), self.text("brokerName"), self.required_number("queueId")
        )

    def struct(self, body_type: type[_Body]) -> _Body:
        """The members as a struct of the wire."""
        try:
            return msgspec.convert(self._values, body_type, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"{self._where} has an unknown shape: {error}") from None

    def _by_queue(self, name: str) -> dict[MessageQueue, object]:
        found = {}
        for key, value in self._object(name).items():
            if not (
                isinstance(key, MessageQueue)
                and isinstance(key.topic, str)
                and isinstance(key.broker_name, str)
                and type(key.queue_id) is int
            ):
                raise self._fault(name, "a table by queues", key)
            found[key] = value
        return found

    def _object(self, name: str) -> Mapping[object, object]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._fault(name, "an object", value)
        return value

    def _list(self, name: str) -> list[object]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._fault(name, "a list", value)
        return value

    def _whole(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LONG_MAX:
            raise self._fault(name, "a whole number of 64 bits", value)
        return value

    def _fault(self, name: str, wanted: str, value: object) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self._where}: {name!r} should be {wanted}, and is {_kind(value)}"
        )


async def read_object(response: RemotingCommand, what: str, address: str) -> Members:
    """The JSON object in the body of an answer; ``what`` names it in an error, as "the topic list"
    does. RemoteProtocolError: it is no JSON object, or too long for the form that it has.
    """
    body = response.body
    where = f"{what} of {address}"
    try:
        value = await (to_thread(_loads, body) if len(body) > IN_LOOP_BYTES_MAX else _now(body))
    except fastjson.FastjsonError as error:
        raise RemoteProtocolError(f"{where} is no JSON: {error}") from None
    return Members(value, where)


async def read_struct(
    response: RemotingCommand, body_type: type[_Body], what: str, address: str
) -> _Body:
    """The body of an answer as a struct of the wire. Errors: see :func:`read_object`."""
    body = response.body

    def decode() -> _Body:
        return decode_body(body, body_type, lenient_bytes_max=LENIENT_ANSWER_BYTES_MAX)

    try:
        return await to_thread(decode) if len(body) > IN_LOOP_BYTES_MAX else decode()
    except BodyError as error:
        raise RemoteProtocolError(f"{what} of {address} has an unknown shape: {error}") from None


def read_properties(response: RemotingCommand, what: str, address: str) -> dict[str, str]:
    """The ``key=value`` lines in the body of an answer, sorted by key; RemoteProtocolError: they
    are no UTF-8, or no such lines.
    """
    from kerolox.properties import parse_properties  # few questions have such an answer

    where = f"{what} of {address}"
    try:
        return dict(sorted(parse_properties(str(response.body, "utf-8"), where=where).items()))
    except (UnicodeDecodeError, ConfigError) as error:
        raise RemoteProtocolError(f"{where} can't be read: {error}") from None


def _loads(body: bytes) -> object:
    return fastjson.loads(body, lenient_bytes_max=LENIENT_ANSWER_BYTES_MAX)


async def _now(body: bytes) -> object:
    return _loads(body)


def _as_text(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _kind(value: object) -> str:
    """What a value is, for an error: never all of its text."""
    if value is None:
        return "missing"
    shown = repr(value) if isinstance(value, bool | int | float | str) else ""
    kind = type(value).__name__
    return f"{kind} {shown[:60]}" if shown else kind
