"""The whole store of a kernel, for whoever makes one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kerolox.kernel.append import (
    CopyKernel,
    HalfKernel,
    RecordAppender,
    ReplicationKernel,
    TimerKernel,
)
from kerolox.kernel.dedup import DedupKernel
from kerolox.kernel.files import StoreFiles, StoreRetention
from kerolox.kernel.held_pulls import HeldPulls, OffsetWaits
from kerolox.kernel.metrics import StoreMetrics
from kerolox.kernel.pops import LentPops
from kerolox.kernel.read import RawLog, RecordReader
from kerolox.kernel.tables import AccessTables, FastPathTables, OffsetCommits


class RecordStore(RecordAppender, RecordReader, Protocol):
    """Records in and out."""


class CleanedStore(StoreFiles, StoreRetention, RecordReader, Protocol):
    """What the removal of old files needs."""


class OffsetSource(OffsetCommits, RecordReader, Protocol):
    """Committed offsets, and the bounds of the queues that they belong to."""


class ReplicatedLog(RawLog, RecordReader, Protocol):
    """The log of a master or a slave, with its bounds."""


@runtime_checkable
class StoreKernel(
    CleanedStore,
    RecordStore,
    RawLog,
    FastPathTables,
    AccessTables,
    OffsetSource,
    HalfKernel,
    CopyKernel,
    TimerKernel,
    DedupKernel,
    ReplicationKernel,
    HeldPulls,
    OffsetWaits,
    LentPops,
    StoreMetrics,
    Protocol,
):
    """Commit log, consume queues, index and the tables of the fast path.

    Constructed as ``Store(settings)``, which touches no file. Has no method of its own: who uses
    a store asks for the narrowest of these protocols.
    """
