"""Permissions of topics and brokers, as options and as people read them."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from kerolox.protocol.codes import Perm

_WORDS = {
    "R": Perm.READ,
    "W": Perm.WRITE,
    "RW": Perm.READ | Perm.WRITE,
}


class PermissionType(click.ParamType[int]):
    """``R``, ``W``, ``RW``, or RocketMQ's numbers 4, 2 and 6."""

    name = "permission"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number."""
        by_text = {
            **{word: int(perm) for word, perm in _WORDS.items()},
            **{str(int(perm)): int(perm) for perm in _WORDS.values()},
        }
        found = by_text.get(str(value).upper())
        if found is None:
            self.fail("write R, W or RW, or 4, 2 or 6", param, ctx)
        return found

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """The words."""
        return [CompletionItem(each) for each in _WORDS if each.startswith(incomplete.upper())]


def permission_text(value: object) -> str:
    """A number as ``RW``, ``R``, ``W`` or ``none``; nothing for what is none."""
    if not isinstance(value, int):
        return ""
    parts = [word for word in ("R", "W") if value & _WORDS[word]]
    return "".join(parts) or "none"
