"""Keys that topics had lately: what a kernel keeps so that no message is stored twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

KEYS_MAX = 1_000_000
"""Keys of all topics together, unless the broker sets another limit (``dedupMaxKeys``)."""

NO_RECORD = -1
"""``find_key``: there is no such record."""


class KeyWindow(NamedTuple):
    """What there is of a topic."""

    topic: str
    keys: int
    oldest_ms: int
    """Store time of the first one; -1: there are none."""
    cut: int
    """Keys that were forgotten before their time, since there were too many."""
    bytes_taken: int
    """Memory; the Python kernel counts what its keys take as a rule."""


class DedupKernel(Protocol):
    """Which keys a topic had within its window, and where the first record of each is.

    The window counts by store time, which never goes back. Sends of the fast path are looked up and
    noted here: one whose key is there is slow, and the handler in Python answers it. What the slow
    path stores it notes itself. Half messages are neither looked up nor noted.
    """

    def set_dedup(self, topic: str, window_ms: int, by_keys: bool) -> None:
        """Give a topic of the table a window, or another length of it; with 0 ms it has none, as at
        first. ``by_keys``: the text of KEYS counts, not UNIQ_KEY. Another property begins anew. A
        deletion of the topic ends the window."""

    def set_dedup_limit(self, keys: int) -> None:
        """How many keys all topics have together. Beyond that the topic with the most forgets its
        oldest one, with each further key."""

    def find_key(self, topic: str, key: bytes) -> int:
        """Physical offset of the first record with a key in the window; ``NO_RECORD``: there is
        none, or it is not in the log any more. What is found was compared with the record: it is
        never that of another key."""

    def note_keys(self, topic: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Note keys with the physical offsets of their records, which are in the log, in its order.
        Those that are in the window already keep their first record for ``find_key``."""

    def forget_key(self, topic: str, key: bytes) -> None:
        """Take a key out of the window."""

    def dedup_windows(self) -> list[KeyWindow]:
        """The windows of all topics that have one."""
