"""The interface between the broker and its fast path, and the choice of who implements it.

Two implementations obey the protocols below and pass the same tests:

- ``kerolox_kernel`` (Rust, distribution ``kerolox-kernel``), several times faster;
- :mod:`kerolox._pykernel` (pure Python), complete by itself, the oracle of the native one.

How a chunk of bytes travels: the socket's protocol hands each chunk that it read to
``Connection.feed``. The kernel takes every complete frame of the chunk at once. It answers the fast
requests itself: SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, and PULL_MESSAGE or
LITE_PULL_MESSAGE with tags. It returns everything else as *slow* frames for the handlers in Python.
A fast code with an unusual header is slow too. The handler in Python is complete by itself, so the
kernel is free to decline.

Policy reaches the kernel as tables that the broker pushes on change. The kernel never calls back
into Python, but for ``decode_columns`` and ``scan_columns``, to which a reader of records may give
functions of its own.

Rules that both sides keep:

- One thread calls all methods, the event loop's; ``MasterStream.follow`` alone has a thread of its
  own beside it. The kernel's own threads (flush, preallocation, index) never touch Python objects.
  When they have something for the loop they make ``Store.notify_fd`` readable.
- Message text crosses as ``bytes``: topics, groups and property text as UTF-8 ``str`` only where
  the signature says so. Hosts cross as 8 bytes (IPv4 + port) or 20 bytes (IPv6 + port),
  big-endian, as the record stores them.
- Times are milliseconds since the epoch.
- No method blocks for longer than a memory copy and a page fault, except ``open``, ``close`` and
  ``flush``. An append waits for a file of the log that is being made, 5 s at most.
"""

from __future__ import annotations

from kerolox.kernel.append import (
    HALF_QUEUE,
    HALF_RUNS_MAX,
    OP_PROPERTIES,
    REMOVE_TAG,
    Durability,
    HalfKernel,
    RecordAppender,
    ReplicationKernel,
)
from kerolox.kernel.choice import (
    KERNEL_VARIABLE,
    ColumnBuffer,
    ColumnBuffers,
    Kernel,
    KernelInUse,
    OddBody,
    TopicChoice,
    kernel_in_use,
    kernel_name,
    load_kernel,
)
from kerolox.kernel.feed import (
    ALLOWANCE_MAX,
    FED_FOREIGN,
    FED_MORE,
    FED_READY,
    FED_WAITS,
    ConnectionAccess,
    ConnectionKernel,
    Fed,
    FedMembers,
)
from kerolox.kernel.files import StoreFiles, StoreRetention
from kerolox.kernel.held_pulls import (
    ARRIVED_AT_ONCE_MAX,
    HELD_CODES_MAX,
    HELD_OF_CONNECTION_MAX,
    HELD_PULLS_MAX,
    OFFSET_WAITS_MAX,
    PASSED_OVER_MS,
    OffsetWaits,
)
from kerolox.kernel.metrics import (
    GROUP_READS_MAX,
    LATENCY_ENDS_MS,
    Latencies,
    LatencyCounts,
    StoreMetrics,
)
from kerolox.kernel.read import (
    COLUMN_MS_MAX,
    COLUMN_MS_MIN,
    STREAM_CLOSED,
    STREAM_OTHER,
    STREAM_TIME,
    MasterStream,
    RawLog,
    RecordReader,
)
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.store import (
    CleanedStore,
    OffsetSource,
    RecordStore,
    ReplicatedLog,
    StoreKernel,
)
from kerolox.kernel.tables import COMMITS_MAX, AccessTables, FastPathTables
from kerolox.kernel.values import (
    AccountRules,
    Appended,
    Batch,
    BatchAppended,
    HalfRun,
    HalvesEnded,
    QueueBounds,
    Read,
    Record,
    RecoveryReport,
    StreamPosition,
)

__all__ = [
    "ALLOWANCE_MAX",
    "ARRIVED_AT_ONCE_MAX",
    "COLUMN_MS_MAX",
    "COLUMN_MS_MIN",
    "COMMITS_MAX",
    "FED_FOREIGN",
    "FED_MORE",
    "FED_READY",
    "FED_WAITS",
    "GROUP_READS_MAX",
    "HALF_QUEUE",
    "HALF_RUNS_MAX",
    "HELD_CODES_MAX",
    "HELD_OF_CONNECTION_MAX",
    "HELD_PULLS_MAX",
    "KERNEL_VARIABLE",
    "LATENCY_ENDS_MS",
    "OFFSET_WAITS_MAX",
    "OP_PROPERTIES",
    "PASSED_OVER_MS",
    "REMOVE_TAG",
    "STREAM_CLOSED",
    "STREAM_OTHER",
    "STREAM_TIME",
    "AccessTables",
    "AccountRules",
    "Appended",
    "Batch",
    "BatchAppended",
    "CleanedStore",
    "ColumnBuffer",
    "ColumnBuffers",
    "ConnectionAccess",
    "ConnectionKernel",
    "Durability",
    "FastPathTables",
    "Fed",
    "FedMembers",
    "HalfKernel",
    "HalfRun",
    "HalvesEnded",
    "Kernel",
    "KernelInUse",
    "Latencies",
    "LatencyCounts",
    "MasterStream",
    "OddBody",
    "OffsetSource",
    "OffsetWaits",
    "QueueBounds",
    "RawLog",
    "Read",
    "Record",
    "RecordAppender",
    "RecordReader",
    "RecordStore",
    "RecoveryReport",
    "ReplicatedLog",
    "ReplicationKernel",
    "StoreFiles",
    "StoreKernel",
    "StoreMetrics",
    "StoreRetention",
    "StoreSettings",
    "StreamPosition",
    "TopicChoice",
    "kernel_in_use",
    "kernel_name",
    "load_kernel",
]
