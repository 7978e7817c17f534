"""The tables of the fast path, pushed by the broker on change, and what comes back from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.kernel.values import AccountRules

COMMITS_MAX = 65_536
"""Offsets that fast pulls committed and ``drain_commits`` did not take yet; a pull that commits one
more is slow."""


class FastPathTables(Protocol):
    """What the fast path may do for which topics and groups."""

    def set_identity(
        self, *, cluster: str, region: str, trace_on: bool, store_host: bytes, broker_id: int
    ) -> None:
        """What goes into records (CLUSTER property, store host) and answers (MSG_REGION,
        TRACE_ON, suggestWhichBrokerId)."""

    def set_topic(
        self, topic: str, read_queues: int, write_queues: int, perm: int, fast: bool
    ) -> None:
        """Put a topic into the table. ``fast=False``: its sends and pulls take the slow path.

        Without read permission (4 of ``perm``) its held pulls are answered with the next tick.
        """

    def set_fast_calls(self, topic: str, *, normal: bool, fifo: bool) -> None:
        """Say whether a SendMessage of gRPC with one message may be fast, too: a plain one, one of
        a group of messages. Not so at first, nor where the topic has no place in the table."""

    def delete_topic(self, topic: str) -> None:
        """Take a topic out of the table, and what groups got of it out of ``group_stats`` and
        ``lag``; its files stay. The next tick answers its held pulls as if nothing had come. They
        come again and learn that it is gone."""

    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None:
        """Put a consumer group into the table. ``fast=False``: its pulls are slow, and those that
        are held are answered with the next tick, so that they come again and are checked anew.

        ``slow_broker_id`` (whichBrokerWhenConsumeSlowly) is suggested when a read falls far back.
        """

    def delete_group(self, group: str) -> None:
        """Take a group and its subscriptions out of the tables, and its counts out of
        ``group_stats`` and ``lag``. The next tick answers its held pulls."""

    def set_subscription(
        self, group: str, topic: str, version: int, tag_codes: Sequence[int] | None
    ) -> None:
        """What a group's heartbeat said of a topic; None: all tags. Used by pulls that carry no
        subscription; one with a newer version than the table's is slow. Where the tags differ from
        those before, the next tick answers held pulls as if nothing had come. They come again and
        find what is wanted now."""

    def delete_subscription(self, group: str, topic: str) -> None:
        """Take a subscription out of the table. Held pulls: as if the tags differed."""

    def set_writable(self, writable: bool) -> None:
        """False: every send takes the slow path (the handler answers with the reason)."""


class AccessTables(Protocol):
    """Access control of the fast path.

    A kernel with accounts answers only requests that they allow for certain. Any other is slow: the
    gate checks it again and refuses it with a reason. A frame that waits for its turn is checked
    when the turn comes.
    """

    def set_accounts(self, accounts: Sequence[AccountRules] | None) -> None:
        """Replace all accounts; None, as in a new store: nothing is checked.

        The next tick answers all held pulls as if nothing had come. They come again and are checked
        anew. Waits for offsets are over. Until then nothing wakes them.
        """


class OffsetCommits(Protocol):
    """Offsets that fast pulls commit, and the pulls that must not commit by themselves."""

    def set_slow_pulls(self, group: str, topic: str, slow: bool) -> None:
        """True: the pulls of a group of a topic are slow, whatever the tables say of both. The next
        tick answers held ones as if nothing had come. Group and topic need not be in a table, and a
        deletion of either changes nothing of it."""

    def readers_of(self, topic: str) -> list[str]:
        """The groups that got messages of a topic since the store was opened, as far as
        ``group_stats`` and ``lag`` count them, and those whose pulls or waits are held there;
        sorted."""

    def drain_commits(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, queue id, offset) that fast pulls committed since the last call; the
        last value per queue."""
