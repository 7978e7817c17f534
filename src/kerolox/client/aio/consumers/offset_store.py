"""Where a consumer keeps how far it has come: at the brokers, in a local file, or in a store of
the user's.

All have an :class:`OffsetTable` in memory that listeners update; ``persist`` brings it to its
place. Clustering consumers use the brokers (the group shares its offsets), broadcasting ones a file
``{folder}/{client id}/{group}/offsets.json`` with a ``.bak`` beside it, as RocketMQ writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kerolox.client.core.consuming.offsets import (
    Lookup,
    OffsetTable,
    decode_local_offsets,
    encode_local_offsets,
    start_position,
)
from kerolox.client.core.failures import note_failure
from kerolox.client.core.namespaces import queue_without_namespace
from kerolox.client.threads import to_thread
from kerolox.errors import (
    BrokerError,
    ClientError,
    KeroloxError,
    NotFoundError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.message import ConsumeFromWhere, MessageModel
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.member_offsets import MEMBER_FIELD

if TYPE_CHECKING:
    from kerolox.client.aio.consumer_settings import ConsumerSettings, SubscriberSettings
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.query import ClusterQueries
    from kerolox.client.core.consuming.offsets import OffsetStorage
    from kerolox.client.core.failures import FailureCallback
    from kerolox.message import MessageQueue

OFFSETS_IN_FLIGHT_MAX = 64
"""Offsets on their way to one broker at the same time."""

TIMESTAMP_BACK_MS = 30 * 60 * 1000
"""A group that starts at a time, and names none, starts so long before its own start."""

_log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """The offsets of one member of a group."""

    table: OffsetTable

    async def load(self, queue: MessageQueue) -> int:
        """The stored offset, or -1; it is put into the table. KeroloxError: it could not be found
        out.
        """

    async def persist(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Store the offsets of these queues, others in the table are left alone; ``wait``: return
        only then. Failures are logged, the next time will do.
        """


async def start_offset(
    client: ClusterQueries,
    offsets: OffsetStore,
    queue: MessageQueue,
    settings: SubscriberSettings,
    start_ms: int,
) -> int:
    """Where a consumer that was started at ``start_ms`` starts to read a queue; KeroloxError: it
    could not be found out.
    """
    stored = await offsets.load(queue)
    start = start_position(queue.topic, stored, ConsumeFromWhere(settings.consume_from_where))
    if start.lookup is Lookup.MAX_OFFSET:
        return await client.max_offset(queue)
    if start.lookup is Lookup.OFFSET_BY_TIME:
        given = settings.consume_timestamp_ms
        timestamp = given if given is not None else start_ms - TIMESTAMP_BACK_MS
        return await client.offset_by_time(queue, timestamp)
    return start.offset


async def store_offset(cluster: Cluster, group: str, queue: MessageQueue, offset: int) -> None:
    """Store a group's offset of a queue at its broker; KeroloxError: that refused, or did not
    answer.
    """
    address = await cluster.read_address_of(queue.topic, queue.broker_name)
    fields = _offset_fields(group, queue, offset)
    await cluster.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def _offset_fields(group: str, queue: MessageQueue, offset: int) -> dict[str, object]:
    return {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "commitOffset": offset,
    }


