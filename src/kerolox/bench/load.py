"""What a load is, and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from kerolox.bench.histogram import Histogram
from kerolox.errors import BrokerError, ConfigError
from kerolox.protocol.codes import ResponseCode

SIZE_MAX = 4 * 1024 * 1024
"""``maxMessageSize``."""
CONCURRENCY_MAX = 10_000
STAMP_BYTES = 24
"""What a message of a round trip has at least: the run, and its own number."""


class Kind(Enum):
    """What is measured."""

    SEND = "send"
    """Until the broker has answered each send."""
    CONSUME = "consume"
    """How old each message is when a listener gets it."""
    ROUNDTRIP = "roundtrip"
    """From the send of each message until a listener of ours gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to do. It ends after ``count`` messages or ``seconds``, whatever comes first."""

    kind: Kind
    topic: str = ""
    """Empty: one of our own, which is deleted afterwards."""
    cluster: str = ""
    """Where it is made; empty: in the only one there is."""
    queues: int = 8
    """Of the topic, on each broker, where it is made."""
    size: int = 1024
    """Bytes of each body."""
    count: int = 0
    """0: any number."""
    seconds: float = 0.0
    """0: any time."""
    concurrency: int = 64
    """Sends that are open at the same time, or listeners that run."""
    rate: float = 0.0
    """Messages a second; 0: as fast as it goes. Each time counts from when its send was due, so
    that a broker that stalls is not measured by the few sends that met the stall."""

    def __post_init__(self) -> None:
        least = STAMP_BYTES if self.kind is Kind.ROUNDTRIP else 1
        for name, low, high in (
            ("size", least, SIZE_MAX),
            ("count", 0, 10**12),
            ("seconds", 0, 10**7),
            ("concurrency", 1, CONCURRENCY_MAX),
            ("rate", 0, 10**7),
            ("queues", 1, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must be between {low} and {high}")
        if not self.count and not self.seconds:
            raise ConfigError("give a count or seconds: else a load has no end")


@dataclass(slots=True)
class Tally:
    """What has come of a load so far."""

    load: Load
    messages: int = 0
    size: int = 0
    """Bytes of their bodies."""
    errors: Counter[str] = field(default_factory=Counter)
    """How many messages failed, by the name of the response code, of the status or of the error."""
    times: Histogram = field(default_factory=Histogram)
    started_ns: int = 0
    ended_ns: int = 0
    """0: it goes on."""

    def begin(self) -> None:
        """The first message goes now."""
        self.started_ns = time.monotonic_ns()

    def end(self) -> None:
        """The last one is done."""
        self.ended_ns = time.monotonic_ns()

    def took(self, size: int, time_ns: int) -> None:
        """A message came through."""
        self.messages += 1
        self.size += size
        self.times.add(time_ns)

    def failed(self, error: Exception) -> None:
        """A message did not."""
        self.errors[error_name(error)] += 1

    @property
    def seconds(self) -> float:
        """From the first message to the last, or to now."""
        if not self.started_ns:
            return 0.0
        return max((self.ended_ns or time.monotonic_ns()) - self.started_ns, 1) / 1e9

    @property
    def messages_per_second(self) -> float:
        """Of those that came through."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """The same in 1,000,000 bytes of bodies."""
        return self.size / 1e6 / self.seconds if self.seconds else 0.0


def error_name(error: Exception) -> str:
    """The response code by RocketMQ's name where a broker answered, else the kind of the error."""
    if isinstance(error, BrokerError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return f"code {error.code}"
    return type(error).__name__
