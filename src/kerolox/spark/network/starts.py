"""Offsets that options mean and only brokers can tell: those of a time, and those of a group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.spark.bounds import Beyond, Bound, OffsetBound, Since
from kerolox.spark.positions.offsets import Offsets, check_queues, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.message import MessageQueue
    from kerolox.spark.network.cluster import ClusterView
    from kerolox.spark.options import SourceOptions
    from kerolox.spark.positions.offsets import Bounds

_log = logging.getLogger(__name__)


def resolved(
    bound: OffsetBound,
    held: Mapping[MessageQueue, Bounds],
    cluster: ClusterView,
    options: SourceOptions,
    *,
    option: str,
) -> Offsets:
    """Offsets for exactly the queues of ``held``.

    Args:
        bound: what the options say.
        cluster: is asked for times and offsets of the group; waits for brokers that are away.
        option: which of them says ``bound``, for errors.

    Raises:
        ConfigError: queues are left out or do not exist; no message is that new, and
            ``startingOffsetsByTimestampStrategy`` is error.
        RemotingError, BrokerError: a broker is away for too long, or refuses.
    """
    if bound is Bound.GROUP:
        return _of_group(held, cluster, options.consumer_group)
    if not isinstance(bound, Since):
        return resolve(bound, held, option=option)
    times = bound.times
    if isinstance(times, int):
        times = dict.fromkeys(held, times)
    else:
        check_queues(times, held, option=bound.option, advice="a time")
    found = cluster.first_since(times, held, options.consumer_group)
    if bound.option.startswith("starting") and options.beyond is Beyond.ERROR:
        _refuse_beyond(found, times, held, bound.option)
    return found


def _refuse_beyond(
    found: Offsets,
    times: Mapping[MessageQueue, int],
    held: Mapping[MessageQueue, Bounds],
    option: str,
) -> None:
    for queue, offset in sorted(found.items()):
        if offset >= held[queue].maximum:
            raise ConfigError(
                f"option {option}: {queue.topic} queue {queue.queue_id} on {queue.broker_name} has "
                f"no message since {times[queue]} ms; use an earlier time, or option "
                "startingOffsetsByTimestampStrategy=latest to start there at the end"
            )


def _of_group(held: Mapping[MessageQueue, Bounds], cluster: ClusterView, group: str) -> Offsets:
    committed = cluster.committed(held, group)
    missing = held.keys() - committed.keys()
    if missing:
        _log.info(
            "group %s has no offset of %d queues of %d, which are read from their first message",
            group,
            len(missing),
            len(held),
        )
    return {queue: committed.get(queue, now.minimum) for queue, now in held.items()}
