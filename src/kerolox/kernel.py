"""The one interface between the broker and its fast path, and the choice of who implements it.

Two implementations obey the protocols below and pass the same tests:

- ``kerolox_kernel`` (Rust, distribution ``kerolox-kernel``), several times faster;
- :mod:`kerolox._pykernel` (pure Python), complete by itself, the oracle of the native one.

How a chunk of bytes travels: the socket's protocol hands each chunk that it read to
``Connection.feed``. The kernel takes every complete frame of the chunk at once, answers the fast
requests (SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, and PULL_MESSAGE or LITE_PULL_MESSAGE
with tags) itself and returns everything else as *slow* frames for the handlers in Python. A fast
code whose header carries anything unusual is slow too: the Python handler is complete by itself,
so the kernel is free to decline. Policy reaches the kernel as tables that the broker pushes on
change; the kernel never calls back into Python, but for ``decode_columns``, which a reader of
records may give a function of its own.

Rules that both sides keep:

- All methods are called from one thread, the event loop's. The kernel's own threads (flush,
  preallocation, index) never touch Python objects; when they have something for the loop they
  make ``Store.notify_fd`` readable.
- Message text crosses as ``bytes``: topics, groups and property text as UTF-8 ``str`` only where
  the signature says so. Hosts cross as 8 bytes (IPv4 + port) or 20 bytes (IPv6 + port),
  big-endian, as the record stores them.
- Times are milliseconds since the epoch.
- No method blocks for longer than a memory copy and a page fault, ``open``, ``close`` and
  ``flush`` excepted; an append that needs a file of the log that is being made waits for it, 5 s
  at most.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast, runtime_checkable

from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Buffer, Sequence  # type: ignore[attr-defined]


__all__ = [
    "COMMITS_MAX",
    "FED_MORE",
    "FED_READY",
    "GROUP_READS_MAX",
    "HELD_CODES_MAX",
    "HELD_OF_CONNECTION_MAX",
    "HELD_PULLS_MAX",
    "KERNEL_VARIABLE",
    "PASSED_OVER_MS",
    "Appended",
    "BatchAppended",
    "ConnectionKernel",
    "Fed",
    "Kernel",
    "OddBody",
    "QueueBounds",
    "Read",
    "RecoveryReport",
    "StoreKernel",
    "kernel_name",
    "load_kernel",
]

KERNEL_VARIABLE = "KEROLOX_KERNEL"
"""Environment variable that forces a kernel."""

_MODULES = {"native": "kerolox_kernel", "python": "kerolox._pykernel"}

FED_READY = 1
"""``Fed`` flag: ``Store.drain_ready`` has answers for other connections (held pulls woken)."""

FED_MORE = 2
"""``Fed`` flag: the answer budget was used up; call ``feed(b"", 0)`` again after the write."""

HELD_PULLS_MAX = 100_000
"""Pulls without expressions that are held in all; further ones are for the slow path to refuse."""

HELD_OF_CONNECTION_MAX = 10_000
"""Those of one connection: what one message or one moment may have to answer."""

HELD_CODES_MAX = 1_000_000
"""Tags codes of all held pulls together."""

COMMITS_MAX = 65_536
"""Offsets that fast pulls committed and ``drain_commits`` did not take yet; a pull that commits one
more is slow."""

GROUP_READS_MAX = 200_000
"""Queues of groups that ``group_stats`` and ``lag`` tell of; further ones are left out."""

PASSED_OVER_MS = 5_000
"""How long a held pull may wait behind messages that it does not want: it is answered then, so that
its group's offset, and what operators see of it, goes on behind them (``PullRequestHoldService``).
"""


class Fed(NamedTuple):
    """What one ``Connection.feed`` gave. A plain tuple of this shape is allowed."""

    answers: bytes
    """Whole response frames for this connection, in request order; one write. May be empty."""
    slow: list[bytes] | None
    """Frames for Python (everything after the 4-byte length), in order; None when there is none."""
    flags: int
    """``FED_READY`` | ``FED_MORE``."""
    error: str | None
    """Set when the peer broke the framing: write ``answers``, then close the connection."""


class Appended(NamedTuple):
    """Result of ``Store.append``."""

    status: int
    """``PutMessageStatus`` value; the other members are 0 unless it is PUT_OK."""
    physical_offset: int
    queue_offset: int
    size: int
    """Bytes of the stored record."""
    store_timestamp: int


class BatchAppended(NamedTuple):
    """Result of ``Store.append_batch``."""

    status: int
    physical_offsets: list[int]
    queue_offset: int
    """Queue offset of the first record; the others follow without a gap."""
    end_offset: int
    """Physical offset behind the last record."""
    store_timestamp: int


class Read(NamedTuple):
    """Result of ``Store.read``."""

    status: int
    """``GetMessageStatus`` value."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_slave: bool
    """More than ``access_message_in_memory_max_ratio`` of the RAM behind the end of the log."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a Read
    records: bytes
    """``count`` raw records, concatenated."""


class QueueBounds(NamedTuple):
    """One consume queue of the store."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class RecoveryReport(NamedTuple):
    """What ``Store.open`` found and did."""

    clean: bool
    """The last run stopped cleanly (no abort file)."""
    min_offset: int
    max_offset: int
    """Physical bounds of the log after recovery."""
    scanned_bytes: int
    truncated_bytes: int
    """Bytes behind the last whole record that were cut off."""
    dispatched: int
    """Records whose queue entries were written again."""
    indexed: int
    """Records whose index entries were written again."""
    queues: int
    notes: list[str]
    """One sentence per repair, for the log."""
    same_boot: bool = False
    """After a crash: the machine ran on, so nothing that was written is lost."""
    begin_offset: int = 0
    """Physical offset where reading began; what is before it was known to be whole."""
    records: int = 0
    """Records that were read and found whole."""
    cut_entries: int = 0
    """Queue entries that were dropped: their records are lost, or they were of none."""
    rebuilt_queues: int = 0
    """Queues that were filled from the begin of the log."""
    removed_index_files: int = 0
    """Index files that were removed to be built again."""
    set_aside_files: int = 0
    """Files of the log with records behind its end, kept in ``commitlog-cut``."""
    duration_ms: int = 0

    def summary(self) -> str:
        """One sentence on what was found and done, for the log."""
        how = (
            "a clean stop" if self.clean
            else "a kill" if self.same_boot
            else "a crash of the machine, or a stop of another broker"
        )  # fmt: skip
        return (
            f"opened after {how} in {self.duration_ms} ms: log {self.min_offset}..{self.max_offset}"
            f", read {self.records} records in {self.scanned_bytes} bytes from {self.begin_offset}"
            f", cut {self.truncated_bytes} bytes and {self.cut_entries} queue entries, wrote "
            f"{self.dispatched} queue entries, indexed {self.indexed} records, rebuilt "
            f"{self.rebuilt_queues} of {self.queues} queues, removed {self.removed_index_files} "
            f"index files, set aside {self.set_aside_files} files"
        )


