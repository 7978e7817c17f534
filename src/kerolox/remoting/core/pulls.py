"""The requests of an end that pulls: an answer for the fast path is read in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.remoting.core.open_calls import OpenCalls
from kerolox.remoting.core.requests import MakeError, Requests

if TYPE_CHECKING:
    from kerolox.codec.pulling import PullAnswer
    from kerolox.protocol.command import RemotingCommand

PulledFrame = tuple[int, int, int, tuple[str, str], bytes, int]
"""A fast-path answer to a pull: response code, the offset to go on at, the id of the node to ask
next, the queue's bounds as they are written, the frame, and where in it the records begin."""

ReadPull = Callable[[bytes], "PullAnswer | None"]
"""Reads a fast-path answer; None: the frame is anything else."""


class PullRequests(Requests):
    """The requests of one connection, pulls among them."""

    __slots__ = ("_read_pull", "pulls")

    def __init__(
        self,
        arm: Callable[[float], object],
        next_iteration: Callable[[], object],
        read_pull: ReadPull | None,
    ) -> None:
        """As that of :class:`Requests`. ``read_pull``: that of a codec; None: nobody pulls."""
        super().__init__(arm, next_iteration)
        self._read_pull = read_pull
        self.pulls: OpenCalls[PulledFrame | RemotingCommand] = OpenCalls(arm)
        """Those of the calls whose fast-path answers are read in place."""
        self._tables = (self.calls, self.pulls)

    def take_pull_answers(self, frames: list[bytes]) -> list[bytes]:
        """Hand fast-path answers of pulls to who waits for them; the other frames."""
        read, pulls = self._read_pull, self.pulls
        if read is None or not pulls:
            return frames
        others: list[bytes] = []
        for frame in frames:
            answer = read(frame)
            if answer is None or answer[0] not in pulls:
                others.append(frame)
            else:
                opaque, code, next_offset, broker_id, least, most, start = answer
                pulls.complete(opaque, (code, next_offset, broker_id, (least, most), frame, start))
        return others

    def complete(self, response: RemotingCommand) -> None:
        """A response has come that is not for the fast path."""
        if response.opaque in self.pulls:
            self.pulls.complete(response.opaque, response)
        else:
            super().complete(response)

    def end_all(self, make_error: MakeError) -> None:
        """All that wait end with such an error."""
        super().end_all(make_error)
        self._end_calls(self.pulls.take_open(), make_error)
