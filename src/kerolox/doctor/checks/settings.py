"""Settings of brokers: those that hurt, and those that should be the same in a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from kerolox.doctor.facts import ClusterSnapshot
from kerolox.doctor.findings import Finding
from kerolox.protocol.codes import Perm
from kerolox.text import time_text

SAME_IN_CLUSTER = (
    "maxMessageSize",
    "messageDelayLevel",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "enablePropertyFilter",
    "aclEnable",
    "traceTopicEnable",
)
"""What clients meet on whatever broker they are led to."""


def check_broker_settings(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Of all brokers that say theirs."""
    for each in snapshot.brokers:
        if each.settings is not None:
            yield from hurtful_settings(each.node.address, each.settings, snapshot.now_ms)
    yield from _differing(snapshot)


def hurtful_settings(where: str, settings: Mapping[str, str], now_ms: int) -> Iterator[Finding]:
    """Settings of a broker or a file, texts by RocketMQ's names, that are taken and hurt; what is
    missing has its default.
    """
    permission = _whole(settings, "brokerPermission")
    both = Perm.READ | Perm.WRITE
    if permission is not None and permission & both != both:
        yield Finding(
            "broker-permission",
            where,
            f"brokerPermission is {permission}: clients may not {_forbidden(permission)} there",
            "set it to 6, unless the broker is to be retired",
        )
    accepts_ms = _whole(settings, "startAcceptSendRequestTimeStamp")
    if accepts_ms is not None and accepts_ms > now_ms:
        yield Finding(
            "sends-not-accepted",
            where,
            f"the broker takes no messages before {time_text(accepts_ms)}"
            " (startAcceptSendRequestTimeStamp)",
            "set it to 0",
        )
    if settings.get("longPollingEnable") == "false":
        yield Finding(
            "long-polling-off",
            where,
            "longPollingEnable is false: each message waits up to a second, and consumers ask all"
            " the time",
            "set it to true",
        )
    silent_ms = _whole(settings, "haHousekeepingInterval")
    beat_ms = _whole(settings, "haSendHeartbeatInterval")
    if silent_ms is not None and beat_ms is not None and silent_ms <= beat_ms:
        yield Finding(
            "ha-heartbeats-rare",
            where,
            f"haSendHeartbeatInterval ({beat_ms}) is not below haHousekeepingInterval"
            f" ({silent_ms}): a slave without traffic is cut off again and again",
            "set them back to 5000 and 20000",
        )


def _differing(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    for key in SAME_IN_CLUSTER:
        by_cluster: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for each in snapshot.brokers:
            value = (each.settings or {}).get(key)
            if value is not None and each.is_registered:
                by_cluster[each.node.cluster][value].append(each.node.address)
        for cluster, values in by_cluster.items():
            if len(values) > 1:
                text = "; ".join(f"{_short(value)}: {', '.join(values[value])}" for value in values)
                yield Finding(
                    "settings-differ",
                    cluster,
                    f"{key} differs among the brokers of the cluster ({text})",
                    "set it to the same everywhere: what a client may do depends on the broker that"
                    " it is led to",
                )


def _forbidden(permission: int) -> str:
    if permission & Perm.READ:
        return "write"
    return "read" if permission & Perm.WRITE else "read or write"


def _short(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]}..."


def _whole(settings: Mapping[str, str], key: str) -> int | None:
    text = settings.get(key, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
