"""What brokers, clients and operators send to a name server, with types.

Headers of the codes 100 to 106, 205, 206, 216, 219, 224, 304, 311 to 313, 318, 319, 322 and 327;
the body of a registration is in :mod:`kerolox.protocol.registration`.
"""

from __future__ import annotations

from kerolox.protocol.headers import Header
from kerolox.protocol.names import Address, Int32, Int64, LongText, Name, TopicName

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-values that say how many queues of which brokers an ordered topic has."""

CONFLICTS_WITH = "conflictsWith"
"""Member of our name server's refusal of a registration: the address of the live broker that has
the place."""

CHALLENGED_BY = "challengedBy"
"""Member of its answer to that broker's next registration: who claimed the place."""


class KeyHeader(Header, frozen=True, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: Name
    key: Name


class KeyValueHeader(KeyHeader, frozen=True, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    value: LongText


class NamespaceHeader(Header, frozen=True, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: Name


class RegisterHeader(Header, frozen=True, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    ha_server_addr: Address
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    role_epoch: Int64 | None = None
    """Kerolox's own (:data:`~kerolox.protocol.extensions.roles.ROLE_EPOCH`); None: it has none."""
    successor: Address = ""
    """Kerolox's own (:data:`~kerolox.protocol.extensions.roles.SUCCESSOR`)."""
    heartbeat_timeout_millis: Int64 | None = None
    """It sends BROKER_HEARTBEAT, and is gone when it was silent for so long (of 5.x)."""


class BrokerAddressHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322)."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    broker_id: Int64


class HeartbeatHeader(Header, frozen=True, kw_only=True):
    """BROKER_HEARTBEAT (904), of 5.x."""

    broker_addr: Address


class RouteHeader(Header, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: TopicName
    accept_standard_json_only: bool = False


class BrokerNameHeader(Header, frozen=True, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: Name


class DeleteTopicHeader(Header, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: TopicName
    cluster_name: Name = ""


class ClusterHeader(Header, frozen=True, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: Name
