"""Deleting a topic: first on the masters that have it, then on every name server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.asking import all_answers, ask_each, beside, is_kerolox, listed, masters_of
from kerolox.admin.brokers import BrokerRequests
from kerolox.admin.topics import (
    TopicRequests,
    brokers_of,
    check_not_internal,
    order_entry,
)
from kerolox.client.aio.network.lookups import queue_number
from kerolox.client.core.checking import checked
from kerolox.errors import BrokerError, ClientError, KeroloxError, RemotingError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import Perm, RequestCode
from kerolox.protocol.extensions.dead_letter_marks import DONE_GROUP, run_groups
from kerolox.protocol.headers import UpdateConsumerOffsetHeader
from kerolox.protocol.names import DLQ_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

REST_SECONDS_MAX = 10.0
"""How long a deletion waits for a topic to come to rest. What still comes then, of delayed messages
and of transactions, is little."""
PRODUCERS_SECONDS = 31.0
"""How long producers take to see that a topic takes nothing: their ``pollNameServerInterval`` is 30
s. A broker that makes topics by itself would make one anew in the middle of its deletion."""
POLL_SECONDS = 0.1
STABLE_POLLS = 3
"""After so many checks of the same offsets no message is on its way to a queue any more."""

_Offsets = dict[MessageQueue, int]


@checked()
class TopicDeletionRequests(BrokerRequests, TopicRequests):
    """Deletes topics."""

    async def delete_topic(self, topic: str, *, cluster: str = "") -> list[str]:
        """Delete a topic on the masters that have it and on all name servers (codes 215 and 216);
        the addresses of those masters. Its messages stay in the commit log until that is
        cleaned.

        It first has a broker of RocketMQ refuse messages of the topic, and waits
        ``REST_SECONDS_MAX`` until all that it has are in their queues. One that writes to a queue
        while its topic is deleted writes to unmapped memory, which ends its process. Where messages
        came just then, and the broker has ``autoCreateTopicEnable``, it is given
        ``PRODUCERS_SECONDS`` too.

        Args:
            topic: its name.
            cluster: only there; empty: everywhere.

        Raises:
            TopicRouteNotFoundError: no name server knows it.
            MessageRejectedError: it is RocketMQ's own.
            ClientError: no such cluster; or a broker that has it is without its master: nothing was
                done; or a master or name server refused or did not answer: the text says where it
                is deleted and where not. Another run finishes it.
            RemotingError: no name server answers.
        """
        check_not_internal(topic)
        brokers, unasked = await brokers_of(self.access, topic)
        if cluster:
            (await self.cluster_info()).masters(cluster)  # names the clusters when it is unknown
        masters = sorted(masters_of(brokers, cluster))
        if cluster and not masters:
            raise ClientError(f"topic {topic!r} is not in cluster {cluster!r}")
        named = {each.broker_name for each in brokers if cluster in ("", each.cluster)}
        headless = sorted(named.difference(masters_of(brokers, cluster).values()))
        if headless:
            # It has the topic still, and nobody could find it there any more.
            raise ClientError(
                f"topic {topic!r} was not deleted: the master of broker "
                f"{', '.join(headless)} is not registered; run the command again when it is, or "
                "when its slaves have stopped, too"
            )
        deleted, failed = await ask_each(masters, lambda address: self._delete(address, topic))
        if failed:
            # A broker that has it would bring it back to every name server.
            raise ClientError(
                f"topic {topic!r} could not be deleted on broker {listed(failed)}"
                f"{beside('it is deleted on', deleted)}, and still known to the name servers; "
                "run the command again when all answer"
            )
        forgot, failed = await ask_each(
            self.access.name_servers, lambda a: _forget(self.access, a, topic, cluster)
        )
        failed = unasked | failed
        if failed:
            raise ClientError(
                f"topic {topic!r} could not be deleted at name server {listed(failed)}"
                f"{beside('it is deleted on', [*deleted, *forgot])}; run the command again when "
                "all answer, or name only those that do (-n)"
            )
        return masters

    async def _delete(self, address: str, topic: str) -> None:
        """Delete a topic on one master; one that refuses has it as before."""
        fields = {"topic": topic}
        old = None
        if not await is_kerolox(self, address):
            old = await self.topic_settings(address, topic)
        if old is None:
            await self.access.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
            return
        # RocketMQ takes messages whatever the permission is, but none for a queue that is not
        # there.
        closed = msgspec.structs.replace(
            old, perm=old.perm & ~Perm.WRITE, read_queue_nums=0, write_queue_nums=0
        )
        queue_count = max(old.read_queue_nums, old.write_queue_nums)
        queues = [MessageQueue(topic, "", queue_id) for queue_id in range(queue_count)]
        try:
            before = await _offsets(self.access, address, queues)
            await asyncio.sleep(POLL_SECONDS)
            await self.access.put_topic(address, closed)
            if await self._at_rest(address, queues) != before:
                settings = await self.broker_settings(address)
                if settings.get("autoCreateTopicEnable") != "false":
                    await asyncio.sleep(PRODUCERS_SECONDS)
                    await self._at_rest(address, queues)
            await self.access.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
            if topic.startswith(DLQ_PREFIX):
                await _forget_marks(self.access, address, queues)
        except RemotingError:
            raise  # It may have done what it was asked; to put the topic back would make it anew.
        except BaseException:
            with contextlib.suppress(KeroloxError):
                await self.access.put_topic(address, old)
            raise

    async def _at_rest(self, address: str, queues: list[MessageQueue]) -> _Offsets:
        """Wait until no message is on its way to the log, and all of the log are in their
        queues, or the time is over; the offsets when they stood still.
        """
        polls, end = 0, 0
        now: _Offsets = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS_MAX):
                while polls < STABLE_POLLS:
                    await asyncio.sleep(POLL_SECONDS)
                    before, now = now, await _offsets(self.access, address, queues)
                    polls = polls + 1 if now == before else 0
                while True:
                    # Java's has no metrics in its first seconds.
                    with contextlib.suppress(BrokerError):
                        runtime = await self.broker_runtime(address)
                        end = end or runtime.log_max_offset
                        if runtime.log_max_offset - runtime.dispatch_behind_bytes >= end:
                            break
                    await asyncio.sleep(POLL_SECONDS)
        return now


async def _forget_marks(access: Access, address: str, queues: list[MessageQueue]) -> None:
    """Forget which dead letters are done: a RocketMQ broker keeps the offsets of a topic that it
    deletes, and they would count for letters of one that is made again."""
    for queue in queues:
        for group in (DONE_GROUP, run_groups(1)[1]):
            header = UpdateConsumerOffsetHeader(
                consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=0
            )
            await access.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())


async def _offsets(access: Access, address: str, queues: list[MessageQueue]) -> _Offsets:
    async def offset(queue: MessageQueue) -> int:
        code = RequestCode.GET_MAX_OFFSET
        return await queue_number(access, queue, code, "offset", address=address)

    return await all_answers(queues, offset)


async def _forget(access: Access, name_server: str, topic: str, cluster: str) -> None:
    fields = {"topic": topic, "clusterName": cluster or None}
    await access.ask(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
    if not cluster:
        await access.ask(name_server, RequestCode.DELETE_KV_CONFIG, order_entry(topic))
