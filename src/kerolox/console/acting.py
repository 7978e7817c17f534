"""Who acts, and what with: what an action of the console needs, whether a form asked for it or the
tool of an agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from kerolox.errors import ClientError

if TYPE_CHECKING:
    import datetime

    from kerolox.admin import Admin
    from kerolox.console.cluster import ClusterContext
    from kerolox.console.security.roles import Role

__all__ = ["ActionResult", "Actor", "checked"]

PARAMETER_CHARACTERS_MAX = 4_096
BODY_CHARACTERS_MAX = 1 << 22

Values = str | Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action did: told on the next page and in the audit line."""

    text: str
    """For the user."""
    location: str
    """Where the browser goes on: a path of the console."""
    target: Mapping[str, object] = field(default_factory=dict)
    """What was acted on, by RocketMQ's names."""
    old: Values = None
    new: Values = None


class Actor(ABC):
    """Somebody who acts in a cluster; what is asked for stands in a form."""

    console: ClusterContext
    form: Mapping[str, list[str]]
    target: dict[str, object]
    """What an action that failed was about, for the audit line."""

    @property
    @abstractmethod
    def role(self) -> Role:
        """What the user may do."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the user; empty: nobody is logged in."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the request came from."""

    @property
    @abstractmethod
    def zone(self) -> datetime.tzinfo | None:
        """In which times are written that name none; None: the one of this process."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Tell the user something beside the result."""

    def path(self, path: str, **parameters: object) -> str:
        """Where a browser goes on; empty: there is none."""
        return ""

    @abstractmethod
    def go_on_with(self, group: str, mark: str, total: int) -> None:
        """Tell that some of a group's dead letters are still to be sent again: the page that has
        the mark goes on with that."""

    @property
    def admin(self) -> Admin:
        """The way to the cluster."""
        return self.console.admin

    def may(self, role: Role) -> bool:
        """Whether an action of that role would be done."""
        return self.console.actions and self.role >= role

    def given(self, name: str, default: str = "", characters_max: int = 0) -> str:
        """A field of the form. Raises ClientError where it is too long."""
        values = self.form.get(name)
        text = values[0] if values else default
        if characters_max:
            return text if len(text) <= characters_max else _too_long(name)
        return checked(name, text)

    def body(self, name: str = "body") -> bytes:
        """A field of several lines, such as a message's body, as it was typed: browsers send each
        end of a line as CR LF, which becomes the LF that was typed. Raises ClientError where it is
        too long."""
        typed = self.given(name, characters_max=BODY_CHARACTERS_MAX)
        return typed.replace("\r\n", "\n").encode("utf-8", "surrogatepass")

    def required(self, name: str) -> str:
        """A field of the form that must be filled in. Raises ClientError where it is not."""
        value = self.given(name)
        if not value:
            raise ClientError(f"fill in {name!r}")
        self.target[name] = value
        return value

    def given_number(self, name: str, least: int, most: int) -> int:
        """A field with a whole number. Raises ClientError where it is none, or out of range."""
        text = self.required(name)
        if not (text.lstrip("-").isdigit() and text.isascii() and len(text) < 20):
            raise ClientError(f"{name!r} is no whole number")
        if not least <= int(text) <= most:
            raise ClientError(f"{name!r} is {text}; from {least} to {most} fits")
        return int(text)


def checked(name: str, value: str) -> str:
    """A value without blanks around it; ClientError: it is too long."""
    if len(value) > PARAMETER_CHARACTERS_MAX:
        _too_long(name)
    return value.strip()


def _too_long(name: str) -> NoReturn:
    raise ClientError(f"{name!r} is too long")
