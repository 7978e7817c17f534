"""Where brokers take clients of RocketMQ 5: how name servers come to hand it out.

A registration has a list of filter servers. Name servers of RocketMQ keep it by the broker's
address, give it with each route (``filterServerTable``), replace it at each registration and forget
it with the broker. There are no filter servers since RocketMQ 4.3, and only consumers that filter
by a class of Java look for them. So a broker with a port for gRPC registers one entry there,
``grpc://host:port``.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIX = "grpc://"


def grpc_entry(address: str) -> str:
    """The entry of a broker that takes gRPC at ``host:port``."""
    return _PREFIX + address


def is_grpc_entry(text: str) -> bool:
    """Whether it is such an entry, and no filter server."""
    return text.startswith(_PREFIX)


def grpc_address(entries: Iterable[str]) -> str | None:
    """The address of a broker that registered these, unchecked; None: it has no port for gRPC."""
    return next((each.removeprefix(_PREFIX) for each in entries if is_grpc_entry(each)), None)
