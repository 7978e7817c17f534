"""The stores of several brokers in one folder: what a start with one broker knows of them."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BROKERS_MAX = 16
"""Of one command."""

_log = logging.getLogger(__name__)
_FOLDER = re.compile(r"broker-([1-9][0-9]?)")


def folders_there(root: Path) -> int:
    """How many brokers have had stores at ``root``; 1: at most the first one."""
    try:
        found = [match for each in root.iterdir() if (match := _FOLDER.fullmatch(each.name))]
    except OSError:
        return 1
    return 1 + max((int(match[1]) for match in found), default=0)


def warn_of_left_out(root: Path, count: int) -> None:
    """Say so where an earlier start had more brokers: nobody serves their messages now."""
    if (there := folders_there(root)) > count:
        _log.warning(
            "%s has stores of %d brokers, of which %d are served; --brokers %d serves all",
            root,
            there,
            count,
            there,
        )
