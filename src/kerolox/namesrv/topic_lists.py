"""The lists of topics that operators ask a name server for, some names at a time."""

from __future__ import annotations

from collections.abc import Iterator

from kerolox.namesrv.route_table import RouteTable
from kerolox.protocol.codes import RequestCode

_UNIT = 1
_UNIT_SUBSCRIPTION = 2

UNIT_FLAGS = {
    RequestCode.GET_UNIT_TOPIC_LIST: (_UNIT, _UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (_UNIT_SUBSCRIPTION, _UNIT_SUBSCRIPTION),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (
        _UNIT | _UNIT_SUBSCRIPTION,
        _UNIT_SUBSCRIPTION,
    ),
}
"""Code → (bits of a topic's system flag that count, what they are of the topics in the list): those
of a unit, those that a unit subscribes to, and of these those of no unit."""


def topics_of_cluster(routes: RouteTable, cluster: str) -> Iterator[list[str]]:
    """Topics with queues on any broker of a cluster; none for an unknown one."""
    names = routes.clusters.get(cluster, set())
    return routes.topic_names(lambda queues: any(each.broker_name in names for each in queues))


def system_topics(routes: RouteTable) -> tuple[list[str], str | None]:
    """Names of clusters and brokers (each is a topic too), and the address of some broker."""
    names: dict[str, None] = {}
    for cluster, broker_names in routes.clusters.items():
        names[cluster] = None
        names.update(dict.fromkeys(sorted(broker_names)))
    address = next((a for b in routes.brokers.values() for a in b.addresses.values()), None)
    return list(names), address


def unit_topics(routes: RouteTable, code: int) -> Iterator[list[str]]:
    """Topics of units, by the code of the list (``UNIT_FLAGS``). The flag of a topic's first broker
    counts, as in RocketMQ."""
    bits, wanted = UNIT_FLAGS[RequestCode(code)]
    return routes.topic_names(lambda queues: queues[0].topic_sys_flag & bits == wanted)
