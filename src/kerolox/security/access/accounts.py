"""The accounts that are in force, as values: read from files elsewhere, never changed, replaced as
a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kerolox.security.access.permissions import Permission


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
