"""What crosses the kernel's interface: plain tuples with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """One record to append."""

    topic: bytes
    queue_id: int
    flag: int
    sys_flag: int
    """Its host bits are set from the lengths of the hosts."""
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    tags_code: int | None = None
    """What goes into the queue entry; None: from the TAGS property, or the time of delivery in the
    schedule topic."""
    bit_map: bytes = b""
    """What goes into the unit beside the queue entry, with ``enable_consume_queue_ext``; empty: no
    filter was calculated."""


class Batch(NamedTuple):
    """Records to append together; the fields are those of ``Record``."""

    topic: bytes
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    items: Sequence[tuple[int, bytes, bytes]]
    """(flag, body, properties) of each."""
    bit_maps: Sequence[bytes] = ()
    """One for each item, or none at all."""


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


class StreamPosition(NamedTuple):
    """Where a connection that brings a master's log stands, between two reads."""

    position: int
    """The physical offset of the byte that comes next."""
    end: int
    """Of the slave's log."""
    left: int
    """Bytes of the current frame that are still to come."""
    reported: int
    """What the slave reported last."""
    rest: bytes
    """What came and was not taken; it begins with the head of a frame, or a part of it."""


class HalfRun(NamedTuple):
    """Halves that follow each other in the half queue and were written by the same attempt."""

    sink: str
    """Their ``KEROLOX_SINK``."""
    first: int
    """Queue offset of the first one."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    is_plain: bool
    """None of them was stored again by the check, says that it is a copy, or needs the handler in
    Python for another reason."""


class HalvesEnded(NamedTuple):
    """Result of ``HalfKernel.end_halves``."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    """How many are ended; those that follow need the handler in Python, or were refused."""
    first_op: int
    """Queue offset of the first op message; the others follow without a gap."""
    unnoted: bool = False
    """The half behind those has its final message, but the store refused the op message."""


class Copies(NamedTuple):
    """Records to store again, each in the queue that its ``REAL_TOPIC`` and ``REAL_QID`` name."""

    offsets: Sequence[int]
    """Where they are in the log."""
    added: Sequence[bytes] = ()
    """Property text that each gets at its end, without TAGS, KEYS and UNIQ_KEY; empty: none
    does."""
    odd_names: Sequence[bytes] = ()
    """A record with one of these properties needs the handler in Python."""
    odd_keys: Sequence[bytes] = ()
    """So does one with one of these as its ``UNIQ_KEY``."""
    moment_below: int | None = None
    """And one whose ``TIMER_OUT_MS`` is not below; None: it needs none."""
    names_source: bool = False
    """``preparedTransactionOffset`` of a copy is the offset of its record and ``COPY_MARK``, not
    0."""


class Copied(NamedTuple):
    """Result of ``CopyKernel.copy_records``."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    """How many of the first ones are stored; the one behind those needs the handler in Python, or
    was refused."""
    size: int
    """Bytes of the copies."""
    topics: list[tuple[str, int]]
    """How many of them each topic got, in no order."""


class AccountRules(NamedTuple):
    """One account of access control. ``repr`` does not show its secret."""

    access_key: str
    secret_key: str
    may_everything: bool
    """An administrator without resources of its own."""
    default_topic: int
    default_group: int
    """Bits of ``Permission``, for topics and groups that are no resources."""
    resources: Mapping[str, int]
    """Bits of topics, and of groups under the names of their retry topics."""

    def __repr__(self) -> str:
        return f"AccountRules({self.access_key!r})"


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