@runtime_checkable
class StoreKernel(Protocol):
    """Commit log, consume queues, index and the tables of the fast path.

    Constructed as ``Store(settings)``, which touches no file.
    """

    # -- life cycle -------------------------------------------------------------------------
    def open(self) -> RecoveryReport:
        """Lock the folder, load the files, recover, start the helper threads.

        Raises ``OSError`` (``BlockingIOError`` when another process holds the store,
        ``PermissionError`` when it can't be written) or ``ValueError`` (a file whose size is not
        the configured one, or a missing file of the log: one with others on both sides of it, or
        the last after a clean stop; the text names the file, its size and the setting).
        """
        ...

    def close(self) -> None:
        """Flush, write the checkpoint, remove the abort file, release the lock. Idempotent."""
        ...

    def flush(self) -> int:
        """Flush everything now, queues, index and checkpoint too; the new flushed offset."""
        ...

    @property
    def notify_fd(self) -> int:
        """A descriptor that becomes readable when ``drain_ready`` or ``flushed_offset`` moved, or
        a flush failed.

        Read it empty (8 bytes) before looking.
        """
        ...

    def set_clock(self, now_ms: int | None) -> None:
        """Freeze the clock at ``now_ms`` for store timestamps (tests); None thaws it."""
        ...

    # -- policy tables, pushed by the broker ------------------------------------------------
    def set_identity(
        self, *, cluster: str, region: str, trace_on: bool, store_host: bytes, broker_id: int
    ) -> None:
        """What goes into records (CLUSTER property, store host) and answers (MSG_REGION,
        TRACE_ON, suggestWhichBrokerId)."""
        ...

    def set_topic(
        self, topic: str, read_queues: int, write_queues: int, perm: int, fast: bool
    ) -> None:
        """Put a topic into the table. ``fast=False``: its sends and pulls take the slow path.

        Without read permission (4 of ``perm``) its held pulls are answered with the next tick.
        """
        ...

    def delete_topic(self, topic: str) -> None:
        """Take a topic out of the table, and what groups got of it out of ``group_stats`` and
        ``lag``; its files stay."""
        ...

    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None:
        """Put a consumer group into the table. ``fast=False``: its pulls are slow, and those that
        are held are answered with the next tick, so that they come again and are judged anew.

        ``slow_broker_id`` (whichBrokerWhenConsumeSlowly) is suggested when a read falls far back.
        """
        ...

    def delete_group(self, group: str) -> None:
        """Take a group and its subscriptions out of the tables, and what it got out of
        ``group_stats`` and ``lag``; its held pulls are answered with the next tick."""
        ...

    def set_subscription(
        self, group: str, topic: str, version: int, tag_codes: Sequence[int] | None
    ) -> None:
        """What a group's heartbeat said of a topic; None: all tags. Used by pulls that carry no
        subscription; one with a newer version than the table's is slow. Where the tags differ from
        those before, held pulls are answered with the next tick, as if nothing had come, so that
        they come again and find what is wanted now."""
        ...

    def delete_subscription(self, group: str, topic: str) -> None:
        """Take a subscription out of the table. Held pulls: as if the tags differed."""
        ...

    def set_writable(self, writable: bool) -> None:
        """False: every send takes the slow path (the handler answers with the reason)."""
        ...

    @property
    def trouble(self) -> str:
        """Why the store takes no writes, or refused the last one: file, error, what to do. Also
        why the index lacks keys. Empty: nothing is wrong."""
        ...

    def set_full_log_paths(self, paths: Sequence[str]) -> None:
        """Folders of ``storePathCommitLog`` whose disk is nearly full: no new file of the log is
        made there unless all are. Replaces what was set before; each is written as in the
        settings."""
        ...

    def set_max_message_size(self, size: int) -> None:
        """``maxMessageSize`` from now on: the bytes of a body, or of a batch, that are stored."""
        ...

    # -- write ------------------------------------------------------------------------------
    def append(
        self,
        topic: bytes,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        body: bytes,
        properties: bytes,
        tags_code: int | None = None,
        bit_map: bytes = b"",
    ) -> Appended:
        """Append one record, its queue entry and its index entries; wakes held pulls.

        ``properties`` is stored as given. ``tags_code`` None: from the TAGS property. The host
        bits of ``sys_flag`` are set from the lengths of the hosts. Prepared and rollback types
        (``sys_flag & 12`` in 4, 12) get queue offset 0 and no queue entry.

        With ``enable_multi_dispatch`` a record that names further queues in
        ``INNER_MULTI_DISPATCH`` gets an entry in each, and ``INNER_MULTI_QUEUE_OFFSET`` added to
        its properties. ``bit_map`` goes into the unit beside the queue entry, with
        ``enable_consume_queue_ext``; empty: no filter was calculated.
        """
        ...

    def append_batch(
        self,
        topic: bytes,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        items: Sequence[tuple[int, bytes, bytes]],
        bit_maps: Sequence[bytes] = (),
    ) -> BatchAppended:
        """Append (flag, body, properties) items as records that follow each other, or none.

        ``bit_maps``: one for each item, or none at all; see ``append``.
        """
        ...

    # -- read -------------------------------------------------------------------------------
    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        group: str | None = None,
        bits: tuple[int, int, Sequence[int]] | None = None,
    ) -> Read:
        """getMessage of RocketMQ, with its limits and its next offsets.

        ``bits`` is (length of a bit map, born, positions) of a filter by expression: a message
        whose unit (``enable_consume_queue_ext``) has a map of that length, was stored after
        ``born`` and lacks one of the positions is passed over, as one without the tag is.

        With a ``group`` it counts for ``group_stats`` and ``lag``, as fast pulls do. A
        queue that does not exist is empty (RocketMQ makes the queue that it looks for).
        """
        ...

    def lookup(self, physical_offset: int) -> bytes | None:
        """The record that starts at a physical offset; None when none does."""
        ...

    def query_key(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[int, int, bytes]:
        """(index last update timestamp, its physical offset, raw records) for topic#key; the newest
        where all together have more than 8 MiB."""
        ...

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min offset, max offset) of a queue; (0, 0) when it does not exist."""
        ...

    def queues(self) -> list[QueueBounds]:
        """Every consume queue."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """getOffsetInQueueByTime: exact match, else the nearest; 0 when there is no queue."""
        ...

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp of the message at a queue offset; -1 when there is none."""
        ...

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of a queue entry; None when there is none.

        The tags code is looked up where the entry holds the address of a unit; below all ints it
        is an address whose unit is missing.
        """
        ...

    def queue_unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, bytes] | None:
        """(tags code, store time, bit map) of the unit beside a queue entry
        (``enable_consume_queue_ext``); None when it has none."""
        ...

    def delete_queues(self, topic: str) -> int:
        """Delete a topic's consume queue files; how many queues there were."""
        ...

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        """Delete one queue and its files; whether it had any. It begins anew at offset 0."""
        ...

    # -- retention: the steps; when, and which, kerolox.store.retention says -------------------
    def log_files(self) -> list[tuple[str, int, int]]:
        """(path, physical offset of its first byte, size) of each commit log file, oldest first."""
        ...

    def drop_log_file(self) -> str | None:
        """Take the oldest commit log file out of the store, which then begins at the next one.

        Gives its path, for the caller to unlink before the next file is dropped: so a crash in
        between leaves a log without a gap. None: it is the only one, which stays.
        """
        ...

    def expire_queue(self, topic: str, queue_id: int, most: int) -> int:
        """Delete up to ``most`` files of a queue whose last entry is of a record that the log no
        longer has, oldest first and never the last (``deleteExpiredFile``), and move its min
        offset to the first message that the log has. How many files; 0 also without such a queue.

        Raises ``OSError`` when a file can't be read or deleted; those before it are gone.
        """
        ...

    def expire_index(self) -> list[str]:
        """Take those index files out of the store that know no record that the log still has,
        never the newest; their paths, for the caller to unlink."""
        ...

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Physical offset behind the record of a queue's last entry (``getLastOffset``); -1 when
        there is none."""
        ...

    # -- positions and counters -------------------------------------------------------------
    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the oldest byte kept."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the last record that can be read: with a transient store pool
        those that are not committed can't be, neither from the log nor from their queues."""
        ...

    @property
    def transient_buffers(self) -> int:
        """Buffers of the transient store pool that belong to no file
        (``remainTransientStoreBufferNumbs``); -1 without a pool. At 0 every send takes the slow
        path: the handler refuses it (``isTransientStorePoolDeficient``)."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Everything below this physical offset is on disk."""
        ...

    @property
    def has_failed(self) -> bool:
        """A flush failed: ``flushed_offset`` moves no more, and nobody should wait for it.
        ``notify_fd`` tells."""
        ...

    def request_flush(self, physical_offset: int) -> None:
        """Ask the flush thread to reach an offset; ``notify_fd`` tells when it did (group
        commit: one flush covers all that asked meanwhile)."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters since open: put_count, put_bytes, get_found, get_miss, get_count, get_bytes,
        get_time_max_ms (the longest read), flush_count, held_pulls, index_pending,
        dispatch_behind_bytes, uncommitted_bytes (in a transient store pool) and file_wait_ms
        (how long an append has waited for a file of the log by now; else 0)."""
        ...

    def drain_put_times(self) -> list[tuple[int, int]]:
        """(milliseconds, fast sends that took so long) since the last call, ascending; 10,001
        stands for whatever is longer.

        A send takes from its feed to its answer, the wait for a flush included; the sends of one
        feed take as long as the feed."""
        ...

    def topic_stats(self) -> list[tuple[str, int, int]]:
        """(topic, messages put, bytes put) since open, of the queues that there are: what deleted
        ones counted is gone with them."""
        ...

    def group_stats(self) -> list[tuple[str, str, int, int, int, int, int]]:
        """(group, topic, queue id, reads that found messages, messages, bytes, milliseconds that
        those reads took) since open."""
        ...

    def lag(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, queue id, bytes): how far behind the end of the log the last entry was
        that a group's last read of a queue looked at (GROUP_GET_FALL_SIZE). Empty without
        ``disk_fall_recorded``."""
        ...

    # -- answers that come later ------------------------------------------------------------
    def hold(
        self,
        connection_id: int,
        serialize_type: int,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        deadline_ms: int,
    ) -> bool:
        """Hold a pull of the slow path; the answer comes out of ``drain_ready``. False: the table
        is full (``HELD_PULLS_MAX``), or the share of its connection
        (``HELD_OF_CONNECTION_MAX``); until it is not, pulls that would wait take the slow path."""
        ...

    def stop_holding(self) -> None:
        """Hold no more pulls: the next ``tick`` answers those that are held, and a further fast
        pull that finds nothing is answered at once."""
        ...

    def tick(self, now_ms: int) -> bool:
        """Expire held pulls (answer 19), those that were passed over (``PASSED_OVER_MS``, answer
        20) and overdue flush answers (answer 10; all of them once a flush failed). True: see
        ``drain_ready``. Called every 100 ms."""
        ...

    def drain_ready(self) -> list[tuple[int, bytes]]:
        """(connection id, frames) of answers that became ready elsewhere than in its own feed."""
        ...

    def drain_commits(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, queue id, offset) that fast pulls committed since the last call; the
        last value per queue."""
        ...


