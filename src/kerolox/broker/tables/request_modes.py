"""How groups consume whose members leave it to the broker: ``config/messageRequestMode.json``
(``MessageRequestModeManager``)."""

from __future__ import annotations

from typing import Final

from kerolox.broker.config import BrokerSettings
from kerolox.broker.errors import system_error
from kerolox.broker.tables.json_file import JsonFile
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.protocol.request_modes import MessageRequestMode, MessageRequestModes

MODES_MAX = 100_000
"""Pairs of a group and a topic."""

FILE = "messageRequestMode.json"

POP: Final = "POP"


class RequestModes:
    """By topic and group."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Nobody said anything."""
        self._settings = settings
        self._modes: dict[str, dict[str, MessageRequestMode]] = {}
        self._count = 0
        folder = settings.current.config_folder
        self._file = JsonFile(folder / FILE, self.table)

    def load(self) -> None:
        """Read the file; StoreError: it is broken and so is its backup."""
        loaded = self._file.load(MessageRequestModes)
        if loaded is not None:
            self.replace(loaded)

    def replace(self, table: MessageRequestModes) -> None:
        """Take over all, as a master has it."""
        self._modes = {
            topic: dict(groups) for topic, groups in table.message_request_mode_map.items()
        }
        self._count = sum(map(len, self._modes.values()))
        self._file.touch()

    def table(self) -> MessageRequestModes:
        """All of it."""
        copied = {topic: dict(groups) for topic, groups in self._modes.items()}
        return MessageRequestModes(message_request_mode_map=copied)

    def get(self, topic: str, group: str) -> MessageRequestMode:
        """What holds for a group and a topic. Retries that are pulled are pulled always."""
        found = self._modes.get(topic, {}).get(group)
        if found is not None:
            return found
        config = self._settings.current
        is_pop = config.default_message_request_mode == POP and not topic.startswith(RETRY_PREFIX)
        return MessageRequestMode(
            consumer_group=group,
            topic=topic,
            mode=POP if is_pop else "PULL",
            pop_share_queue_num=config.default_pop_share_queue_num if is_pop else 0,
        )

    async def put(self, mode: MessageRequestMode) -> None:
        """An operator says it; it is in the file when this returns, or is tried again later after
        an OSError. BrokerError, code 1: there are ``MODES_MAX`` others.
        """
        groups = self._modes.get(mode.topic, {})
        if mode.consumer_group not in groups:
            if self._count >= MODES_MAX:
                raise system_error(
                    f"{MODES_MAX} groups have a mode of consuming already; that of "
                    f"{mode.consumer_group} for {mode.topic} is not taken"
                )
            self._count += 1
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._file.touch()
        await self._file.persist()

    async def persist(self) -> None:
        """Write the file if it lacks a change."""
        await self._file.persist()
