"""Roles of the console's users. A role may all that those below it may."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ROLE_NAMES", "Role"]


class Role(IntEnum):
    """What somebody may do."""

    NOBODY = 0
    """Not logged in."""
    VIEWER = 1
    """Sees everything but secrets."""
    OPERATOR = 2
    """Sends and resends messages, moves and pauses groups."""
    ADMIN = 3
    """Makes and deletes topics and groups, changes settings."""

    @property
    def label(self) -> str:
        """Its name in files and on pages."""
        return self.name.lower()


ROLE_NAMES = tuple(role.label for role in Role if role is not Role.NOBODY)
"""Those that a user can have."""
