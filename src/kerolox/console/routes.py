"""The table of routes: address, method, the role it needs, and who answers.

It is the one place that says who may do what; a test tries each line with each role. ``act`` lines
change something: they are POST, need ``actions`` and leave an audit line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from kerolox.console.pages import (
    acl,
    brokers,
    dead_letters,
    groups,
    login,
    messages,
    overview,
    topics,
    traces,
    waiting,
)
from kerolox.console.security.roles import Role
from kerolox.console.visit import Done, Visit

__all__ = ["ROUTES", "Route"]

BODY_BYTES_MAX = 64 * 1024
MESSAGE_BODY_BYTES_MAX = 4 * 1024 * 1024
"""Of a form that has a message's body in it."""

SECONDS_MAX, LONG_SECONDS_MAX = 15.0, 90.0
"""How long one request may take; and one that waits until a broker of RocketMQ is at rest, or until
a slave has its master's log."""


@dataclass(frozen=True, slots=True)
class Route:
    """One line."""

    path: str
    method: str
    role: Role
    answer: Callable[[Visit], Awaitable[Response | Done]]
    is_action: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    seconds_max: float = SECONDS_MAX


def look(path: str, answer: Callable[[Visit], Awaitable[Response]]) -> Route:
    """A page for everybody who is logged in."""
    return Route(path, "GET", Role.VIEWER, answer)


def act(
    path: str,
    role: Role,
    answer: Callable[[Visit], Awaitable[Done]],
    body_bytes_max: int = BODY_BYTES_MAX,
    seconds_max: float = SECONDS_MAX,
) -> Route:
    """An action."""
    return Route(path, "POST", role, answer, True, body_bytes_max, seconds_max)


ROUTES = (
    Route("/login", "GET", Role.NOBODY, login.form),
    Route("/login", "POST", Role.NOBODY, login.log_in),
    Route("/health", "GET", Role.NOBODY, login.health),
    Route("/logout", "POST", Role.VIEWER, login.log_out),
    look("/", overview.overview),
    look("/history.json", overview.history),
    look("/topics", topics.listed),
    look("/topic", topics.described),
    act("/topic/send", Role.OPERATOR, topics.send, MESSAGE_BODY_BYTES_MAX),
    act("/topic/create", Role.ADMIN, topics.create),
    act("/topic/update", Role.ADMIN, topics.update),
    act("/topic/delete", Role.ADMIN, topics.delete, seconds_max=LONG_SECONDS_MAX),
    look("/groups", groups.listed),
    look("/group", groups.described),
    look("/group/member", groups.member),
    look("/group/reset", groups.plan_reset),
    act("/group/reset", Role.OPERATOR, groups.reset),
    act("/group/update", Role.ADMIN, groups.update),
    act("/group/clone", Role.OPERATOR, groups.clone),
    act("/group/pause", Role.OPERATOR, groups.pause),
    act("/group/resume", Role.OPERATOR, groups.resume),
    act("/group/delete", Role.ADMIN, groups.delete, seconds_max=LONG_SECONDS_MAX),
    look("/messages", messages.browse),
    look("/messages/tail", messages.tail),
    look("/message", messages.described),
    act("/message/resend", Role.OPERATOR, messages.resend, MESSAGE_BODY_BYTES_MAX),
    look("/dead-letters", dead_letters.listed),
    look("/dead-letter", dead_letters.browse),
    look("/dead-letter/export", dead_letters.export),
    act("/dead-letter/resend", Role.OPERATOR, dead_letters.resend, MESSAGE_BODY_BYTES_MAX),
    act(
        "/dead-letter/resend-all",
        Role.OPERATOR,
        dead_letters.resend_all,
        seconds_max=LONG_SECONDS_MAX,
    ),
    act("/dead-letter/purge", Role.OPERATOR, dead_letters.purge),
    look("/delayed", waiting.delayed),
    look("/transactions", waiting.transactions),
    look("/trace", traces.show),
    look("/acl", acl.show),
    act("/acl/put", Role.ADMIN, acl.put),
    act("/acl/delete", Role.ADMIN, acl.delete),
    act("/acl/white-list", Role.ADMIN, acl.set_white_list),
    look("/brokers", brokers.listed),
    look("/broker", brokers.described),
    act("/broker/set", Role.ADMIN, brokers.change_setting),
    act("/broker/retire", Role.ADMIN, brokers.retire),
    act("/broker/return", Role.ADMIN, brokers.bring_back),
    look("/broker/promote", brokers.plan_promotion),
    act("/broker/promote", Role.ADMIN, brokers.promote, seconds_max=LONG_SECONDS_MAX),
)
