"""Functions of the user's that a client runs before and after what it does.

A hook is a subclass of one of the classes here that overrides what it needs; it is given in the
settings. Hooks run in the client's event loop, in the order they were given, and must not wait.
What a hook raises is logged, told to ``on_failure``, and changes nothing, except for
:class:`RpcHook`, whose error ends the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.core.failures import notify_failure
from kerolox.client.core.validate import property_text
from kerolox.errors import MessageRejectedError
from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.protocol.records import decode_batch, encode_batch

if TYPE_CHECKING:
    from kerolox.client.core.failures import FailureCallback
    from kerolox.client.core.sending.send import OutgoingMessage, SendResult
    from kerolox.client.core.sending.transaction import TransactionState
    from kerolox.message import MessageExt, MessageQueue
    from kerolox.protocol.command import RemotingCommand

START_DELIVER_TIME = PropertyKey.START_DELIVER_TIME
"""A property of other brokers' delayed messages; they count as delayed here too."""

_log = logging.getLogger(__name__)

_Context = TypeVar("_Context")


class MessageType(Enum):
    """The kind of message of a send; the values are RocketMQ's ordinals."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeReturnType(Enum):
    """How a listener ended; the values are RocketMQ's ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    """Listeners here may return None for success; it stands for a result of a wrong type."""
    FAILED = 4


@dataclass(slots=True)
class SendContext:
    """One try of one send (``SendMessageContext``)."""

    group: str
    namespace: str
    message: OutgoingMessage
    """As it travels: compressed, properties as text. A hook may put another one in its place."""
    queue: MessageQueue
    broker_address: str
    is_oneway: bool = False
    result: SendResult | None = None
    """Set after a try that was answered; a one-way send has none."""
    error: Exception | None = None
    """Set after a try that failed."""
    notes: dict[str, object] = field(default_factory=dict)
    """For hooks: what one keeps from before to after."""

    @property
    def properties(self) -> dict[str, str]:
        """The message's properties; those of a batch stand in its body."""
        return decode_properties(self.message.properties)

    @property
    def message_type(self) -> MessageType:
        """Normal, delayed, or the half of a transaction."""
        properties = self.properties
        if PropertyKey.DELAY in properties or START_DELIVER_TIME in properties:
            return MessageType.DELAY
        if properties.get(PropertyKey.TRANSACTION_PREPARED) == "true":
            return MessageType.TRANSACTION_HALF
        return MessageType.NORMAL

    def add_property(self, name: str, value: str) -> None:
        """Have the message travel with one more property, and each one of a batch.

        Raises:
            MessageRejectedError: the name or the value has U+0001 or U+0002 in it, or the
                properties of a message become too long. Nothing is added then.
        """
        message = self.message
        if not message.is_batch:
            text = _with_property(message.properties, name, value)
            self.message = message._replace(properties=text)
            return
        items, _ = decode_batch(message.body)
        body = encode_batch(
            (flag, body, _with_property(text.decode(), name, value).encode())
            for flag, body, text in items
        )
        self.message = message._replace(body=body)


def _with_property(text: str, name: str, value: str) -> str:
    changed = property_text({**decode_properties(text), name: value})
    if len(changed.encode()) > PROPERTIES_BYTES_MAX:
        raise MessageRejectedError(
            f"with property {name!r} the properties have {len(changed.encode())} bytes; the limit"
            f" is {PROPERTIES_BYTES_MAX}"
        )
    return changed


class SendHook:
    """Around each try of a send (``SendMessageHook``)."""

    def before_send(self, context: SendContext) -> None:
        """The queue is chosen; nothing is sent yet."""

    def after_send(self, context: SendContext) -> None:
        """The try was answered or failed; for a one-way send it is on its way."""


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener (``ConsumeMessageContext``)."""

    group: str
    namespace: str
    queue: MessageQueue
    messages: list[MessageExt]
    is_success: bool = False
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    notes: dict[str, object] = field(default_factory=dict)
    """For hooks: what one keeps from before to after."""


class ConsumeHook:
    """Around each call of a listener, and each pull that found messages
    (``ConsumeMessageHook``)."""

    def before_consume(self, context: ConsumeContext) -> None:
        """The messages are pulled; no listener has seen them."""

    def after_consume(self, context: ConsumeContext) -> None:
        """The listener is through; nothing is given back or committed yet."""


def run_around_pull(
    hooks: Iterable[ConsumeHook],
    context: ConsumeContext,
    on_failure: FailureCallback | None = None,
) -> None:
    """Both calls of hooks for messages that a caller gets: nobody tells what becomes of them."""
    hooks = tuple(hooks)
    run_hooks((hook.before_consume for hook in hooks), context, on_failure)
    context.is_success = True
    run_hooks((hook.after_consume for hook in hooks), context, on_failure)


@dataclass(slots=True)
class EndTransactionContext:
    """The end of one transaction (``EndTransactionContext``)."""

    group: str
    namespace: str
    broker_address: str
    topic: str
    properties: dict[str, str]
    message_id: str
    state: TransactionState
    is_from_check: bool


class EndTransactionHook:
    """A hook before the end of a transaction goes to its broker (``EndTransactionHook``)."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """The outcome is known, the broker is not notified yet."""


class RpcHook:
    """A hook around each request that a client sends, and each that a broker sends to it
    (``RPCHook``). It is the place for signatures of access control."""

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """May change ``ext_fields``; raising ends the request with that error."""

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """The response of a request has come, or our own to a broker's is about to go."""


def run_hooks(
    hooks: Iterable[Callable[[_Context], None]],
    context: _Context,
    on_failure: FailureCallback | None = None,
) -> None:
    """Call each; failures are logged and told."""
    for hook in hooks:
        try:
            hook(context)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also CancelledError: who does not wait is not cancelled
            what = f"hook {getattr(hook, '__qualname__', hook)} failed"
            _log.warning("%s", what, exc_info=True)
            notify_failure(on_failure, what, error)
