"""Which topics a query reads now: those of its options, or those that a pattern means.

A thread asks the name servers for all names in the background and keeps their answer. So a name
server that is away changes nothing for known topics.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING

from kerolox.client.core.sending.retry import is_passing
from kerolox.errors import KeroloxError
from kerolox.spark.network.brokers import afterwards, in_thread, is_done

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kerolox.spark.network.routes import RouteFinder, TopicNames
    from kerolox.spark.selection import Selection

LIST_SECONDS = 10.0
"""New topics that a pattern means are looked for so often."""

RETRY_PAUSE_SECONDS = 0.2

_log = logging.getLogger(__name__)


class Topics:
    """The topics of one query. Belongs to one thread.

    Args:
        selection: what is read.
        finder: asks the name servers; nobody else uses it.
        wait_seconds: how long name servers may be away before their error is raised.
    """

    def __init__(self, selection: Selection, finder: RouteFinder, wait_seconds: float) -> None:
        self._selection = selection
        self._finder = finder
        self._wait_seconds = wait_seconds
        self._chosen: tuple[str, ...] | None = None
        self._asking: Future[TopicNames] | None = None
        self._asked_at = 0.0

    def now(self) -> tuple[str, ...]:
        """The topics that are known; waits for the name servers only the first time.

        Raises:
            BrokerError, RemotingError: no name server answers, for too long.
            ConfigError: the pattern means too many.
        """
        if self._selection.pattern is None:
            return self._selection.topics
        if self._chosen is None:
            return self.fresh()
        if self._asking is None and time.monotonic() >= self._asked_at + LIST_SECONDS:
            self._ask()
        if self._asking is not None and is_done(self._asking, 0.0):
            try:
                self._take()
            except KeroloxError as error:
                if not is_passing(error):
                    raise
                _log.info("new topics can't be looked for now: %s", error)
        return self._chosen

    def fresh(self) -> tuple[str, ...]:
        """The topics that there are now; errors as those of :meth:`now`."""
        if self._selection.pattern is None:
            return self._selection.topics
        deadline = time.monotonic() + self._wait_seconds
        while True:
            if self._asking is not None:
                # What was asked for earlier may lack a topic that the caller wants to see.
                wait([self._asking])
                self._asking = None
            self._ask()
            try:
                return self._take()
            except KeroloxError as error:
                if not is_passing(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connections, those that are in use when their answer has come. Idempotent."""
        if self._asking is None:
            self._finder.close()
        else:
            afterwards(self._asking, self._finder.close)

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._asking = in_thread(self._finder.topics)

    def _take(self) -> tuple[str, ...]:
        assert self._asking is not None
        asking, self._asking = self._asking, None
        names = asking.result()
        chosen = self._selection.choose(names.topics, names.system)
        before = set(self._chosen or ())
        if not names.topics and before:
            return self._chosen or ()  # name servers that have just started
        for topic in sorted(before - set(chosen)):
            _log.warning("topic %s is not listed any more; its queues keep their place", topic)
        if self._chosen is not None:
            for topic in sorted(set(chosen) - before):
                _log.info("topic %s is new, and is read from its start", topic)
        elif not chosen:
            _log.warning("no topic matches %s now", self._selection.pattern)
        self._chosen = chosen
        return chosen
