"""How a message gets to a broker: queue, address, tries, hooks, all within one time limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, cast

from kerolox import clock
from kerolox.addresses import join_address, split_address
from kerolox.client.aio.producers.plans import TimeLimit
from kerolox.client.core.hooks import SendContext, run_hooks
from kerolox.client.core.namespaces import queue_without_namespace, with_namespace
from kerolox.client.core.routes import MASTER_ID, publish_queues
from kerolox.client.core.sending.queue_choice import QueueChooser
from kerolox.client.core.sending.retry import Tries, pause_ms
from kerolox.client.core.sending.send import SendResult, send_result
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    KeroloxError,
    PartlySentError,
    SubmitsFullError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.tasks import retrieve_error

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.plans import Plan
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.hooks import SendHook
    from kerolox.client.core.sending.queue_choice import LatencyFaults
    from kerolox.client.core.sending.send import OutgoingMessage, SendHeader
    from kerolox.codec.sending import OpenSend, SendFuture
    from kerolox.message import Message, MessageQueue


VIP_PORTS_BELOW = 2
"""A broker's second port is so far below its first (``MixAll.brokerVIPChannel``)."""

_log = logging.getLogger(__name__)


class Delivery:
    """Brings the messages of one producer to brokers."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        namespace: str,
        hooks: tuple[SendHook, ...],
        faults: LatencyFaults | None,
    ) -> None:
        """Nothing is sent yet. ``hooks`` run around each try. ``faults``: what is known of the
        brokers' latency; None: nothing is noted.
        """
        self._header = header
        self._settings = settings
        self._namespace = namespace
        self._hooks = hooks
        self._faults = faults
        self._closing = asyncio.Event()
        self.open_count = 0
        """Sends without an outcome; whoever takes off the last one sets ``idle``."""
        self.idle = asyncio.Event()

    def close(self) -> None:
        """End the pauses between tries: there are no further ones."""
        self._closing.set()

    async def drain(
        self, timeout_seconds: float, fast_sends: Callable[[], list[SendFuture]]
    ) -> None:
        """Wait until no send is without its outcome, for a bounded time.

        ``fast_sends`` gives the futures of those that were begun elsewhere.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while True:
                    if waiting := fast_sends():
                        await asyncio.wait(cast("list[asyncio.Future[object]]", waiting))
                        await asyncio.sleep(0)  # whoever tries once more does so now
                    elif self.open_count:
                        self.idle.clear()
                        await self.idle.wait()
                    else:
                        return

    async def deliver(
        self,
        cluster: Cluster,
        plan: Plan,
        outgoing: OutgoingMessage,
        queue: MessageQueue | None,
        limit: TimeLimit,
        tries: Tries | None = None,
        *,
        is_keyed: bool = False,
    ) -> SendResult:
        """Send until it is stored; one iteration of this loop is the whole send when nothing fails.
        ``tries`` are those that were made already. ``is_keyed``: it has a key by which its broker
        knows it again, so that it is tried again there. KeroloxError: it is not stored, or nobody
        knows.
        """
        loop_time = asyncio.get_running_loop().time
        if tries is None:
            tries = self._new_tries(None if is_keyed else queue)
        self.begin()
        try:
            while not tries.is_over:
                if tries.needs_route and queue is None:
                    plan = await self._renewed(cluster, plan, outgoing.topic, limit)
                target = queue or self.choose(plan, tries.brokers)
                pause = pause_ms(tries.brokers, target.broker_name) / 1000
                if limit.deadline - loop_time() <= pause:
                    break
                if pause and not await self._pause(pause):
                    tries.failed(ClientClosedError("the producer was closed between two tries"))
                    break
                if is_keyed and tries.brokers:  # Another broker may have its name now.
                    plan = await self._renewed(cluster, plan, outgoing.topic, limit)
                start = loop_time()
                tries.brokers.append(target.broker_name)
                try:
                    result = await self._try(cluster, plan, outgoing, target, limit)
                except KeroloxError as error:
                    is_failed = True
                    _note_failure(tries, target, error, cluster)
                else:
                    is_failed = False
                    tries.answered(result)
                if queue is None:
                    self.note(target, loop_time() - start, failed=is_failed)
        finally:
            self.end()
        return tries.end(limit.ms)

    def begin(self, count: int = 1) -> None:
        """So many sends have no outcome yet; :meth:`end` follows."""
        self.open_count += count

    def end(self, count: int = 1) -> None:
        """So many sends that were begun have their outcome."""
        self.open_count -= count
        if not self.open_count:
            self.idle.set()

    def first_try(
        self,
        cluster: Cluster,
        send: OpenSend,
        queue: MessageQueue | None,
        message_id: str,
    ) -> Tries:
        """The tries of a send whose first one was made elsewhere, and what came of it.

        ``queue`` is the one that the caller gave, ``message_id`` the message's, or those of a
        batch.
        """
        tries = self._new_tries(queue)
        target, answer = send.queue, send.answer
        tries.brokers.append(target.broker_name)
        try:
            if isinstance(answer, RemotingCommand):
                address = cluster.master_address(target.broker_name) or target.broker_name
                tries.answered(send_result(answer, message_id, target, address))
            elif answer is not None:
                raise answer
        except KeroloxError as error:
            _note_failure(tries, target, error, cluster)
        if queue is None:
            seconds = asyncio.get_running_loop().time() - send.asked_at
            self.note(target, seconds, failed=not tries.is_stored)
        return tries

    def _new_tries(self, queue: MessageQueue | None) -> Tries:
        settings = self._settings
        return Tries(
            1 if queue is not None else 1 + settings.retries,
            settings.retried_codes,
            retry_when_not_stored_ok=settings.retry_when_not_stored_ok,
        )

    def note(self, target: MessageQueue, seconds: float, *, failed: bool = False) -> None:
        """How long a broker of our choice took, if that is of interest."""
        if self._faults is not None:
            self._faults.note(target.broker_name, seconds * 1000, failed=failed)

    async def deliver_oneway(
        self,
        cluster: Cluster,
        plan: Plan,
        outgoing: OutgoingMessage,
        target: MessageQueue,
        limit: TimeLimit,
    ) -> None:
        """Send once; nobody answers. KeroloxError: it was not sent."""
        address = await self._address(cluster, plan, target, limit)
        context = None
        if self._hooks:
            context = self._context(outgoing, target, address, is_oneway=True)
            run_hooks(
                (hook.before_send for hook in self._hooks), context, self._settings.on_failure
            )
            outgoing = context.message
        request = self._header.request(outgoing, target.queue_id, clock.now_ms(), oneway=True)
        try:
            await cluster.remoting.invoke_oneway(
                address, request, timeout_seconds=limit.seconds_left
            )
        except KeroloxError as error:
            clear = _clear_error(error, cluster)
            if clear is not error:
                raise clear from error
            raise
        if context is not None:
            run_hooks((hook.after_send for hook in self._hooks), context, self._settings.on_failure)

    def choose(self, plan: Plan, tried: Sequence[str]) -> MessageQueue:
        """The queue of the next try, given the brokers of those before."""
        if self._faults is not None:
            return self._faults.choose(plan.chooser)
        return plan.chooser.next(tried)

    async def _renewed(self, cluster: Cluster, plan: Plan, topic: str, limit: TimeLimit) -> Plan:
        """The plan by the route as it is now; where that can't be had, the one there is."""
        route = None
        with contextlib.suppress(KeroloxError):
            async with limit.around(f"no route of topic {topic!r} came from the name servers"):
                route = await cluster.refresh(topic)
        queues = publish_queues(topic, route) if route is not None else []
        if route is None or not queues:
            return plan
        chooser = QueueChooser(queues, start=plan.chooser.upcoming - 1)
        return plan._replace(route=route, chooser=chooser)

    async def _pause(self, seconds: float) -> bool:
        """Wait before a try; False: the producer is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return not self._closing.is_set()

    async def _try(
        self,
        cluster: Cluster,
        plan: Plan,
        outgoing: OutgoingMessage,
        target: MessageQueue,
        limit: TimeLimit,
    ) -> SendResult:
        address = await self._address(cluster, plan, target, limit)
        seconds = limit.seconds_left
        if self._hooks:
            result = await self._hooked(cluster, outgoing, target, address, seconds)
        else:
            request = self._header.request(outgoing, target.queue_id, clock.now_ms())
            response = await cluster.remoting.invoke(address, request, timeout_seconds=seconds)
            result = send_result(response, outgoing.message_id, target, address)
        if self._namespace:
            shown = queue_without_namespace(self._namespace, result.queue)
            result = result._replace(queue=shown)
        return result

    async def _hooked(
        self,
        cluster: Cluster,
        outgoing: OutgoingMessage,
        target: MessageQueue,
        address: str,
        seconds: float,
    ) -> SendResult:
        """One try of a send with hooks around it."""
        hooks = self._hooks
        context = self._context(outgoing, target, address)
        run_hooks((hook.before_send for hook in hooks), context, self._settings.on_failure)
        outgoing = context.message
        request = self._header.request(outgoing, target.queue_id, clock.now_ms())
        try:
            response = await cluster.remoting.invoke(address, request, timeout_seconds=seconds)
            context.result = send_result(response, outgoing.message_id, target, address)
        except KeroloxError as error:
            context.error = error
            raise
        finally:
            run_hooks((hook.after_send for hook in hooks), context, self._settings.on_failure)
        return context.result

    def _context(
        self,
        outgoing: OutgoingMessage,
        target: MessageQueue,
        address: str,
        *,
        is_oneway: bool = False,
    ) -> SendContext:
        return SendContext(
            self._header.group, self._namespace, outgoing, target, address, is_oneway=is_oneway
        )

    async def _address(
        self, cluster: Cluster, plan: Plan, target: MessageQueue, limit: TimeLimit
    ) -> str:
        """Where sends to a queue go; errors as of :meth:`_find_address`."""
        address = cluster.master_address(target.broker_name)
        if address is None:
            address = await self._find_address(cluster, plan, target, limit)
        if not self._settings.vip_channel:
            return address
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise ConnectError(str(error)) from None
        return join_address(host, port - VIP_PORTS_BELOW)

    async def _find_address(
        self, cluster: Cluster, plan: Plan, queue: MessageQueue, limit: TimeLimit
    ) -> str:
        """The master's address of a broker that no polled route has; asks for the route once.
        ClientError: it has none. RequestTimeoutError: no name server has said so in time.
        """
        broker = plan.route.broker(queue.broker_name)
        address = broker.addresses.get(MASTER_ID) if broker else None
        if address is None:
            what = f"no route of topic {queue.topic!r} came from the name servers"
            async with limit.around(what):
                await cluster.refresh(with_namespace(self._namespace, queue.topic))
            address = cluster.master_address(queue.broker_name)
        if address is None:
            raise ClientError(
                f"broker {queue.broker_name!r} of topic {queue.topic!r} has no master"
            )
        return address


def _note_failure(
    tries: Tries, target: MessageQueue, error: KeroloxError, cluster: Cluster
) -> None:
    if tries.failed(_clear_error(error, cluster)):
        _log.info("send to %s failed: %s", target.broker_name, error)


def _clear_error(error: KeroloxError, cluster: Cluster) -> KeroloxError:
    """The error; another one where it was our own close that took the connection away."""
    if cluster.remoting.closed and isinstance(error, (ConnectionLostError, ConnectError)):
        clear = ClientClosedError(
            "the producer was closed during the send; the message may be stored nevertheless"
        )
        clear.__cause__ = error
        return clear
    return error


class Submits:
    """The submitted sends of one producer that have a task each."""

    def __init__(
        self,
        count_max: int,
        delivery: Delivery,
        go_on: Callable[[OpenSend], Coroutine[object, None, SendResult]],
    ) -> None:
        """None is open. ``count_max``: most sends without an outcome for another one to be taken.
        ``delivery`` counts sends on the slow path. ``go_on``: what follows on a fast-path send
        whose answer is anything but that it is stored.
        """
        self._count_max = count_max
        self._delivery = delivery
        self._go_on = go_on
        self._tasks: set[asyncio.Task[SendResult]] = set()

    def check(self, fast_count: int) -> None:
        """Raise a SubmitsFullError unless there is capacity for another one, given the fast-path
        sends that are open.
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
        retrieve_error(task)
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
    """Send batches, each when the one before is stored. PartlySentError: one failed after others
    were stored. KeroloxError: the first one failed.
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
