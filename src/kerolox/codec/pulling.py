"""Fast-path pulls: requests of which only four numbers change, and what their answers say."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kerolox.protocol.codes import VERSION, LanguageCode, RequestCode
from kerolox.protocol.framing import LENGTHS

CHANGING_FIELDS = ("queueOffset", "sysFlag", "commitOffset")
"""Fields of a pull that change from pull to pull, in the order of its header."""

PullAnswer = tuple[int, int, int, int, str, str, int]
"""What a fast-path answer to a pull says: opaque, response code, the offset to go on at, the id of
the node to ask next, the queue's first offset and the one behind its last (both as they are
written), and where in the frame the records begin. The code is one of the four that are no
error."""

_to_json = msgspec.json.Encoder().encode


class PullFrames:
    """Makes the frames of one queue's pulls, as the slow path does for JSON, unsigned."""

    __slots__ = ("_at_commit", "_at_flags", "_at_offset", "_at_opaque", "_tail")

    def __init__(self, fields: Mapping[str, str]) -> None:
        """``fields``: those of a pull, with any values in :data:`CHANGING_FIELDS`."""
        parts: list[str] = []
        text = f'{{"code":{int(RequestCode.PULL_MESSAGE)},"extFields":'
        mark = "{"
        for name, value in fields.items():
            text += f"{mark}{_text(name)}:"
            mark = ","
            if name in CHANGING_FIELDS:
                parts.append(f'{text}"')
                text = '"'
            else:
                text += _text(value)
        self._at_offset, self._at_flags, self._at_commit = parts
        self._at_opaque = f'{text}}},"flag":0,"language":"{LanguageCode.PYTHON.name}","opaque":'
        self._tail = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'

    def frame(self, opaque: int, offset: int, flags: int, commit_offset: int) -> bytes:
        """The frame of one pull.

        Args:
            opaque: of the request.
            offset: first queue offset.
            flags: its sys flag.
            commit_offset: the group's offset to be stored on the way.
        """
        header = (
            f"{self._at_offset}{offset}{self._at_flags}{flags}{self._at_commit}{commit_offset}"
            f"{self._at_opaque}{opaque}{self._tail}"
        ).encode()
        size = len(header)
        return LENGTHS.pack(4 + size, size) + header


def _text(value: str) -> str:
    return _to_json(value).decode()
