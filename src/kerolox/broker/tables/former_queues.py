"""Where a message goes whose topic lost the queue that it is for.

Delayed messages, and the halves of transactions, say which queue they are for when they are stored,
and come to it later. By then the topic may have fewer queues. RocketMQ stores such a message in the
queue that it names, which nobody reads and no lag shows.
"""

from __future__ import annotations

import logging

from kerolox.broker.tables.topics import TopicTable
from kerolox.protocol.bodies import TopicConfig

LOGGED_MAX = 10_000
"""Topics that the log was told of; beyond it they are notified of anew."""

_log = logging.getLogger(__name__)


class FormerQueues:
    """The queues that topics have now. It logs a topic that lost some, once."""

    def __init__(self, topics: TopicTable) -> None:
        """Nothing was reported yet."""
        self._topics = topics
        self._logged: set[tuple[str, int]] = set()

    def queue_now(self, topic: str, queue_id: int) -> int:
        """The queue for a message that is for a queue of a topic: that one, as long as consumers
        read it, else ``queue_id`` modulo the queues of :func:`queues_for_former`. So messages of
        one lost queue stay together, in their order.

        A topic that is not there gets it in the queue that it names, as in RocketMQ: it is read
        when the topic is made again with so many queues.
        """
        known = self._topics.get(topic)
        if known is None:
            self._log_once(
                topic,
                -1,
                "topic %s is gone: a message that waited for its queue %d is stored there, and "
                "nobody gets it; create the topic again to have it read",
                queue_id,
            )
            return queue_id
        if 0 <= queue_id < known.read_queue_nums:
            return queue_id
        queues = queues_for_former(known)
        if not queues:
            self._log_once(
                topic,
                0,
                "topic %s has no queue: a message that waited for its queue %d is stored there, "
                "and nobody gets it; give the topic queues again to have it read",
                queue_id,
            )
            return queue_id
        self._log_once(
            topic,
            queues,
            "topic %s has lost queue %d, for which messages waited; such messages go to the queue "
            "that is their number modulo %d",
            queue_id,
            queues,
        )
        return queue_id % queues

    def _log_once(self, topic: str, queues: int, text: str, *details: int) -> None:
        if (topic, queues) in self._logged:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged.add((topic, queues))
        _log.warning(text, topic, *details)


def queues_for_former(topic: TopicConfig) -> int:
    """How many queues, from 0 on, share the messages of those that a topic lost: those that are
    read and written, or else only read, or only written."""
    read, write = max(topic.read_queue_nums, 0), max(topic.write_queue_nums, 0)
    return min(read, write) or read or write
