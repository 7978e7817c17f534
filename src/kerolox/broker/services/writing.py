"""What writes to the log of one broker beside the fast path, and what makes space for it."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.broker.config import BrokerSettings
from kerolox.broker.identity import Identity
from kerolox.broker.role import BrokerRole
from kerolox.broker.services.bulk_ends import BulkEnds
from kerolox.broker.services.cleaning import Cleaner
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.transactions import Transactions
from kerolox.broker.services.write_gate import WriteGate
from kerolox.broker.services.writer import RecordWriter, Slaves
from kerolox.broker.tables.tables import Tables
from kerolox.kernel import StoreKernel


class Writing:
    """The gate, and the services behind it."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: StoreKernel,
        now_ms: Callable[[], int],
        identity: Identity,
        tables: Tables,
        slaves: Slaves,
        *,
        on_delayed: Callable[[int, int], None],
        on_delivered: Callable[[int, int], None],
    ) -> None:
        """Nothing is written yet.

        Args:
            settings, role, store, now_ms, identity, tables: of the broker.
            slaves: see :class:`RecordWriter`.
            on_delayed, on_delivered: called with the schedule queue of each message that is to come
                later, or is due, and the size of its record.
        """
        config = settings.current
        self.gate = WriteGate(settings, role, store, now_ms)
        self.cleaner = Cleaner(settings, store, now_ms, self.gate.set_writable)
        self.writer = RecordWriter(
            settings,
            role,
            store,
            tables.filters,
            self.gate,
            now_ms,
            slaves,
            on_delayed=on_delayed,
        )
        self.schedule = DelaySchedule(
            config, store, tables, self.gate, now_ms, on_delivered=on_delivered
        )
        self.transactions = Transactions(settings, store, now_ms, identity, tables, self.writer)
        self.bulk_ends = BulkEnds(config, store, identity, self.transactions, self.writer)
