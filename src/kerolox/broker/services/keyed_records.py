"""What the index knows of a key: whether a record was stored before, or waits."""

from __future__ import annotations

from kerolox.kernel.read import RecordReader
from kerolox.message import PropertyKey, property_value
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.protocol.records import RecordView, parse_record

RECORDS_MAX = 64
"""Records of one key that are examined (the index answers no more)."""


def records_of_key(
    store: RecordReader, topic: str, unique_key: str, *, start_ms: int = 0
) -> list[RecordView]:
    """The newest records of a topic with a ``UNIQ_KEY``, stored from a time on."""
    _, _, data = store.query_key(topic, unique_key, RECORDS_MAX, start_ms, LONG_MAX)
    wanted, key, position, found = topic.encode(), unique_key.encode(), 0, []
    while (each := parse_record(data, position, len(data))) is not None:
        position += each.size
        is_of_key = property_value(each.properties, PropertyKey.UNIQUE_KEY) == key
        if is_of_key and each.topic == wanted:
            found.append(each)
    return found
