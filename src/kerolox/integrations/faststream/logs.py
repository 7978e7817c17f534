"""Columns of FastStream's log lines."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

ID_CHARACTERS = 10
"""So many of a message's id are shown."""


class KeroloxParamsStorage(DefaultLoggerStorage):
    """How wide the columns are, by the subscribers that there are."""

    def __init__(self) -> None:
        """No subscriber yet."""
        super().__init__()
        self._topic_width, self._group_width = 4, 0
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """Of the logger that is made."""
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make the columns wide enough for a subscriber."""
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger, made once."""
        found = self._get_logger_ref()
        if found is not None:
            return found
        made = get_broker_logger(
            name="kerolox",
            default_context={"topic": "", "group": ""},
            message_id_ln=ID_CHARACTERS,
            fmt=(
                "%(asctime)s %(levelname)-8s - "
                f"%(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
                f"%(message_id)-{ID_CHARACTERS}s - %(message)s"
            ),
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(made)
        return made


make_logger = partial(make_logger_state, default_storage_cls=KeroloxParamsStorage)
"""The state of a broker's logging."""
