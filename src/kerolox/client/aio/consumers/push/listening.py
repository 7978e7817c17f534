"""Calls of listeners: which one a message has, what it says, and the hooks around it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.failure_log import FailureLog
from kerolox.client.aio.user_code import call_user, cancelled_within
from kerolox.client.core.consuming.outcome import (
    ConsumeStatus,
    ListenerResult,
    OneResult,
    Outcome,
    WithoutListener,
    all_failed,
    failed_outcomes,
    without_listener,
)
from kerolox.client.core.hooks import ConsumeContext, ConsumeHook, ConsumeReturnType, run_hooks
from kerolox.client.core.namespaces import queue_without_namespace, without_namespace
from kerolox.errors import ClientError
from kerolox.message import MessageExt, MessageQueue, PropertyKey, note_consume_start
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.core.failures import FailureCallback

REASONS_LOGGED_MAX = 16
"""Different reasons why bodies can't be read that are warned of, each once; and as many topics
without listener."""

_log = logging.getLogger(__name__)
_failures = FailureLog(_log)


MessageListener = Callable[[list[MessageExt]], Awaitable[ListenerResult] | ListenerResult]
"""Takes messages of one queue; returning None means success, raising means to try again later. It
may return a ConsumeStatus or an Outcome for all, a list with one (or None) for each message, or an
AckIndex: only what failed comes again."""


OneMessageListener = Callable[[MessageExt], Awaitable[OneResult] | OneResult]
"""Takes one message; returning None means success, raising means to try again later. It may return
a ConsumeStatus or an Outcome."""


class EachMessage:
    """The listener that gives its messages one by one to another; each has its own outcome."""

    __slots__ = ("_on_failure", "listener")

    def __init__(
        self, listener: OneMessageListener, on_failure: FailureCallback | None = None
    ) -> None:
        """``on_failure``: told of what it raises."""
        self.listener = listener
        self._on_failure = on_failure

    async def __call__(self, messages: list[MessageExt]) -> ListenerResult:
        """The outcome of each message."""
        if len(messages) == 1:
            return await call_user(self.listener, messages[0])
        return [await self._one(message) for message in messages]

    async def _one(self, message: MessageExt) -> OneResult:
        try:
            result = await call_user(self.listener, message)
        except Exception as error:
            _failures.add(message.message_id, error, self._on_failure)
            return ConsumeStatus.RECONSUME_LATER
        if result is None or isinstance(result, ConsumeStatus | Outcome):
            return result
        _log.warning("listener returned %.200r; return None, a ConsumeStatus or an Outcome", result)
        return ConsumeStatus.RECONSUME_LATER


class Listeners:
    """The listeners of one consumer, by topic as the user names it."""

    def __init__(
        self,
        group: str,
        settings: PushConsumerSettings,
        *,
        namespace: str = "",
        hooks: tuple[ConsumeHook, ...] = (),
    ) -> None:
        self.by_topic: dict[str, MessageListener] = {}
        self._group = group
        self._settings = settings
        self._namespace = namespace
        self._hooks = hooks
        self._retry_topic = f"{RETRY_PREFIX}{group}"
        self._unreadable: set[str] = set()
        """Reasons for unreadable bodies that were logged as warnings."""
        self._unhandled: set[str] = set()
        """Topics without listener that were logged as warnings."""

    def direct(self, queue: MessageQueue) -> dict[str, MessageListener]:
        """The listeners that need nothing but their call, for messages of a queue with no
        ``body_error``; of others see :meth:`prepare` and :meth:`call`."""
        if self._hooks or self._namespace or queue.topic == self._retry_topic:
            return {}  # retried messages show the topic that they were first sent to
        return self.by_topic

    def prepare(self, queue: MessageQueue, messages: list[MessageExt]) -> bool:
        """Give messages of a queue the names that users know; False: there is no listener."""
        if self._namespace or queue.topic.startswith(RETRY_PREFIX):
            self._restore_topics(messages)
        return messages[0].topic in self.by_topic or bool(messages[0].body_error)

    async def call(self, queue: MessageQueue, messages: list[MessageExt]) -> dict[int, Outcome]:
        """Run the listener of messages of one topic; what becomes of those that it is not done
        with, by position."""
        note_consume_start(messages, clock.steady_ms())
        if self._hooks and not messages[0].body_error:
            return await self._listen_hooked(queue, messages)
        return (await self._listen(messages))[0]

    async def _listen_hooked(
        self, queue: MessageQueue, messages: list[MessageExt]
    ) -> dict[int, Outcome]:
        """The listener with hooks around it; see :meth:`_listen`."""
        context = self.begin_hooks(queue, messages)
        start_ms = clock.steady_ms()
        failed, return_type = await self._listen(messages)
        answered = return_type not in (ConsumeReturnType.EXCEPTION, ConsumeReturnType.RETURN_NULL)
        limit_ms = self._settings.consume_timeout_minutes * 60_000
        if answered and clock.steady_ms() - start_ms >= limit_ms:
            return_type = ConsumeReturnType.TIME_OUT
        self.end_hooks(context, return_type, is_success=not failed)
        return failed

    def begin_hooks(self, queue: MessageQueue, messages: list[MessageExt]) -> ConsumeContext:
        """Messages are about to be consumed; what :meth:`end_hooks` needs."""
        shown = queue_without_namespace(self._namespace, queue)
        context = ConsumeContext(self._group, self._namespace, shown, messages)
        run_hooks((hook.before_consume for hook in self._hooks), context, self._settings.on_failure)
        return context

    def end_hooks(
        self, context: ConsumeContext, return_type: ConsumeReturnType, *, is_success: bool
    ) -> None:
        """They are consumed, or not."""
        context.return_type = return_type
        context.is_success = is_success
        run_hooks((hook.after_consume for hook in self._hooks), context, self._settings.on_failure)

    async def _listen(
        self, messages: list[MessageExt]
    ) -> tuple[dict[int, Outcome], ConsumeReturnType]:
        """What becomes of the messages that are not done with, and how the listener ended."""
        everything = all_failed(len(messages))
        if messages[0].body_error:
            self._log_unreadable(messages[0])
            return everything, ConsumeReturnType.EXCEPTION
        listener = self.by_topic[messages[0].topic]
        try:
            result = await call_user(listener, messages.copy())
        except Exception as error:
            return self.failure(listener, messages, error), ConsumeReturnType.EXCEPTION
        return self.outcome(messages, result)

    def failure(
        self, listener: object, messages: list[MessageExt], error: BaseException
    ) -> dict[int, Outcome]:
        """What becomes of messages whose listener has raised."""
        if isinstance(error, asyncio.CancelledError):
            function = listener.listener if isinstance(listener, EachMessage) else listener
            error = cancelled_within(function, error)
        _failures.add(messages[0].message_id, error, self._settings.on_failure)
        return all_failed(len(messages))

    def outcome(
        self, messages: list[MessageExt], result: object
    ) -> tuple[dict[int, Outcome], ConsumeReturnType]:
        """What becomes of messages that are not done with, by what their listener returned."""
        failed = failed_outcomes(result, len(messages))
        if failed is None:
            _log.warning(
                "listener returned %.200r for %d messages; return None, a ConsumeStatus, an Outcome"
                " or a list of them, one for each message",
                result,
                len(messages),
            )
            return all_failed(len(messages)), ConsumeReturnType.RETURN_NULL
        return failed, ConsumeReturnType.FAILED if failed else ConsumeReturnType.SUCCESS

    def without_listener(self, queue: MessageQueue, message: MessageExt) -> WithoutListener:
        """What to do with a message that has no listener here; a line in the log reports it."""
        topic = message.topic
        what = without_listener(queue.topic)
        is_new = topic not in self._unhandled and len(self._unhandled) < REASONS_LOGGED_MAX
        if is_new:
            self._unhandled.add(topic)
        _log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "no listener for topic %s in this member of group %s: message %s %s; subscribe to the"
            " topic, all members of a group need the same subscriptions",
            topic,
            self._group,
            message.message_id,
            "goes back to the retry topic, this counts as no try"
            if what is WithoutListener.PASS_ON
            else "stays in its queue",
        )
        return what

    def _log_unreadable(self, message: MessageExt) -> None:
        """No listener sees it: another member may read it, else it becomes a dead letter."""
        reason = message.body_error
        is_new = reason not in self._unreadable and len(self._unreadable) < REASONS_LOGGED_MAX
        if is_new:
            self._unreadable.add(reason)
        _log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "message %s of topic %s is given back unread: %s",
            message.message_id,
            message.topic,
            reason,
        )

    async def consume_directly(self, message: MessageExt) -> ConsumeStatus:
        """Run the listener for one message that an operator sent, outside of any queue; whatever it
        raises is raised.
        """
        self._restore_topics([message])
        if message.body_error:
            raise ClientError(message.body_error)
        listener = self.by_topic.get(message.topic)
        if listener is None:
            raise ClientError(f"no listener for topic {message.topic!r}")
        failed = failed_outcomes(await call_user(listener, [message]), 1)
        return ConsumeStatus.CONSUME_SUCCESS if failed == {} else ConsumeStatus.RECONSUME_LATER

    def _restore_topics(self, messages: list[MessageExt]) -> None:
        """A retried message shows the topic that it was first sent to, and each the name that its
        topic has for the user."""
        for message in messages:
            original = message.properties.get(PropertyKey.RETRY_TOPIC)
            if original and message.topic == self._retry_topic:
                message.topic = original
            if self._namespace:
                message.topic = without_namespace(self._namespace, message.topic)
