"""The tables of one broker, made together: each gets those before it that it changes or asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kerolox.broker.base import Base
from kerolox.broker.tables.clients import ClientTable
from kerolox.broker.tables.filters import FilterTable
from kerolox.broker.tables.former_queues import FormerQueues
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.locks import QueueLocks
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.pops import PopTables
from kerolox.broker.tables.request_modes import POP, RequestModes
from kerolox.broker.tables.topics import TopicTable


class Tables:
    """The tables of topics, groups and clients."""

    def __init__(self, base: Base, *, has_fast_pulls: bool) -> None:
        """No file is read. ``has_fast_pulls``: False: no pull is answered by the fast path."""
        settings, config, store, now_ms = base.settings, base.config, base.store, base.now_ms
        self.topics_changed = asyncio.Event()
        """Set when name servers must hear of the topics."""
        self.topics = TopicTable(settings, store, now_ms, on_change=self.topics_changed.set)
        self.filters = FilterTable(config, now_ms, on_topic=self.topics.set_filtered)
        self.clients = ClientTable(
            settings, store, base.steady_ms, on_group_gone=self.filters.unregister
        )
        self.groups = GroupTable(
            settings,
            base.role,
            store,
            now_ms,
            may_be_fast=has_fast_pulls,
            on_change=self._group_changed,
        )
        self.offsets = OffsetTable(
            config.config_folder,
            store,
            has_lmq=config.enable_lmq,
            queues_of=self.topics.queues_of,
            steady_ms=base.steady_ms,
        )
        self.pops = PopTables(base, self.topics, self.groups, self.offsets)
        self.request_modes = RequestModes(settings)
        self.former_queues = FormerQueues(self.topics)
        self.locks = QueueLocks(base.steady_ms, config.rebalance_lock_max_live_time)

    def meet(self, group: str, message_model: str, topics: Iterable[str]) -> None:
        """A group comes, or is online as a slave becomes the master: it may know an earlier life of
        its topics. Who pops has no offsets; each member that reads everything by itself has its
        own.
        """
        if message_model == "BROADCASTING":
            return
        for topic in filter(self.offsets.deleted.queues, topics):
            if self.request_modes.get(topic, group).mode != POP:
                self.offsets.met(group, topic)

    def _group_changed(self, group: str, may_broadcast: bool) -> None:
        self.clients.set_may_broadcast(group, may_broadcast)
        self.pops.group_changed(group)
