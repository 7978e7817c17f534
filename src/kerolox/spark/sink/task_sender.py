"""Sends the rows of one task: to broker senders, again where it must, until all is answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError
from kerolox.spark.sink.broker_sender import BrokerSender, RowBatch, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.spark.sink.queues import PublishRoutes

IDLE_SECONDS = 0.01
"""Longest pause between checks of what is to go out again."""


class TaskSender:
    """The broker senders of one task.

    Args:
        make_sender: by a broker's name.
        routes: of the topics.
        seconds_max: longest time for a row batch and its tries together.
    """

    def __init__(
        self,
        make_sender: Callable[[str], BrokerSender],
        routes: PublishRoutes,
        *,
        seconds_max: float,
    ) -> None:
        self._make_sender = make_sender
        self._routes = routes
        self._seconds_max = seconds_max
        self.broker_senders: dict[str, BrokerSender] = {}

    def send(self, row_batch: RowBatch) -> None:
        """Send a row batch, once its broker has space for it.

        Raises:
            SinkError: these rows, or others before them, can't be written.
        """
        while True:
            broker_sender = self._broker_sender(row_batch.queue.broker_name)
            if broker_sender.later:
                self._send_again(broker_sender)
            if not broker_sender.later and broker_sender.has_capacity(row_batch):
                broker_sender.send(row_batch)
                broker_sender.take_answers(wait=False)
                return
            self._progress(broker_sender)

    def finish(self) -> None:
        """Wait until each row batch is stored.

        Raises:
            SinkError: one can't be.
        """
        while busy := [
            broker_sender
            for broker_sender in self.broker_senders.values()
            if not broker_sender.is_idle
        ]:
            for broker_sender in busy:
                self._send_again(broker_sender)
                self._progress(broker_sender)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for broker_sender in self.broker_senders.values():
            broker_sender.close()

    def _broker_sender(self, broker_name: str) -> BrokerSender:
        broker_sender = self.broker_senders.get(broker_name)
        if broker_sender is None:
            broker_sender = self.broker_senders[broker_name] = self._make_sender(broker_name)
        return broker_sender

    def _progress(self, broker_sender: BrokerSender) -> None:
        """Wait for an answer, or for the time of the next try."""
        if broker_sender.has_open:
            broker_sender.take_answers(wait=True)
        elif broker_sender.later:
            pause = broker_sender.later[0].due - time.monotonic()
            time.sleep(min(max(pause, 0.0), IDLE_SECONDS))

    def _send_again(self, broker_sender: BrokerSender) -> None:
        """Send what is due, in its order, as far as there is space."""
        now = time.monotonic()
        while broker_sender.later and broker_sender.later[0].due <= now:
            row_batch = broker_sender.later[0]
            if now - row_batch.first_sent >= self._seconds_max:
                raise refused(row_batch, self._too_late(row_batch)) from row_batch.error
            if not broker_sender.may_send_again(row_batch):
                return
            broker_sender.later.popleft()
            self._reroute(row_batch)
            self._broker_sender(row_batch.queue.broker_name).send(row_batch)

    def _reroute(self, row_batch: RowBatch) -> None:
        """Another broker may do better, where the rows leave the choice."""
        if row_batch.is_fixed:
            return
        queues = self._routes.queues(row_batch.queue.topic)
        others = [q for q in queues.queues if q.broker_name != row_batch.queue.broker_name]
        if others:
            row_batch.queue = others[row_batch.tries % len(others)]

    def _too_late(self, row_batch: RowBatch) -> KeroloxError:
        seconds = self._seconds_max
        return KeroloxError(
            f"{row_batch.tries} tries within {seconds:g} s (option sendTimeoutMs), the last one: "
            f"{row_batch.error}"
        )
