"""Sends that nobody waits for yet: tasks of those that need one, a bound of open ones, and batches
one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError, PartlySentError, SubmitsFullError

if TYPE_CHECKING:
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.core.sending.send import SendResult
    from kerolox.codec.sending import OpenSend
    from kerolox.message import Message


class Submits:
    """The submitted sends of one producer that have a task each."""

    def __init__(
        self,
        count_max: int,
        delivery: Delivery,
        go_on: Callable[[OpenSend], Coroutine[object, None, SendResult]],
    ) -> None:
        """None is open.

        Args:
            count_max: most sends without an outcome for another one to be taken.
            delivery: counts sends on the slow path.
            go_on: what follows on a fast-path send whose answer is anything but that it is stored.
        """
        self._count_max = count_max
        self._delivery = delivery
        self._go_on = go_on
        self._tasks: set[asyncio.Task[SendResult]] = set()

    def check(self, fast_count: int) -> None:
        """There is capacity for another one, given the fast-path sends that are open.

        Raises:
            SubmitsFullError: there is none.
        """
        # A task counts itself among those of the slow path once it runs.
        count = fast_count + max(self._delivery.open_count, len(self._tasks))
        if count >= self._count_max:
            raise SubmitsFullError(
                f"{count} sends have no outcome yet; submits_max is {self._count_max}. The message"
                " was not taken: wait for some of the futures, or for send, which waits for "
                "capacity"
            )

    def run(self, coroutine: Coroutine[object, None, SendResult]) -> asyncio.Task[SendResult]:
        """In a task."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def go_on(self, send: OpenSend) -> None:
        """A fast-path send is not stored; cancelling its future ends what goes on."""
        outcome = send.future
        if isinstance(outcome, asyncio.Future):
            task = self.run(self._go_on(send))
            task.add_done_callback(lambda task: _pass_on(task, outcome))
            outcome.add_done_callback(lambda _: task.cancel())


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


async def send_in_order(
    batches: list[list[Message]],
    send: Callable[[list[Message]], Coroutine[object, None, SendResult]],
) -> list[SendResult]:
    """Send batches, each when the one before is stored.

    Raises:
        PartlySentError: one failed after others were stored.
        KeroloxError: the first one failed.
    """
    results: list[SendResult] = []
    sent = 0
    for batch in batches:
        try:
            results.append(await send(batch))
        except KeroloxError as error:
            if not results:
                raise
            raise PartlySentError(sent, sum(map(len, batches)), error) from error
        sent += len(batch)
    return results
