"""What is cut off a log, as files of a store have it; whether a cut was begun.

:mod:`kerolox.store.recovery.log_cut` does it. Few starts of a broker need that.
"""

from __future__ import annotations

import os

import msgspec

from kerolox.kernel.settings import StoreSettings
from kerolox.store.log.folders import root_of

INTENT = "log-cut"
"""In the store's folder: the cut that was begun."""
EVERYTHING = -1
"""The end of a log of which nothing stays."""


class LogCut(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is cut off a log, as ``cut.json`` has it."""

    begin: int
    """Physical offset of its first record, where the log ends now."""
    end: int
    """Behind its last record."""
    why: str
    master: str
    """The address of the master that has it not, or otherwise."""
    time: str
    """When, UTC."""
    folder: str
    """Where it is kept."""
    kept: int = msgspec.field(name="logEnd")
    """The end of the log; ``EVERYTHING``: there is none."""
    store_time: int = msgspec.field(name="storeTimestamp")
    """Of the last record that stays; 0: there is none."""


def is_cut_begun(settings: StoreSettings) -> bool:
    """Whether a cut of the store's log is to be finished."""
    return os.path.exists(os.path.join(root_of(settings), INTENT))
