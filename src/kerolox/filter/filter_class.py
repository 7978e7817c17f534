"""Filters that are Java classes: filter servers compile them and run them (``MessageFilter``)."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.errors import ConfigError
from kerolox.text import wrong_type

CLASS_NAME_CHARACTERS_MAX = 255

SOURCE_BYTES_MAX = 1 << 20
"""Filter servers keep the source of each class of each group."""


@dataclass(frozen=True, slots=True)
class FilterClass:
    """A Java class that implements ``org.apache.rocketmq.common.filter.MessageFilter``.

    Clients send it to the filter servers that a topic's route names, behind each heartbeat, and
    pull from them instead of from the brokers. No broker of 4.3 or later starts a filter server.

    Args:
        name: with its package, as in ``com.example.OnlyPaid``.
        source: of the class, in Java; at most 1 MiB of UTF-8.

    Raises:
        ConfigError: one of them is empty or too long.
    """

    name: str
    source: str

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("source", self.source)):
            if not isinstance(text, str):
                raise ConfigError(f"{what} {wrong_type(text, 'str')}")
        if not self.name.strip() or len(self.name) > CLASS_NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"a filter class needs a name of at most {CLASS_NAME_CHARACTERS_MAX} characters,"
                f" with its package; this one is {self.name!r:.100}"
            )
        size = len(self.source.encode("utf-8", "replace"))
        if not self.source.strip() or size > SOURCE_BYTES_MAX:
            raise ConfigError(
                f"the source of filter class {self.name} has {size} bytes;"
                f" it needs 1 to {SOURCE_BYTES_MAX}"
            )
