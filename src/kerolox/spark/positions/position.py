"""Where a stream is: the document that Spark keeps in the checkpoint for each micro-batch.

``offsets`` says where the batch ends, by topic, broker name and queue id, as option
``startingOffsets`` does. Two more members make a batch the same whenever it is done. They also
tell a topic that was created again from the one that was read before:

- ``starts``: queues whose part of the batch does not start where the batch before ended: all in the
  first batch (Spark asks for the initial offsets again at each try, and they would be others), and
  queues that are new. -2 is the queue's minimum at the time of reading, so that retention is no
  loss there.
- ``marks``: where a queue ended when the document was made, and when its last message was stored
  (ms). Another time at that place, or an earlier end, is another life of the topic.

Version 1, which Kerolox wrote first, was ``offsets`` alone and is still read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark.positions.offsets import Bounds, Mark, Offsets, from_json, offset_of, to_json

VERSION = 2

Document = dict[str, object]
"""What Spark keeps: JSON."""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The end of a micro-batch, or with ``first`` the place where a new query starts."""

    offsets: Offsets
    starts: Offsets = field(default_factory=dict)
    marks: dict[MessageQueue, Mark] = field(default_factory=dict)
    first: bool = False
    version: int = VERSION

    def ahead_of(self, other: SourcePosition) -> SourcePosition:
        """The part of the queues of which ``other`` has not seen so much."""
        seen = {
            queue: max(other.offsets.get(queue, 0), mark.end if mark else 0)
            for queue in self.offsets
            for mark in [other.marks.get(queue)]
        }
        offsets = {queue: offset for queue, offset in self.offsets.items() if offset > seen[queue]}
        marks = {queue: mark for queue, mark in self.marks.items() if queue in offsets}
        return SourcePosition(offsets, marks=marks)

    def to_json(self) -> Document:
        """The document; equal positions have equal text."""
        document: Document = {"version": VERSION, "offsets": to_json(self.offsets)}
        if self.starts:
            document["starts"] = to_json(self.starts)
        if self.marks:
            document["marks"] = to_json(
                {queue: [mark.end, mark.time] for queue, mark in self.marks.items()}
            )
        if self.first:
            document["first"] = True
        return document

    @classmethod
    def parse(cls, document: Document) -> SourcePosition:
        """Read a document of any version; ConfigError: it is of another source, or of a newer
        version.
        """
        version = document.get("version") if isinstance(document, dict) else None
        if type(version) is not int:
            return cls(from_json(document, offset_of), version=1)
        if version != VERSION:
            raise ConfigError(
                f"the checkpoint's offsets are of version {version}, known here are 1 and "
                f"{VERSION}; use the Kerolox that wrote them or a newer one"
            )
        return cls(
            from_json(document.get("offsets"), offset_of),
            from_json(document.get("starts", {}), offset_of),
            from_json(document.get("marks", {}), _mark),
            document.get("first") is True,
        )


def marked(
    before: dict[MessageQueue, Mark], held: dict[MessageQueue, Bounds], offsets: Offsets
) -> dict[MessageQueue, Mark]:
    """The marks for a document with these ``offsets``: the newest messages, else the old marks."""
    marks = {queue: mark for queue, mark in before.items() if queue in offsets}
    for queue, now in held.items():
        if now.maximum and now.last_time > 0:
            marks[queue] = Mark(now.maximum, now.last_time)
        else:
            marks.pop(queue, None)
    return marks


def _mark(value: object) -> Mark:
    end, time = cast("tuple[int, int]", value)
    return Mark(int(end), int(time))
