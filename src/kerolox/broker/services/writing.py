"""What writes to the log of one broker beside the fast path, and what makes space for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.broker.base import Base
from kerolox.broker.services.cleaning import Cleaner
from kerolox.broker.services.duplicates import Duplicates
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.timed_puts import TimedPuts
from kerolox.broker.services.timer import TimerService
from kerolox.broker.services.transactions import Transactions
from kerolox.broker.services.writer import RecordWriter, Slaves, WriteGate
from kerolox.broker.tables.tables import Tables

if TYPE_CHECKING:
    from kerolox.broker.services.bulk_ends import BulkEnds


class Writing:
    """The gate, and the services behind it."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        slaves: Slaves,
        arrivals: Arrivals,
        *,
        on_delayed: Callable[[int, int], None],
        on_delivered: Callable[[int, int, int], None],
    ) -> None:
        """Nothing is written yet. See :class:`RecordWriter`, :class:`DelaySchedule` and
        :class:`TimerService`."""
        settings, store, now_ms = base.settings, base.store, base.now_ms
        self.gate = WriteGate(settings, base.role, store, now_ms)
        self.cleaner = Cleaner(settings, store, now_ms, self.gate.set_writable)
        timed = TimedPuts(base, tables.topics)
        self.duplicates = Duplicates(base, tables.topics)
        self.writer = RecordWriter(
            base,
            tables.filters,
            timed,
            self.duplicates,
            self.gate,
            slaves,
            on_delayed=on_delayed,
        )
        self.timer = TimerService(base, tables, self.gate, self.writer, timed, arrivals)
        self.schedule = DelaySchedule(
            base, tables, self.gate, self.writer, on_delivered=on_delivered
        )
        self.transactions = Transactions(base, tables, self.writer)
        self._base = base

    @property
    def bulk_ends(self) -> BulkEnds:
        """Loaded for the first job that ends many halves at once."""
        from kerolox.broker.services.bulk_ends import BulkEnds

        return BulkEnds(self._base, self.transactions, self.writer)
