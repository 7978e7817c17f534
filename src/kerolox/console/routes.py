"""The table of routes: address, method, the role it needs, and who answers.

It is the one place that says who may do what; a test tries each line with each role. ``act`` lines
change something: they are POST, need ``actions`` and leave an audit line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from kerolox.console.acting import ActionResult, Actor
from kerolox.console.pages import (
    acl,
    audit,
    brokers,
    dead_letters,
    delayed,
    groups,
    health,
    login,
    messages,
    overview,
    popped,
    resets,
    search,
    topics,
    traces,
    waiting,
    zone,
)
from kerolox.console.security.oidc_settings import CALLBACK
from kerolox.console.security.roles import Role
from kerolox.console.visit import Visit

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
    answer: Callable[[Visit], Awaitable[Response | ActionResult]]
    action: Callable[[Actor], Awaitable[ActionResult]] | None = None
    """The same of what changes something, for a tool that asks for it, too; None: it changes
    nothing of the cluster."""
    body_bytes_max: int = BODY_BYTES_MAX
    seconds_max: float = SECONDS_MAX

    @property
    def is_action(self) -> bool:
        """Whether it changes something of the cluster."""
        return self.action is not None


def view(
    path: str, answer: Callable[[Visit], Awaitable[Response]], role: Role = Role.VIEWER
) -> Route:
    """A page, for everybody who is logged in unless it says another role."""
    return Route(path, "GET", role, answer)


def act(
    path: str,
    role: Role,
    answer: Callable[[Actor], Awaitable[ActionResult]],
    body_bytes_max: int = BODY_BYTES_MAX,
    seconds_max: float = SECONDS_MAX,
) -> Route:
    """An action."""
    return Route(path, "POST", role, answer, answer, body_bytes_max, seconds_max)


ROUTES = (
    Route("/login", "GET", Role.NOBODY, login.form),
    Route("/login", "POST", Role.NOBODY, login.log_in),
    Route("/health", "GET", Role.NOBODY, login.health),
    Route("/login/oidc", "GET", Role.NOBODY, login.ask_provider, seconds_max=LONG_SECONDS_MAX),
    Route(CALLBACK, "GET", Role.NOBODY, login.answer_of_provider, seconds_max=LONG_SECONDS_MAX),
    Route("/logout", "POST", Role.VIEWER, login.log_out),
    view("/zone", zone.form),
    Route("/zone", "POST", Role.VIEWER, zone.choose),
    view("/", overview.overview),
    view("/history.json", overview.history),
    view("/doctor", health.findings),
    view("/search", search.names),
    view("/search/inside", search.inside),
    view("/topics", topics.listed),
    view("/topic", topics.described),
    act("/topic/send", Role.OPERATOR, topics.send, MESSAGE_BODY_BYTES_MAX),
    act("/topic/create", Role.ADMIN, topics.create),
    act("/topic/update", Role.ADMIN, topics.update),
    act("/topic/delete", Role.ADMIN, topics.delete, seconds_max=LONG_SECONDS_MAX),
    view("/groups", groups.listed),
    view("/group", groups.described),
    view("/group/member", groups.member),
    view("/group/reset", resets.plan),
    act("/group/reset", Role.OPERATOR, resets.reset, seconds_max=LONG_SECONDS_MAX),
    view("/group/release", popped.plan),
    act("/group/release", Role.OPERATOR, popped.release),
    act("/group/update", Role.ADMIN, groups.update),
    act("/group/clone", Role.OPERATOR, groups.clone),
    act("/group/pause", Role.OPERATOR, groups.pause),
    act("/group/resume", Role.OPERATOR, groups.resume),
    act("/group/delete", Role.ADMIN, groups.delete, seconds_max=LONG_SECONDS_MAX),
    view("/messages", messages.browse),
    view("/messages/tail", messages.tail),
    view("/message", messages.described),
    view("/message/body", messages.download),
    act("/message/resend", Role.OPERATOR, messages.resend, MESSAGE_BODY_BYTES_MAX),
    view("/dead-letters", dead_letters.listed),
    view("/dead-letter", dead_letters.browse),
    view("/dead-letter/export", dead_letters.export),
    act(
        "/dead-letter/resend",
        Role.OPERATOR,
        dead_letters.resend,
        MESSAGE_BODY_BYTES_MAX,
        LONG_SECONDS_MAX,
    ),
    act(
        "/dead-letter/resend-all",
        Role.OPERATOR,
        dead_letters.resend_all,
        seconds_max=LONG_SECONDS_MAX,
    ),
    act("/dead-letter/purge", Role.OPERATOR, dead_letters.purge),
    view("/delayed", delayed.delayed),
    act("/delayed/recall", Role.OPERATOR, delayed.recall),
    view("/transactions", waiting.transactions),
    view("/transaction", waiting.transaction),
    act("/transaction/commit", Role.ADMIN, waiting.commit),
    act("/transaction/rollback", Role.ADMIN, waiting.roll_back),
    view("/trace", traces.show),
    view("/acl", acl.show),
    act("/acl/put", Role.ADMIN, acl.put),
    act("/acl/delete", Role.ADMIN, acl.delete),
    act("/acl/white-list", Role.ADMIN, acl.set_white_list),
    view("/audit", audit.show, Role.ADMIN),
    view("/brokers", brokers.listed),
    view("/broker", brokers.described),
    act("/broker/set", Role.ADMIN, brokers.change_setting),
    act("/broker/retire", Role.ADMIN, brokers.retire),
    act("/broker/return", Role.ADMIN, brokers.bring_back),
    view("/broker/promote", brokers.plan_promotion),
    act("/broker/promote", Role.ADMIN, brokers.promote, seconds_max=LONG_SECONDS_MAX),
)
