"""What a tool is: a name, what agents are told, its arguments, who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from kerolox.console.acting import PARAMETER_CHARACTERS_MAX, Actor
from kerolox.console.security.roles import Role

if TYPE_CHECKING:
    import datetime

    from kerolox.console.cluster import ClusterContext
    from kerolox.doctor import ProbeOptions

__all__ = ["Agent", "Answer", "Arguments", "Tool", "about"]

READ_SECONDS_MAX = 15.0
BODY_CHARACTERS_MAX = 1 << 20


def about(description: str) -> msgspec.Meta:
    """Of a text: its bound, and what agents are told of it."""
    return msgspec.Meta(max_length=PARAMETER_CHARACTERS_MAX, description=description)


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of a tool; others are refused."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Data for the envelope."""

    data: object
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class Agent(Actor):
    """One call of a tool."""

    console: ClusterContext
    probe: ProbeOptions
    """How the doctor examines the cluster."""
    rank: Role
    user: str
    form: dict[str, list[str]] = field(default_factory=dict)
    target: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def role(self) -> Role:
        """What ``--role`` allows."""
        return self.rank

    @property
    def name(self) -> str:
        """Of the user whose process it is."""
        return self.user

    @property
    def address(self) -> str:
        """Requests come over stdio alone."""
        return "stdio"

    @property
    def zone(self) -> datetime.tzinfo | None:
        """The one of this process."""
        return None

    def note(self, text: str) -> None:
        """Kept for the answer."""
        self.notes.append(text)

    def go_on_with(self, group: str, mark: str, total: int) -> None:
        """The result says how many are left; the tool is called again."""

    def body(self, name: str = "body") -> bytes:
        """As it was given: an agent's text came through no form of a browser."""
        return self.given(name, characters_max=BODY_CHARACTERS_MAX).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Tool:
    """One line of the list."""

    name: str
    description: str
    arguments: type[Arguments]
    answer: Callable[[Agent, Any], Awaitable[Answer]]
    role: Role = Role.VIEWER
    path: str = ""
    """Of the console's action that it does; empty: it changes nothing."""
    seconds_max: float = READ_SECONDS_MAX

    @property
    def is_action(self) -> bool:
        """Whether it changes something."""
        return bool(self.path)

    @property
    def input_schema(self) -> dict[str, Any]:
        """Its arguments as JSON Schema."""
        _, parts = msgspec.json.schema_components([self.arguments])
        schema: dict[str, Any] = parts[self.arguments.__name__]
        return schema
