"""Functions of an embedding program that a broker runs (``ConsumeMessageHook`` of RocketMQ).

Hooks run in the broker's event loop and must not wait. What one raises is logged and changes
nothing. A broker with hooks answers every pull in Python: several times slower than without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kerolox.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PullContext:
    """A pull that is about to be answered."""

    group: str
    topic: str
    queue_id: int
    client: str
    """``host:port`` of who asked."""
    owner: str
    """What the request says of its owner (extField ``Owner``), for billing; else empty."""
    code: ResponseCode
    messages: int
    """How many the answer has, and how many bytes they are."""
    size: int


@dataclass(frozen=True, slots=True)
class GiveBackContext:
    """A message that a consumer gives back, and that is not looked for yet."""

    group: str
    topic: str
    """Where the consumer says that it got the message; empty where it does not."""
    message_id: str
    client: str
    owner: str


class PullHook:
    """Before each answer to a pull, and when a message comes back."""

    def before_answer(self, context: PullContext) -> None:
        """The answer is known and not sent yet. A pull that is held is answered later, once."""

    def given_back(self, context: GiveBackContext) -> None:
        """A consumer could not handle a message, and says which (``consumeMessageAfter``)."""


def run_hooks(hooks: Iterable[PullHook], call: Callable[[PullHook], None]) -> None:
    """Call each; failures are logged."""
    for hook in hooks:
        try:
            call(hook)
        except Exception:
            _log.warning("hook %s failed", type(hook).__qualname__, exc_info=True)
