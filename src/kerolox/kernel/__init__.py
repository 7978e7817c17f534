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
