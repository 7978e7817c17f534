"""What nodes of Raft store and say to each other: values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

NOBODY = ""
"""Stands for a node's id where there is none: no vote, no leader."""


class EntryType(IntEnum):
    """What an entry of the log is for."""

    NORMAL = 0
    """Data of the state machine; empty: a leader begins its term with it."""
    CONFIGURATION = 1
    """The members from when it is applied on: ``encode_configuration``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    index: int
    term: int
    data: bytes = b""
    type: EntryType = EntryType.NORMAL


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget: it is durable before any message that follows from it."""

    term: int = 0
    vote: str = NOBODY
    """Whom it voted for in that term."""
    commit: int = 0
    learns: bool = False
    """Its folder was empty at the start, and it has not caught up with a leader yet: it may be a
    member that has forgotten what it voted and acknowledged."""


Configuration = Mapping[str, str]
"""The members: address by id."""


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of an entry of type CONFIGURATION."""
    return msgspec.json.encode(dict(configuration))


def decode_configuration(data: bytes) -> Configuration:
    """The members that such an entry names."""
    return msgspec.json.decode(data, type=dict[str, str])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after the entry of an index; the log before it is not needed any more."""

    index: int = 0
    term: int = 0
    configuration: Configuration = field(default_factory=dict)
    data: bytes = b""


class MessageType(IntEnum):
    """Requests and responses of Raft."""

    PRE_VOTE = 1
    """Would you vote for me? Asked before the term is raised, so that a node which comes back does
    not disturb a leader that is there."""
    PRE_VOTE_RESPONSE = 2
    VOTE = 3
    VOTE_RESPONSE = 4
    APPEND = 5
    APPEND_RESPONSE = 6
    HEARTBEAT = 7
    HEARTBEAT_RESPONSE = 8
    SNAPSHOT = 9
    """Answered with APPEND_RESPONSE."""
    TIMEOUT_NOW = 10
    """Begin an election at once: the leader hands its place over."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Which members count depends on its type."""

    type: MessageType
    sender: str
    to: str
    term: int
    index: int = 0
    """APPEND: of the entry before ``entries``. Its response: the last entry that both have, or the
    one that was refused. Votes: the candidate's last."""
    log_term: int = 0
    """Term of the entry at ``index``."""
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    reject: bool = False
    hint: int = 0
    """Of a refused APPEND: the last index at which both logs may agree."""
    round: int = 0
    """HEARTBEAT and its response: which reads it confirms."""
    is_transfer: bool = False
    """VOTE: the leader wants this election."""
    snapshot: Snapshot | None = None
    learns: bool = False
    """Of a refused APPEND: the sender may have forgotten what it acknowledged."""
