"""Sends that nobody waits for yet: the future of a plain send's result, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from kerolox.client.aio.producers.plain.sends import PlainSend, result_of, seconds_since, withdraw
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.core.sending.send import SendResult
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client_connection import Answer

GoOn = Callable[["RemotingCommand | KeroloxError"], Coroutine[object, None, "SendResult"]]


class Submits:
    """The submitted sends of one producer: tasks, and futures of those that need none."""

    def __init__(self, delivery: Delivery) -> None:
        """``delivery`` counts them among the open sends."""
        self._delivery = delivery
        self._tasks: set[asyncio.Task[SendResult]] = set()

    def run(self, coroutine: Coroutine[object, None, SendResult]) -> asyncio.Task[SendResult]:
        """In a task."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def count(self, future: asyncio.Future[SendResult]) -> asyncio.Future[SendResult]:
        """A send that is made elsewhere."""
        self._delivery.begin()
        future.add_done_callback(lambda _: self._delivery.end())
        return future

    def follow(self, send: PlainSend, go_on: GoOn, *, is_noted: bool) -> asyncio.Future[SendResult]:
        """The result of a plain send; ``go_on`` makes it of any answer but that it is stored.

        Cancelling the future withdraws the send, or ends what goes on. ``is_noted``: how long the
        broker took is of interest.
        """
        outcome: asyncio.Future[SendResult] = send[7].loop.create_future()

        def answered(future: asyncio.Future[Answer]) -> None:
            if outcome.done():
                return
            answer: Answer | KeroloxError
            try:
                answer = future.result()
            except KeroloxError as error:
                withdraw(send, error)
                answer = error
            if isinstance(answer, tuple):
                if is_noted:
                    self._delivery.note(send[2].queue, seconds_since(send))
                outcome.set_result(result_of(send, answer))
                return
            task = self.run(go_on(answer))
            task.add_done_callback(lambda task: _pass_on(task, outcome))
            outcome.add_done_callback(lambda _: task.cancel())

        def over(_: asyncio.Future[SendResult]) -> None:
            if not send[0].done():
                withdraw(send, asyncio.CancelledError())
                send[0].cancel()

        send[0].add_done_callback(answered)
        outcome.add_done_callback(over)
        return self.count(outcome)


def _pass_on(task: asyncio.Task[SendResult], outcome: asyncio.Future[SendResult]) -> None:
    if outcome.done():
        if not task.cancelled():
            task.exception()  # seen: nobody waits for it
    elif task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
