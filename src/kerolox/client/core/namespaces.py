"""Namespaces: tenants of one cluster, told apart by a prefix of names (``NamespaceUtil``).

Topic ``Orders`` of namespace ``ns`` is ``ns%Orders`` to brokers and name servers, group ``g`` is
``ns%g`` and its retry topic ``%RETRY%ns%g``. Names that belong to RocketMQ itself are the same in
all namespaces. A client puts the prefix before the names that its user gives and takes it off
those that it shows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_reserved_group, is_system_topic

if TYPE_CHECKING:
    from kerolox.message import MessageQueue

SEPARATOR = "%"

_INSTANCE_ENDPOINT = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\..*")


def with_namespace(namespace: str, name: str) -> str:
    """A topic's or group's name as brokers know it; as it is when there is no namespace.

    RocketMQ's own names, and those that have the prefix already, stay as they are.
    """
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = _split(name)
    start = namespace + SEPARATOR
    return name if rest.startswith(start) else f"{prefix}{start}{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """The inverse of :func:`with_namespace`; names of other namespaces stay as they are."""
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = _split(name)
    start = namespace + SEPARATOR
    return prefix + rest.removeprefix(start) if rest.startswith(start) else name


def queue_with_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as brokers know it."""
    if not namespace:
        return queue
    return queue._replace(topic=with_namespace(namespace, queue.topic))


def queue_without_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as the user knows it."""
    if not namespace:
        return queue
    return queue._replace(topic=without_namespace(namespace, queue.topic))


def namespace_of_endpoint(name_server: str) -> str:
    """The namespace that an instance's address implies: that of ``http://MQ_INST_1_b.host:80``
    is ``MQ_INST_1_b``; other addresses imply none."""
    match = _INSTANCE_ENDPOINT.fullmatch(name_server.strip())
    return match[1] if match else ""


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system_name(name: str) -> bool:
    return is_system_topic(name) or is_reserved_group(name)
