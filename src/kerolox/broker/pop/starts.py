"""Where a group begins to pop a queue of which it has no offset (``getInitOffset``)."""

from __future__ import annotations

from kerolox.protocol.pop_names import PopInitMode

__all__ = ["first_offset"]


def first_offset(init_mode: int, bounds: tuple[int, int], *, is_retry: bool, is_young: bool) -> int:
    """The offset, which is to be committed at once; of MAX that of the last message that there is,
    as in RocketMQ.

    ``init_mode``: what the first pop says: ``PopInitMode``; what is not MIN counts as MAX.
    ``bounds``: the first message of the queue, and the offset behind its last one. ``is_retry``:
    the queue has retries of the group: it wants all of them. ``is_young``: the queue still has its
    first message, and that in memory: a group that is made with its topic gets all
    (``initPopOffsetByCheckMsgInMem``).
    """
    low, end = bounds
    if init_mode == PopInitMode.MIN or is_retry:
        return low
    return 0 if is_young and low <= 0 else max(end - 1, 0)
