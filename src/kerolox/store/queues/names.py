"""Names of topics and queues that folders can have."""

from __future__ import annotations

from kerolox.protocol.names import NAME_BYTES_MAX, TOPIC_BYTES_MAX

FOLDER_NAME_BYTES_MAX = NAME_BYTES_MAX
"""Longest name that a file system takes."""

_ILLEGAL_IN_NAMES = frozenset("/\0")


def check_queue_name(topic: str) -> bytes:
    """The topic as bytes when it can name a folder. Further queues of a record (multi-dispatch)
    need no more than that; see :func:`check_topic_name` for its own.
    """
    name = topic.encode("utf-8", "surrogatepass")
    if not name or len(name) > FOLDER_NAME_BYTES_MAX:
        raise ValueError(f"topic of {len(name)} bytes; 1 to {FOLDER_NAME_BYTES_MAX} wanted")
    if topic in {".", ".."} or not _ILLEGAL_IN_NAMES.isdisjoint(topic):
        raise ValueError(f"topic {topic!r} can't name a folder")
    return name


def check_topic_name(topic: str) -> bytes:
    """The topic as bytes when it can name a folder and fits a record."""
    name = check_queue_name(topic)
    if len(name) > TOPIC_BYTES_MAX:
        raise ValueError(f"topic of {len(name)} bytes; 1 to {TOPIC_BYTES_MAX} wanted")
    return name
