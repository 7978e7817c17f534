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

A name is imported on its first use: a client needs the choice of a kernel alone.
"""

from kerolox.public_names import importer, origins

ORIGINS = origins(
    {
        "kerolox.kernel.append": (
            "HALF_QUEUE",
            "HALF_RUNS_MAX",
            "OP_PROPERTIES",
            "REMOVE_TAG",
            "Durability",
            "HalfKernel",
            "RecordAppender",
            "ReplicationKernel",
        ),
        "kerolox.kernel.choice": (
            "KERNEL_VARIABLE",
            "ColumnBuffer",
            "ColumnBuffers",
            "Kernel",
            "KernelInUse",
            "OddBody",
            "TopicChoice",
            "kernel_in_use",
            "kernel_name",
            "load_kernel",
        ),
        "kerolox.kernel.feed": (
            "ALLOWANCE_MAX",
            "FED_FOREIGN",
            "FED_MORE",
            "FED_READY",
            "FED_WAITS",
            "ConnectionAccess",
            "ConnectionKernel",
            "Fed",
            "FedMembers",
        ),
        "kerolox.kernel.files": ("StoreFiles", "StoreRetention"),
        "kerolox.kernel.held_pulls": (
            "ARRIVED_AT_ONCE_MAX",
            "HELD_CODES_MAX",
            "HELD_OF_CONNECTION_MAX",
            "HELD_PULLS_MAX",
            "OFFSET_WAITS_MAX",
            "PASSED_OVER_MS",
            "OffsetWaits",
        ),
        "kerolox.kernel.metrics": (
            "GROUP_READS_MAX",
            "LATENCY_ENDS_MS",
            "Latencies",
            "LatencyCounts",
            "StoreMetrics",
        ),
        "kerolox.kernel.read": (
            "COLUMN_MS_MAX",
            "COLUMN_MS_MIN",
            "STREAM_CLOSED",
            "STREAM_OTHER",
            "STREAM_TIME",
            "MasterStream",
            "RawLog",
            "RecordReader",
        ),
        "kerolox.kernel.settings": ("StoreSettings",),
        "kerolox.kernel.store": (
            "CleanedStore",
            "OffsetSource",
            "RecordStore",
            "ReplicatedLog",
            "StoreKernel",
        ),
        "kerolox.kernel.tables": ("COMMITS_MAX", "AccessTables", "FastPathTables"),
        "kerolox.kernel.values": (
            "AccountRules",
            "Appended",
            "Batch",
            "BatchAppended",
            "HalfRun",
            "HalvesEnded",
            "QueueBounds",
            "Read",
            "Record",
            "RecoveryReport",
            "StreamPosition",
        ),
    }
)
"""Name → module."""

__all__ = sorted(ORIGINS)

__getattr__ = importer(__name__, ORIGINS)
