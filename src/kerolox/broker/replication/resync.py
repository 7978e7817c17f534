"""What a slave does when its log and its master's are not the same: look further back, cut, stop.

Nothing is ever overwritten: what the master has not is kept in a folder beside the log
(:mod:`kerolox.store.recovery.log_cut`). The log is cut while the broker is closed, so whoever reads
from it sees a restart. Under a controller each failover may leave such a part, and nobody has to
come: the oldest one goes when there are too many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.comparing import COMPARED_BYTES, DivergedError, LogGoneError
from kerolox.broker.replication.wire import ReplicationError
from kerolox.store.recovery.cut_record import EVERYTHING

PARTS_MAX = 16
"""Parts that are kept aside; a slave whose masters take turns would fill its disk with them."""
FURTHER = 4
"""So many times as many bytes are compared when nothing in them is equal."""

_BY_HAND = "keep a copy of this folder, then let the slave begin with an empty one"


class CutRequest(NamedTuple):
    """A cut of a log: where, why, and by which master."""

    equal_to: int
    """Up to this physical offset it is its master's; ``EVERYTHING``: nothing is."""
    why: str
    master: str


Restart = Callable[[CutRequest], str]
"""Has the log cut and the broker started again; why not, empty: it does."""


class Resync:
    """Decides for one slave.

    Attributes:
        compared_bytes: of the end of its log, to be compared next time.
    """

    def __init__(self, config: BrokerConfig, restart: Restart | None) -> None:
        """Nothing was compared yet. ``restart``: None where nobody can."""
        self._config = config
        self._restart = restart
        self.compared_bytes = COMPARED_BYTES

    def forget(self) -> None:
        """The logs are the same."""
        self.compared_bytes = COMPARED_BYTES

    def decide(self, error: DivergedError | LogGoneError, end: int, master: str) -> str:
        """See to a slave whose log ends at ``end``. Empty: more is to be compared, or the log is
        being cut. Else why not and what to do.
        """
        if isinstance(error, LogGoneError):
            return self._anew(error, master)
        most = self._config.ha_cut_max_size
        text = f"{error}; nothing was changed"
        if error.equal_to >= 0:
            self.forget()
            size = end - error.equal_to
            if size <= most:
                return self._cut(CutRequest(error.equal_to, str(error), master), text)
            return (
                f"{text}. The {size} bytes from {error.equal_to} on are more than "
                f"haCutMaxSize={most}, which a slave cuts off and keeps aside: raise it, or "
                f"{_BY_HAND}"
            )
        if self.compared_bytes < min(end, most):
            self.compared_bytes = min(self.compared_bytes * FURTHER, most)
            return ""
        compared = min(self.compared_bytes, end)
        self.forget()
        if error.has_others and self._config.ha_begin_anew:
            return self._anew(error, master)
        if not error.has_others:
            text += ". Its log may begin behind this one's end, or be empty"
        return (
            f"{text}. Nothing in the last {compared} bytes is the master's (haCutMaxSize={most}): "
            f"is it the right master? Else {_BY_HAND} (haBeginAnew=true puts it aside)"
        )

    def _anew(self, error: ReplicationError, master: str) -> str:
        if self._config.ha_begin_anew:
            return self._cut(CutRequest(EVERYTHING, str(error), master), str(error))
        return f"{error}; {_BY_HAND} (haBeginAnew=true puts it aside)"

    def _cut(self, request: CutRequest, text: str) -> str:
        from kerolox.store.recovery.log_cut import forget_parts, kept_parts

        settings = self._config.store_settings()
        parts = kept_parts(settings)
        if len(parts) >= PARTS_MAX and not self._config.enable_controller_mode:
            return (
                f"{text}. {len(parts)} parts of logs are kept aside already, the last one in "
                f"{parts[-1]}: do two masters take turns? Examine them and move them away"
            )
        if self._restart is None:
            return f"{text}. The slave has to be started again for that"
        refusal = self._restart(request)
        if not refusal:
            forget_parts(settings, PARTS_MAX - 1)
        return f"{text}. {refusal}" if refusal else ""
