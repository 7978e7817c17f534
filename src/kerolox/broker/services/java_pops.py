"""Whether a Java 5 broker left out messages in a store, and their taking over before pops begin."""

from __future__ import annotations

import logging

from kerolox.broker.base import Base
from kerolox.broker.tables.tables import Tables
from kerolox.protocol.names import REVIVE_TOPIC_PREFIX

KV_FOLDER = "kvStore"
"""Where a Java broker with ``popConsumerKVServiceEnable`` keeps what is out, by RocksDB."""

_log = logging.getLogger(__name__)


async def take_over(base: Base, tables: Tables) -> None:
    """Have what a Java broker left out be out here; to be awaited before pops begin."""
    _warn_of_rocksdb(base)
    queues = [
        (name, queue_id)
        for name in tables.topics.names
        if name.startswith(REVIVE_TOPIC_PREFIX) and (topic := tables.topics.get(name)) is not None
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
    ]
    if queues:
        from kerolox.broker.services.java_pop_reader import JavaPopReader

        await JavaPopReader(base, tables, queues).run()


def _warn_of_rocksdb(base: Base) -> None:
    folder = base.config.store_path_root_dir / KV_FOLDER
    if any(folder.glob("*.sst")) or any(folder.glob("*.log")):
        _log.warning(
            "%s is of a RocketMQ broker with popConsumerKVServiceEnable=true: what that has out is "
            "not known here, and does not come again; start RocketMQ again and have it write that "
            "to its revive log (mqadmin exportPopRecord) before this broker takes the store",
            folder,
        )
