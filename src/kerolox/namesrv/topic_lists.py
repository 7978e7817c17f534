"""The lists of topics that operators ask a name server for, some names at a time."""

from __future__ import annotations

from collections.abc import Iterator

from kerolox.namesrv.route_table import RouteTable

_UNIT = 1
_UNIT_SUBSCRIPTION = 2


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


def unit_topics(routes: RouteTable) -> Iterator[list[str]]:
    """Topics of a unit. This one and the next go by the flag of each topic's first broker, as
    RocketMQ does."""
    return routes.topic_names(lambda queues: queues[0].topic_sys_flag & _UNIT != 0)


def unit_subscribed_topics(routes: RouteTable) -> Iterator[list[str]]:
    """Topics that a unit subscribes to."""
    return routes.topic_names(lambda queues: queues[0].topic_sys_flag & _UNIT_SUBSCRIPTION != 0)


def unit_subscribed_topics_of_no_unit(routes: RouteTable) -> Iterator[list[str]]:
    """Topics that a unit subscribes to and that are of no unit."""
    both = _UNIT | _UNIT_SUBSCRIPTION
    return routes.topic_names(lambda queues: queues[0].topic_sys_flag & both == _UNIT_SUBSCRIPTION)
