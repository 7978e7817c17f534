"""Sends the rows of one task: to lanes, again where it must, until all is answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError
from kerolox.spark.sink.lanes import Lane, Parcel, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.spark.sink.queues import PublishRoutes

IDLE_SECONDS = 0.01
"""Longest pause between looks at what is to go out again."""


class Sender:
    """The lanes of one task.

    Args:
        make_lane: by a broker's name.
        routes: of the topics.
        seconds_max: longest time for a parcel and its tries together.
    """

    def __init__(
        self, make_lane: Callable[[str], Lane], routes: PublishRoutes, *, seconds_max: float
    ) -> None:
        self._make_lane = make_lane
        self._routes = routes
        self._seconds_max = seconds_max
        self.lanes: dict[str, Lane] = {}

    def send(self, parcel: Parcel) -> None:
        """Send a parcel, once its broker has room for it.

        Raises:
            SinkError: these rows, or others before them, can't be written.
        """
        while True:
            lane = self._lane(parcel.queue.broker_name)
            if lane.later:
                self._send_again(lane)
            if not lane.later and lane.has_room(parcel):
                lane.send(parcel)
                lane.take_answers(wait=False)
                return
            self._progress(lane)

    def finish(self) -> None:
        """Wait until each parcel is stored.

        Raises:
            SinkError: one can't be.
        """
        while busy := [lane for lane in self.lanes.values() if not lane.is_idle]:
            for lane in busy:
                self._send_again(lane)
                self._progress(lane)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for lane in self.lanes.values():
            lane.close()

    def _lane(self, broker_name: str) -> Lane:
        lane = self.lanes.get(broker_name)
        if lane is None:
            lane = self.lanes[broker_name] = self._make_lane(broker_name)
        return lane

    def _progress(self, lane: Lane) -> None:
        """Wait for an answer, or for the time of the next try."""
        if lane.has_open:
            lane.take_answers(wait=True)
        elif lane.later:
            pause = lane.later[0].due - time.monotonic()
            time.sleep(min(max(pause, 0.0), IDLE_SECONDS))

    def _send_again(self, lane: Lane) -> None:
        """Send what is due, in its order, as far as there is room."""
        now = time.monotonic()
        while lane.later and lane.later[0].due <= now:
            parcel = lane.later[0]
            if now - parcel.first_sent >= self._seconds_max:
                raise refused(parcel, self._too_late(parcel)) from parcel.error
            if not lane.may_send_again(parcel):
                return
            lane.later.popleft()
            self._reroute(parcel)
            self._lane(parcel.queue.broker_name).send(parcel)

    def _reroute(self, parcel: Parcel) -> None:
        """Another broker may do better, where the rows leave the choice."""
        if parcel.is_fixed:
            return
        queues = self._routes.queues(parcel.queue.topic)
        others = [q for q in queues.queues if q.broker_name != parcel.queue.broker_name]
        if others:
            parcel.queue = others[parcel.tries % len(others)]

    def _too_late(self, parcel: Parcel) -> KeroloxError:
        seconds = self._seconds_max
        return KeroloxError(
            f"{parcel.tries} tries within {seconds:g} s (option sendTimeoutMs), the last one: "
            f"{parcel.error}"
        )
