"""What is rebuilt from: the listed log, its end, and what the store and its settings say."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from kerolox.errors import ConfigError, StoreError
from kerolox.inspect.index_layout import DEFAULT_SHAPE, DEFAULTS, IndexShape
from kerolox.inspect.places import StoreOptions, StorePlaces, is_deleted_topic
from kerolox.inspect.rebuild import index_shape
from kerolox.protocol.names import LMQ_PREFIX
from kerolox.spark.jobs.rebuild.options import RebuildOptions
from kerolox.spark.store.ends import LogEnd, find_log_end
from kerolox.spark.store.files.listing import StoreListing, list_store
from kerolox.spark.store.files.queues import StoreQueue, queue_ids, queue_path
from kerolox.spark.store.plan import config_topics
from kerolox.store.files.deletions import deletions_in
from kerolox.store.layout import ENTRY_BYTES

DELETIONS_BYTES_MAX = 64 * 1024 * 1024
NEVER = 2**63 - 1
"""A physical offset behind every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How records become entries of queues. Travels to the workers.

    Args:
        delays_ms: of the delay levels (messageDelayLevel).
        known: topics that there are; None: all that the log has.
        over: topics that were deleted, and the end of the log then.
        multi_dispatch: records may have further queues (enableMultiDispatch).
        further: the only topics that these may be; None: any.
        lmq: whether light message queues have the queue id 0 (enableLmq).
    """

    delays_ms: tuple[int, ...]
    known: frozenset[bytes] | None = None
    over: Mapping[str, int]
    multi_dispatch: bool = False
    further: frozenset[str] | None = None
    lmq: bool = True

    def floor_of(self, topic: str) -> int:
        """Records of a topic count from this physical offset on."""
        if is_deleted_topic(topic.encode(), self.known):
            return NEVER
        return self.over.get(topic, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A store as it was examined."""

    listing: StoreListing
    end: LogEnd
    rules: Rules
    queue_file_bytes: int
    """A multiple of an entry's."""
    index_shape: IndexShape | None
    """None: without index."""


def settings_of(options: RebuildOptions) -> StoreOptions:
    """What ``--config`` says, or RocketMQ's defaults; ConfigError: the file can't be read."""
    settings = StoreOptions()
    if options.config is not None:
        settings = StoreOptions.of_settings(Path(options.config))
    return settings if options.index else replace(settings, has_index=False)


def examine(options: RebuildOptions, settings: StoreOptions, *, is_ours: bool) -> Source:
    """List the store and find out how its files are made. ``is_ours``: the job holds the store's
    lock, so that no broker writes to it. StoreError: it is no store, or does not tell the shape of
    its index. ConfigError: nothing is known of its file system.
    """
    listing = list_store(options.store, settings.log_folders)
    if is_ours:
        listing = replace(listing, is_live=False)
    folders = _queue_topics(listing)
    topics = config_topics(listing)
    configured = None if topics is None else frozenset(name.encode() for name in topics)
    known = None if options.all_topics else configured
    over = {} if options.all_topics else _deletions(listing)
    further: frozenset[str] | None = None
    multi_dispatch = settings.multi_dispatch is True
    if settings.multi_dispatch is None and any(_is_further(name, configured) for name in folders):
        # Nobody says whether queues hold records of other topics, and some look as if.
        multi_dispatch, further = True, frozenset(folders)
    rules = Rules(
        delays_ms=settings.delays_ms,
        known=None if known is None else known | {name.encode() for name in folders},
        over=over,
        multi_dispatch=multi_dispatch,
        further=further,
        lmq=settings.lmq is not False,
    )
    size = settings.queue_file_bytes or _found_queue_file_bytes(listing, folders)
    size = size or DEFAULTS.mapped_file_size_consume_queue
    return Source(
        listing=listing,
        end=find_log_end(listing),
        rules=rules,
        queue_file_bytes=-(-size // ENTRY_BYTES) * ENTRY_BYTES,
        index_shape=_shape(listing, settings) if settings.has_index else None,
    )


def _queue_topics(listing: StoreListing) -> set[str]:
    if listing.queue_folder is None:
        return set()
    children = listing.disk.children(listing.queue_folder)
    return {child.name for child in children if not child.is_file}


def _is_further(topic: str, known: frozenset[bytes] | None) -> bool:
    """A queue may hold records of other topics: it has no topic of its own."""
    name = topic.encode()
    return known is None or topic.startswith(LMQ_PREFIX) or is_deleted_topic(name, known)


def _deletions(listing: StoreListing) -> dict[str, int]:
    if listing.root is None:
        return {}
    try:
        with closing(listing.disk.open(posixpath.join(listing.root, "deletions"))) as opened:
            return deletions_in(opened.read_at(0, DELETIONS_BYTES_MAX))
    except FileNotFoundError:
        return {}


def _found_queue_file_bytes(listing: StoreListing, topics: set[str]) -> int:
    """Size of the present queue files; 0 when there are none."""
    folder = listing.queue_folder or ""
    for topic in sorted(topics):
        for queue_id in queue_ids(listing.disk, folder, topic):
            files = StoreQueue(listing.disk, queue_path(folder, topic, queue_id)).files
            if files and files[0].size >= ENTRY_BYTES:
                return files[0].size
    return 0


def _shape(listing: StoreListing, settings: StoreOptions) -> IndexShape:
    if listing.root is not None and listing.disk.is_local:
        return index_shape(StorePlaces.find(listing.root, settings))
    if settings.index_slots and settings.index_entries:
        return IndexShape(settings.index_slots, settings.index_entries)
    if listing.root is not None and _has_index(listing):
        raise StoreError(
            f"{os.path.join(listing.location, 'index')} is not on this machine, so that its files "
            "do not tell their shape; give --config broker.conf with maxHashSlotNum and "
            "maxIndexNum, or --no-index"
        )
    return IndexShape(
        settings.index_slots or DEFAULT_SHAPE.slots, settings.index_entries or DEFAULT_SHAPE.entries
    )


def _has_index(listing: StoreListing) -> bool:
    try:
        return bool(listing.disk.children(posixpath.join(listing.root or "", "index")))
    except OSError:
        return False


def check_log(source: Source, options: RebuildOptions) -> None:
    """Refuse a log without its files, unless what is damaged is left out. StoreError: it has no
    records, or a file is missing between others.
    """
    listing = source.listing
    if not listing.files:
        raise StoreError(f"{listing.location} has no files of a commit log; nothing can be rebuilt")
    gaps = listing.gaps
    if gaps and not options.skip_damaged:
        start, end = gaps[0]
        raise StoreError(
            f"{listing.location}: the log's file from {start} to {end} is missing; bring it back, "
            "or give --skip-damaged to leave out what it held"
        )


def check_config(options: RebuildOptions) -> None:
    """Say early that ``--config`` is not there."""
    if options.config is not None and not os.path.isfile(options.config):
        raise ConfigError(f"option --config: {options.config} is not there")
