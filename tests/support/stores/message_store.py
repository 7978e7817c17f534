"""What the tests of the store share: small settings and short ways to put messages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Record
from kerolox.protocol.records import decode_records
from kerolox.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kerolox.kernel.values import Appended
    from kerolox.message import MessageExt

BORN_HOST = bytes([127, 0, 0, 1, 0, 0, 0x30, 0x39])
STORE_HOST = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])


def small_settings(folder: Path, **changes: Any) -> StoreSettings:
    """Settings with files small enough to roll in a test."""
    given: dict[str, Any] = {
        "store_path_root_dir": str(folder / "store"),
        "mapped_file_size_commit_log": 64 * 1024,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 50,
        "max_index_num": 400,
        "max_message_size": 32 * 1024,
    }
    return StoreSettings(**(given | changes))


@contextmanager
def opened(settings: StoreSettings) -> Iterator[MessageStore]:
    """A store that is closed at the end."""
    store = MessageStore(settings)
    store.open()
    try:
        yield store
    finally:
        store.close()


def put(
    store: MessageStore,
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    properties: bytes = b"",
    **changes: Any,
) -> Appended:
    """Append one message."""
    given: dict[str, Any] = {
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": BORN_HOST,
        "store_host": STORE_HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    given |= changes
    return store.append(Record(topic.encode(), queue_id, body=body, properties=properties, **given))


def read_messages(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
    """Every message of a queue, by as many reads as it takes."""
    messages: list[MessageExt] = []
    offset, end = store.queue_bounds(topic, queue_id)
    while offset < end:
        found = store.read(topic, queue_id, offset, 32, None)
        messages += decode_records(found.records)
        assert found.next_offset > offset
        offset = found.next_offset
    return messages


def crash(store: MessageStore) -> None:
    """Leave the files as a killed process would: no flush, no checkpoint, the abort file stays.

    Threads and descriptors are let go, which a kill does too.
    """
    store.files.is_sound = False
    store.close()
