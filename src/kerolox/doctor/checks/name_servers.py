"""What name servers say: that they say the same, and that it is a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from kerolox.doctor.facts import (
    BrokerFacts,
    ClusterSnapshot,
    NameServerFacts,
    NameServerSnapshot,
    Node,
)
from kerolox.doctor.findings import Finding

NAMED_MAX = 3
"""Topics that one finding names."""


def check_name_servers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Brokers, routes and orders that some have and others don't. What only one of the two checks
    shows is a change under way."""
    answering = [
        each for each in snapshot.name_servers if each.first.info and each.second.info is not None
    ]
    missing = _missing(answering, "first") & _missing(answering, "second")
    doubles = {(node.cluster, node.broker_name, node.broker_id) for node in _doubles(snapshot)}
    for where, node in sorted(missing):
        if (node.cluster, node.broker_name, node.broker_id) in doubles:
            continue
        yield Finding(
            "name-servers-differ",
            where,
            f"{node} is registered at another name server, and not here",
            f"add {where} to namesrvAddr of the broker, or see in its log why it does not reach it;"
            " clients that ask here don't find it",
        )
    if not missing:
        yield from _routes(answering)
    yield from _orders(answering)


def _missing(name_servers: list[NameServerFacts], which: str) -> set[tuple[str, Node]]:
    known = {each.address: _nodes_of(getattr(each, which)) for each in name_servers}
    everything = set().union(*known.values())
    return {(where, node) for where, nodes in known.items() for node in everything - nodes}


def _nodes_of(snapshot: NameServerSnapshot) -> set[Node]:
    if snapshot.info is None:
        return set()
    return {
        Node(each.cluster, each.broker_name, broker_id, address)
        for each in snapshot.info.nodes()
        for broker_id, address in each.addresses.items()
    }


def _routes(name_servers: list[NameServerFacts]) -> Iterator[Finding]:
    if len(name_servers) < 2:
        return
    one, *others = name_servers
    for other in others:
        differing = _differing(one.first, other.first) & _differing(one.second, other.second)
        if differing:
            shown = ", ".join(sorted(differing)[:NAMED_MAX])
            more = f" and {len(differing) - NAMED_MAX} more" if len(differing) > NAMED_MAX else ""
            yield Finding(
                "routes-differ",
                other.address,
                f"routes differ from those of {one.address}: {shown}{more}",
                "brokers register all topics every 30 s: if it stays, update the topic (kerolox"
                " topic update), or delete it where it is left over",
            )


def _differing(one: NameServerSnapshot, other: NameServerSnapshot) -> set[str]:
    both = one.routes.keys() & other.routes.keys()
    changed = {topic for topic in both if one.routes[topic] != other.routes[topic]}
    return changed | (set(one.topics) ^ set(other.topics))


def _orders(name_servers: list[NameServerFacts]) -> Iterator[Finding]:
    if len(name_servers) < 2:
        return
    one, *others = name_servers
    for other in others:
        topics = one.second.orders.keys() | other.second.orders.keys()
        for topic in sorted(topics):
            here, there = other.second.orders.get(topic), one.second.orders.get(topic)
            if here != there:
                yield Finding(
                    "order-differs",
                    other.address,
                    f"the order of topic {topic} is {here or 'unknown'} here, and"
                    f" {there or 'unknown'} at {one.address}",
                    "set it at all name servers (kerolox topic create --order, mqadmin"
                    " updateOrderConf)",
                )


def check_brokers_known(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """That brokers are registered, each name and id once, and each name with a master."""
    answering = [each for each in snapshot.name_servers if each.second.info is not None]
    known = {each.address: _nodes_of(each.second) for each in answering}
    if answering and not any(known.values()):
        for where in known:
            yield Finding(
                "no-broker",
                where,
                "no broker is registered at the name server",
                "start a broker with this address in namesrvAddr, or see in its log why it can't"
                " register",
            )
        return
    yield from _twice(snapshot)
    yield from _without_master(set().union(*known.values()) if known else set())


def _doubles(snapshot: ClusterSnapshot) -> list[Node]:
    """Brokers of one name and id at several addresses, all of which answer under that name."""
    by_place: dict[tuple[str, int], dict[str, Node]] = defaultdict(dict)
    alive = {each.node.address: each for each in snapshot.brokers if each.settings is not None}
    seen = [node for each in snapshot.name_servers for node in _nodes_of(each.first)]
    seen += [node for each in snapshot.name_servers for node in _nodes_of(each.second)]
    for node in seen:
        by_place[node.broker_name, node.broker_id][node.address] = node
    for broker in snapshot.brokers:
        settings = broker.settings or {}
        name, broker_id = settings.get("brokerName", ""), settings.get("brokerId", "")
        if not broker.is_registered and broker_id.isdecimal():
            node = Node(settings.get("brokerClusterName", ""), name, int(broker_id), "")
            place = by_place[name, int(broker_id)]
            address = broker.node.address
            place[address] = Node(node.cluster, name, node.broker_id, address)
    return [
        node
        for (name, _), nodes in by_place.items()
        if len(nodes) > 1 and sum(_is(alive, address, name) for address in nodes) > 1
        for node in nodes.values()
    ]


def _is(alive: Mapping[str, BrokerFacts], address: str, name: str) -> bool:
    found = alive.get(address)
    return found is not None and (found.settings or {}).get("brokerName") == name


def _twice(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    places: dict[tuple[str, int], list[str]] = defaultdict(list)
    for node in _doubles(snapshot):
        places[node.broker_name, node.broker_id].append(node.address)
    for (name, broker_id), addresses in places.items():
        yield Finding(
            "two-brokers-of-one-name",
            min(addresses),
            f"brokers at {' and '.join(sorted(addresses))} both are {name} with id {broker_id}",
            "give one of them another brokerName, or make it a slave (brokerRole=SLAVE,"
            " brokerId=1); name servers take one of the two, now this one, now that",
        )
    doubled = {address for addresses in places.values() for address in addresses}
    for broker in snapshot.brokers:
        if not broker.is_registered and broker.settings and broker.node.address not in doubled:
            yield Finding(
                "not-registered",
                broker.node.address,
                f"broker {broker.settings.get('brokerName')!r} runs there, and no name server knows"
                " it under this address",
                "correct its namesrvAddr (it is"
                f" {broker.settings.get('namesrvAddr') or 'empty'}), or its brokerIP1",
            )


def _without_master(nodes: set[Node]) -> Iterator[Finding]:
    by_name: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_name[node.broker_name].append(node)
    for name, found in sorted(by_name.items()):
        if not any(node.is_master for node in found):
            yield Finding(
                "no-master",
                min(node.address for node in found),
                f"broker {name} has no master, only {', '.join(map(str, sorted(found)))}",
                "start its master, or make the slave one (kerolox broker promote); nothing can be"
                " sent there until then",
            )
