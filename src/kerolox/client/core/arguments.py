"""What users write into arguments and settings, read generously and refused with a hint."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.core.checking import check_type
from kerolox.errors import ConfigError
from kerolox.message import MessageExt
from kerolox.text import wrong_type

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "checked_keywords",
    "choice",
    "name_server_text",
    "received_messages",
    "settings_text",
]

NAME_SERVERS_MAX = 1_000
"""Most addresses that a list of name servers may have."""

CHECKED_OTHERWISE = re.compile(r"int|Tls|Credentials \| None|.*\| str\b.*|str \| .*")
"""Types of fields of settings whose check says more: the bounds, or the choices."""

_Choice = TypeVar("_Choice", bound=Enum)
_Settings = TypeVar("_Settings")


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """The member of an enum that is given, or whose name is, in any case. ConfigError: it is
    neither; says how the argument is called, the choices and the nearest of them.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        member = kind.__members__.get(value.strip().upper())
        if member is not None:
            return member
    hint = _meant(value, kind.__members__) if isinstance(value, str) else ""
    raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(kind.__members__)}{hint}")


def checked_keywords(settings: type[_Settings]) -> type[_Settings]:
    """A class decorator above ``dataclass(kw_only=True)``: a keyword that no field has is a
    :class:`TypeError` that names the nearest field, on each version of Python; a value of a type
    that its field does not have is a :class:`ConfigError`."""
    made: Callable[..., None] = settings.__init__
    fields = dataclasses.fields(settings)  # type: ignore[arg-type]
    names = frozenset(each.name for each in fields if each.init)

    @functools.cache
    def types() -> dict[str, tuple[str, str]]:
        """Field → its type, and the module of the class that declares it, whose names that has."""
        modules = {
            name: each.__module__
            for each in reversed(settings.__mro__)
            for name in vars(each).get("__annotations__", ())
        }
        return {
            each.name: (str(each.type), modules[each.name])
            for each in fields
            if not CHECKED_OTHERWISE.fullmatch(str(each.type))
        }

    @functools.wraps(made)
    def init(self: _Settings, **given: object) -> None:
        for name in given.keys() - names:
            raise TypeError(f"{settings.__name__} has no setting {name!r}{_meant(name, names)}")
        for name, value in given.items():
            if name in types():
                check_type(value, name, *types()[name])
        made(self, **given)

    settings.__init__ = init  # type: ignore[assignment]
    return settings


def _meant(name: str, known: Iterable[str]) -> str:
    from kerolox.config import nearest  # takes long to import, and few mistype a name

    found = nearest(name, known)
    return f". Did you mean {found!r}?" if found else ""


def settings_text(settings: DataclassInstance) -> str:
    """The ``repr`` of settings: those that are not the defaults, and no secrets (fields that are
    declared with ``repr=False``)."""
    shown = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.repr and value != default:
            text = value.name if isinstance(value, Enum) else value
            shown.append(f"{field.name}={text!r}")
    return f"{type(settings).__name__}({', '.join(shown)})"


def name_server_text(given: str | Iterable[str]) -> str:
    """Name servers, such a text or an address ``host:port`` each, as one text, joined by ``;``;
    ConfigError: something else.
    """
    if isinstance(given, str):
        return given
    addresses = list[object](given) if isinstance(given, Iterable) else [given]
    if len(addresses) > NAME_SERVERS_MAX:
        raise ConfigError(f"{len(addresses)} name servers; at most {NAME_SERVERS_MAX} may be given")
    texts = [address for address in addresses if isinstance(address, str)]
    if len(texts) < len(addresses):
        [wrong, *_] = [address for address in addresses if not isinstance(address, str)]
        raise ConfigError(
            f"name server {wrong!r} is no text; write 'host:port', or a list of these"
        )
    return ";".join(texts)


def received_messages(messages: MessageExt | Iterable[MessageExt]) -> list[MessageExt]:
    """A received message, or several, as a list. ConfigError: it is something else."""
    if isinstance(messages, MessageExt):
        return [messages]
    try:
        some = list(messages)
    except TypeError:
        raise ConfigError(f"messages {wrong_type(messages, 'MessageExt')}; or a list") from None
    for each in some:
        if not isinstance(each, MessageExt):
            raise ConfigError(f"messages has one that {wrong_type(each, 'MessageExt')}")
    return some