@runtime_checkable
class ConnectionKernel(Protocol):
    """The fast path of one connection. Constructed as ``Connection(store, id, born_host)``."""

    def feed(self, data: Buffer, size: int) -> Fed:
        """Take ``data[:size]``, all complete frames of it and of what was left before."""
        ...

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of frames that are not whole yet, or wait for their turn."""
        ...

    def close(self) -> None:
        """Drop held pulls and pending answers of this connection. Idempotent."""
        ...


OddBody = Callable[[bytes, int, int], bytes | None]
"""(body as stored, sysFlag, queue offset) of a body that a kernel can't inflate: what stands in its
column, None for null. Raises what the caller of ``decode_columns`` is to get."""


class Kernel(Protocol):
    """What a kernel module offers."""

    class Store(StoreKernel, Protocol): ...

    class Connection(ConnectionKernel, Protocol): ...

    @staticmethod
    def decode_columns(
        data: Buffer,
        columns: Sequence[str],
        *,
        start: int = 0,
        body_bytes_max: int = 2**31 - 1,
        odd_body: OddBody | None = None,
    ) -> tuple[int, dict[str, object], int]:
        """Raw records from byte ``start`` on to Arrow buffers: (row count, {column: buffers}, where
        the next call goes on).

        A call ends before the record that would bring column body beyond ``body_bytes_max``, unless
        that record is the first. ``odd_body`` says what stands for bodies that are compressed, and
        not in zlib's way or not whole.
        """
        ...


def kernel_name() -> Literal["native", "python"]:
    """Which kernel this process uses: ``KEROLOX_KERNEL`` (native or python), else the native one
    when it can be imported.

    Raises:
        ConfigError: another value, or native is asked for and can't be imported.
    """
    wanted = os.environ.get(KERNEL_VARIABLE, "")
    if wanted == "python":
        return "python"
    if wanted not in ("", "native"):
        raise ConfigError(
            f"{KERNEL_VARIABLE}={wanted}: there is no such kernel; use native or python, "
            "or leave it unset to take the native one when it is installed"
        )
    found = importlib.util.find_spec(_MODULES["native"]) is not None
    if wanted == "native" and not found:
        raise ConfigError(_missing("the module is not installed"))
    return "native" if found else "python"


def load_kernel(name: str | None = None) -> Kernel:
    """The kernel module of that name, or of :func:`kernel_name`.

    Raises:
        ConfigError: an unknown name, or the native module is missing or does not load.
    """
    chosen = kernel_name() if name is None else name
    module = _MODULES.get(chosen)
    if module is None:
        raise ConfigError(f"there is no kernel {chosen!r}; use native or python")
    try:
        return cast("Kernel", importlib.import_module(module))
    except ImportError as error:
        if chosen == "python":
            raise
        raise ConfigError(_missing(str(error))) from error


def _missing(reason: str) -> str:
    return (
        f"the native kernel can't be imported ({reason}); install kerolox-kernel, "
        f"or run with {KERNEL_VARIABLE}=python"
    )
