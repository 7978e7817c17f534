"""What ``kerolox up`` and each of its brokers say to each other: a line of JSON each way, over a
socket that is the broker's stdin. Its end means that the other one is gone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

LINE_BYTES_MAX = 1 << 20
"""Of one line; a settings file has no more."""


class _JsonLine:
    """One of both lines."""

    __slots__ = ()

    def encoded(self) -> bytes:
        """With the line's end."""
        return json.dumps(asdict(self), default=str).encode() + b"\n"  # type: ignore[call-overload]

    @classmethod
    def decoded(cls, line: bytes) -> Self:
        """Raises ValueError: it is none."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(_JsonLine):
    """What a broker is to be."""

    name: str
    config_file: str | None
    overrides: dict[str, object]
    """Field name → value, stronger than the file; a path is a text."""
    may_lack_grpc: bool
    log_level: str | None
    log_file: str | None
    log_format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(_JsonLine):
    """What became of it: it answers, or ``error`` says why not."""

    address: str = ""
    """As clients reach it."""
    listen_addresses: list[str] | None = None
    port: int = 0
    metrics_port: int = 0
    lines: list[str] | None = None
    """What a broker alone would print."""
    error: str = ""