class BrokerOffsets:
    """The group's offsets at the brokers (``RemoteBrokerOffsetStore``)."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.table = OffsetTable()
        self._cluster = cluster
        self._group = group
        self._storing = asyncio.Lock()
        """So that what is stored last is what was asked for last: a Java broker has several
        threads for offsets."""

    async def load(self, queue: MessageQueue) -> int:
        """Ask the broker."""
        address = await self._cluster.read_address_of(queue.topic, queue.broker_name)
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
        }
        try:
            response = await self._cluster.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except NotFoundError:
            return -1
        try:
            offset = int(response.ext_fields["offset"])
        except (KeyError, ValueError):
            raise RemoteProtocolError(f"the answer of {address} has no offset") from None
        self.table.update(queue, offset, increase_only=False)
        return offset

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets, to all brokers at the same time, some of each; KeroloxError: the
        first failure; others may be stored.
        """
        places = asyncio.Semaphore(OFFSETS_IN_FLIGHT_MAX)

        async def store(queue: MessageQueue, offset: int) -> None:
            async with places:
                await store_offset(self._cluster, self._group, queue, offset)

        found = await asyncio.gather(
            *(store(*each) for each in offsets.items()), return_exceptions=True
        )
        for failure in filter(None, found):
            raise failure

    async def persist(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Send them one-way, or wait for the answers, after those that are waited for already; to
        all brokers at the same time, and to none for longer than one request may take."""
        async with self._storing if wait else contextlib.nullcontext():
            of_brokers: dict[str, list[tuple[MessageQueue, int]]] = {}
            for queue, offset in self.table:
                address = self._cluster.read_address(queue.broker_name) if queue in queues else None
                if address is not None:
                    of_brokers.setdefault(address, []).append((queue, offset))
            await asyncio.gather(*(self._send(*each, wait=wait) for each in of_brokers.items()))

    async def _send(
        self, address: str, offsets: list[tuple[MessageQueue, int]], *, wait: bool
    ) -> None:
        """Store the offsets of one broker's queues, some at a time."""
        left, most = list(offsets), OFFSETS_IN_FLIGHT_MAX
        failure: Exception | None = None
        try:
            async with asyncio.timeout(self._cluster.timeout_seconds):
                while left and failure is None:
                    sending = (self._send_one(address, *each, wait=wait) for each in left[:most])
                    failures = await asyncio.gather(*sending)
                    failure = next(filter(None, failures), None)
                    del left[:most]
        except TimeoutError:
            failure = RequestTimeoutError("no time is left")
        if failure is not None:
            # Where one request found no way the others find none: the next time will do.
            what = f"not all offsets of {len(offsets)} queues were stored at {address}"
            note_failure(self._cluster.on_failure, _log, what, failure)

    async def _send_one(
        self, address: str, queue: MessageQueue, offset: int, *, wait: bool
    ) -> KeroloxError | None:
        """Store one offset; the error, unless it is the broker's word on this queue alone."""
        fields = _offset_fields(self._group, queue, offset)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        try:
            if wait:
                await self._cluster.ask(address, code, {**fields, MEMBER_FIELD: True})
            else:
                command = RemotingCommand.request(code, fields, oneway=True)
                await self._cluster.remoting.invoke_oneway(address, command)
        except BrokerError as error:
            what = f"offset {offset} of {queue} was not stored"
            note_failure(self._cluster.on_failure, _log, what, error)
        except KeroloxError as error:
            return error
        return None


class LocalOffsets:
    """Offsets in a local file (``LocalFileOffsetStore``)."""

    def __init__(
        self,
        folder: Path,
        client_id: str,
        group: str,
        on_failure: FailureCallback | None = None,
    ) -> None:
        """``on_failure``: told when the file can't be written."""
        self._on_failure = on_failure
        self.table = OffsetTable()
        self.path = folder / client_id / group / "offsets.json"

    async def load(self, queue: MessageQueue) -> int:
        """Read the file."""
        offset = self._read().get(queue, -1)
        if offset >= 0:
            self.table.update(queue, offset, increase_only=False)
        return offset

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write these offsets into the file; ClientError: it can't be read or written."""
        try:
            self._write({**self._read(), **offsets})
        except OSError as error:
            raise ClientError(f"offsets were not stored in {self.path}: {error}") from error

    async def persist(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write the file; what it says of other queues stays. It is small and always waited for."""
        changed = {queue: offset for queue, offset in self.table if queue in queues}
        if not changed:
            return
        try:
            self._write({**self._read(), **changed})
        except (OSError, ClientError) as error:
            what = f"offsets were not stored in {self.path}"
            note_failure(self._on_failure, _log, what, error, is_expected=True)

    def _read(self) -> dict[MessageQueue, int]:
        """What the file says, else its backup; nothing when neither is there; ClientError: both are
        unreadable.
        """
        backup = self.path.with_name(self.path.name + ".bak")
        failure: ClientError | None = None
        for path in (self.path, backup):
            try:
                data = path.read_bytes()
                if data:
                    return decode_local_offsets(data)
            except FileNotFoundError:
                continue
            except (OSError, ClientError) as error:
                failure = ClientError(f"{path}: {error}; move it away to start anew")
        if failure is not None:
            raise failure
        return {}

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".tmp")
        fresh.write_bytes(encode_local_offsets(offsets))
        if self.path.exists():
            os.replace(self.path, self.path.with_name(self.path.name + ".bak"))
        os.replace(fresh, self.path)


StoredOffsets = BrokerOffsets | LocalOffsets
"""RocketMQ's two ways."""


def stored_offsets(
    settings: ConsumerSettings, cluster: Cluster, own_id: str, group: str
) -> StoredOffsets:
    """Where RocketMQ keeps the offsets of a member: in a file of its own when broadcasting."""
    if settings.message_model is MessageModel.BROADCASTING:
        return LocalOffsets(settings.local_offset_folder, own_id, group, settings.on_failure)
    return BrokerOffsets(cluster, group)


class CustomOffsets:
    """Keeps a member's offsets in an :class:`OffsetStorage`."""

    def __init__(
        self,
        storage: OffsetStorage,
        namespace: str,
        on_failure: FailureCallback | None = None,
    ) -> None:
        """``on_failure``: told of what the storage raises."""
        self._on_failure = on_failure
        self.table = OffsetTable()
        self._storage = storage
        self._namespace = namespace

    async def load(self, queue: MessageQueue) -> int:
        """Ask the store."""
        offset = await _call(self._storage.load, queue_without_namespace(self._namespace, queue))
        if offset is None:
            return -1
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ClientError(
                f"the offset store gave {offset!r} for {queue}; it must give a number or None"
            )
        if offset >= 0:
            self.table.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Give the store the offsets of these queues; it is always waited for."""
        changed = {
            queue_without_namespace(self._namespace, queue): offset
            for queue, offset in self.table
            if queue in queues
        }
        if not changed:
            return
        try:
            await _call(self._storage.store, changed)
        except KeroloxError as error:
            what = f"offsets of {len(changed)} queues were not stored"
            note_failure(self._on_failure, _log, what, error)


async def _call(function: Callable[..., object], argument: object) -> object:
    """Call an async method here, a plain one in a thread, since it waits for something;
    ClientError: it failed.
    """
    try:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        result = await to_thread(function, argument)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ClientError(f"{name} of the offset store failed: {error!r}") from error
