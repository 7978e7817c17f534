"""Typed values as bodies: a serializer of a type writes its values and reads them.

A body is bytes, and a client touches none. A program that wants values makes a serializer for their
type: msgspec reads and writes what it knows, pydantic its own models.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar, cast

import msgspec

from kerolox.client.core.checking import not_callable
from kerolox.client.core.consuming.outcome import OneResult, Outcome
from kerolox.errors import ConfigError, SerializationError
from kerolox.message import MessageExt
from kerolox.text import printable, wrong_type

__all__ = ["Serializer", "serializer_of"]

JSON, MSGPACK = FORMATS = ("json", "msgpack")

FAULT_CHARACTERS_MAX = 500
"""So much is kept of what a library says of a body."""

_Value = TypeVar("_Value")


class Serializer(Generic[_Value]):
    """Writes values of one type as bodies, and reads them. :func:`serializer_of` makes it by the
    type; another format needs a function each way."""

    def __init__(
        self,
        dump: Callable[[_Value], bytes],
        load: Callable[[bytes], _Value],
        *,
        name: str = "value",
    ) -> None:
        """
        Args:
            dump: a value as bytes.
            load: the value of bytes; raises if they are none.
            name: what a value is called in errors.

        Raises:
            ConfigError: one is no function of one argument.
        """
        for what, function in (("dump", dump), ("load", load)):
            if fault := not_callable(function):
                raise ConfigError(f"{what} {fault}")
        self._dump, self._load = dump, load
        self.name: str = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}>"

    def dump(self, value: _Value) -> bytes:
        """The body of a value.

        Raises:
            SerializationError: it is no such value.
        """
        try:
            body: object = self._dump(value)
        except Exception as error:
            raise SerializationError(
                f"no {self.name} that can be written: {_fault(error)}"
            ) from error
        if not isinstance(body, bytes):
            raise SerializationError(f"{self.name}: its body {wrong_type(body, 'bytes')}")
        return body

    def load(self, body: bytes) -> _Value:
        """The value of a body.

        Raises:
            SerializationError: it holds none; the text says where it is wrong.
        """
        try:
            return self._load(body)
        except Exception as error:
            raise SerializationError(f"the body holds no {self.name}: {_fault(error)}") from error

    def value(self, message: MessageExt) -> _Value:
        """The value of a message that was read.

        Raises:
            SerializationError: its body holds none; the text names the message.
        """
        if message.body_error:
            raise SerializationError(f"{_named(message)}: {message.body_error}")
        try:
            return self.load(message.body)
        except SerializationError as error:
            raise SerializationError(f"{_named(message)}: {error}") from error.__cause__

    def listener(
        self, listener: Callable[[_Value, MessageExt], Awaitable[OneResult] | OneResult]
    ) -> Callable[[MessageExt], Awaitable[OneResult] | OneResult]:
        """A listener for ``subscribe_each``, of one that takes a value and its message.

        A message whose body holds no value is a dead letter at once, with that as its reason: to
        read it again would not help.

        Args:
            listener: an async function, or a plain one, as ``subscribe_each`` takes it.

        Raises:
            ConfigError: it is no function of two arguments.
        """
        if fault := not_callable(listener, 2):
            raise ConfigError(f"listener {fault}")

        def on_message(message: MessageExt) -> Awaitable[OneResult] | OneResult:
            try:
                value = self.load(message.body)
            except SerializationError as error:
                return Outcome.dead_letter(str(error))
            return listener(value, message)

        on_message.__qualname__ = getattr(listener, "__qualname__", repr(listener))
        return on_message


def serializer_of(kind: type[_Value], *, format: str = JSON) -> Serializer[_Value]:
    """The serializer of a type.

    ``bytes`` are the body themselves, ``str`` is its UTF-8. Models and dataclasses of pydantic, and
    what holds them, are written and read by pydantic (``kerolox[pydantic]``). All else is by
    msgspec: its structs, dataclasses, ``TypedDict``, ``dict``, ``list``, numbers, dates, enums.

    Args:
        kind: the type of the values, such as a class or ``list[Order]``.
        format: ``json``, or ``msgpack`` for what msgspec writes.

    Raises:
        ConfigError: neither library can read the type, or pydantic is to write MessagePack.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    if kind is bytes or kind is str:
        return cast("Serializer[_Value]", _BY_TYPE[kind])
    name = str(kind) if typing.get_args(kind) else getattr(kind, "__name__", str(kind))
    if any(hasattr(each, "__pydantic_core_schema__") for each in _parts(kind)):
        if format != JSON:
            raise ConfigError(
                f"{name} is a type of pydantic, which writes JSON; leave {format} out"
            )
        return _of_pydantic(kind, name)
    try:
        load: Callable[[bytes], _Value] = (
            msgspec.msgpack.Decoder(kind) if format == MSGPACK else msgspec.json.Decoder(kind)
        ).decode
    except (TypeError, NameError) as error:
        raise ConfigError(f"there is no serializer for {name}: {_fault(error)}") from error
    encode = msgspec.msgpack.encode if format == MSGPACK else msgspec.json.encode
    own = _class_of(kind)

    def dump(value: _Value) -> bytes:
        # msgspec writes whatever it gets.
        if not isinstance(value, own):
            raise TypeError(wrong_type(value, name))
        return encode(value)

    return Serializer(dump, load, name=name)


def _of_pydantic(kind: type[_Value], name: str) -> Serializer[_Value]:
    # Who has such a type has pydantic.
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[_Value] = TypeAdapter(kind)

    def said(error: ValidationError) -> ValueError:
        """Without what the body holds, and without the address of a page."""
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        places = (".".join(map(str, each["loc"])) for each in faults)
        texts = (f"{at}: {each['msg']}" for at, each in zip(places, faults, strict=True))
        return ValueError("; ".join(text.removeprefix(": ") for text in texts))

    def dump(value: _Value) -> bytes:
        try:
            # In strict mode a value is checked and left as it is.
            value = adapter.validate_python(value, strict=True)
        except ValidationError as error:
            raise said(error) from error
        return adapter.dump_json(value, by_alias=True)

    def load(body: bytes) -> _Value:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            raise said(error) from error

    return Serializer(dump, load, name=name)


def _class_of(kind: object) -> type | tuple[type, ...]:
    """Of what classes values of a type are; ``object`` where only msgspec could say."""
    origin = typing.get_origin(kind) or kind
    if not isinstance(origin, type) or origin is typing.Any:
        return object
    if typing.is_typeddict(origin):
        return dict
    return (int, float) if origin is float else origin


def _parts(kind: object) -> Iterator[object]:
    """A type and those that it is made of: ``Order`` of ``list[Order]``."""
    yield kind
    for each in typing.get_args(kind):
        yield from _parts(each)


def _named(message: MessageExt) -> str:
    return f"message {message.message_id} of topic {message.topic}"


def _fault(error: Exception) -> str:
    """What a library says, on one line: it quotes the body, which may be long."""
    said = " ".join(str(error).split()) or type(error).__name__
    return printable(said, characters_max=FAULT_CHARACTERS_MAX)


_BY_TYPE: dict[type, Serializer[bytes] | Serializer[str]] = {
    bytes: Serializer(lambda value: value, lambda body: body, name="bytes"),
    str: Serializer(str.encode, bytes.decode, name="str"),
}
