"""Doing an action: whether somebody may, and the line that it leaves in the audit log."""

from __future__ import annotations

from kerolox.console.acting import ActionResult, Actor
from kerolox.console.refusals import Refused
from kerolox.console.security.roles import Role

__all__ = ["audit_failure", "audit_result", "check_may"]


def check_may(actor: Actor, role: Role, *, is_action: bool) -> None:
    """Whether somebody may do what needs that role. Raises Refused where not."""
    if actor.role < role:
        raise Refused(403, f"This needs the role {role.label}; you are {actor.role.label}.")
    if is_action and not actor.console.actions:
        raise Refused(403, "This is read-only; it was started without --actions.")


def audit_result(actor: Actor, path: str, result: ActionResult) -> None:
    """The line of an action that is done; what was known of the cluster is forgotten."""
    what = {**actor.console.audit_members, **result.target, "old": result.old, "new": result.new}
    actor.console.audit.changed(actor.name, actor.address, path, what)
    actor.console.expire()


def audit_failure(actor: Actor, path: str, error: Exception, *, is_action: bool) -> None:
    """The line of what was refused, or of an action that failed."""
    audit = actor.console.audit
    if isinstance(error, Refused):
        if error.status == 403:
            denied = {**actor.console.audit_members, "reason": error.text}
            audit.denied(actor.name, actor.address, path, denied)
    elif is_action:
        is_late = isinstance(error, TimeoutError)
        reason = "no answer in time; it may be done" if is_late else str(error)
        what = {**actor.console.audit_members, **actor.target, "reason": reason}
        audit.failed(actor.name, actor.address, path, what)
        actor.console.expire()
