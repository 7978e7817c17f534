"""The accounts that are in force, as values: read from files elsewhere, never changed, replaced as
a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

from kerolox.protocol.names import RETRY_PREFIX


class Permission(IntFlag):
    """Bits; the numbers are RocketMQ's."""

    DENY = 1
    """Nothing, whatever else is set."""
    ANY = 2
    """As a need: either of the two that follow is enough."""
    PUB = 4
    """Send to a topic."""
    SUB = 8
    """Read a topic, or be a member of a group."""


_DENY, _ANY = int(Permission.DENY), int(Permission.ANY)
_PUB_OR_SUB = int(Permission.PUB | Permission.SUB)


def parse_permission(text: str | None) -> Permission:
    """The permission of a text: PUB, SUB, both joined by ``|``, or DENY; any other is DENY."""
    return _PERMISSIONS.get((text or "").strip(), Permission.DENY)


def is_permission(text: str) -> bool:
    """Whether RocketMQ's tools would take the text, DENY included."""
    return text.strip() in _PERMISSIONS


def allows(owned: Permission, needed: Permission) -> bool:
    """Whether who owns the one may do what needs the other."""
    # As plain numbers: each & of an enum's members looks up another member.
    has, wants = int(owned), int(needed)
    if has & _DENY:
        return False
    return bool(has & (_PUB_OR_SUB if wants & _ANY else wants))


def group_resource(group: str) -> str:
    """What a group is called among the resources of an account: its retry topic. One whose name
    begins like that gets the prefix once more (``MixAll.getRetryTopic``): it is another group."""
    return RETRY_PREFIX + group


def is_group(resource: str) -> bool:
    """Whether a resource is a group, so that the default of groups holds for it."""
    return resource.startswith(RETRY_PREFIX)


_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


class Addresses(Protocol):
    """Addresses that a list names (``RemoteAddressStrategy``)."""

    def __contains__(self, host: str, /) -> bool:
        """Whether the address (without a port) is one of them."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account (``PlainAccessResource``). ``repr`` does not show its secret."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    white: Addresses = frozenset()
    """Requests from these need no signature and no permission (``whiteRemoteAddress``)."""
    default_topic: Permission = Permission.DENY
    """For topics without a permission of their own (``defaultTopicPerm``)."""
    default_group: Permission = Permission.DENY
    """For groups without a permission of their own (``defaultGroupPerm``)."""
    resources: Mapping[str, Permission] = field(default_factory=dict)
    """Topics, and groups under the names of their retry topics (``topicPerms``, ``groupPerms``).
    An administrator without any may do everything."""

    @property
    def may_everything(self) -> bool:
        """No resource is examined."""
        return self.is_admin and not self.resources


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts and the global white list."""

    by_key: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[Addresses, ...] = ()
    """Requests from these are not checked at all (``globalWhiteRemoteAddresses``)."""
