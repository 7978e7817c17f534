"""Where a time lies in a queue: the first message from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.aio.network.lookups import END_OF_TIME_MS, queue_number
from kerolox.client.core.consuming.pull import pull_request, pull_result
from kerolox.client.core.consuming.time_search import TimeSearch
from kerolox.filter.tags import subscription_of
from kerolox.message import ALL_TAGS
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import TOOLS_GROUP

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageQueue


async def first_since(
    access: Access,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    address: str = "",
    bounds: tuple[int, int] | None = None,
    group: str = TOOLS_GROUP,
) -> int:
    """The offset of the first message of a queue that was stored at a time or later; the end of the
    queue where all are older, and where there is none.

    A broker's own search (code 29) gives the message that is nearest, on either side of the time,
    and any of several of one millisecond. So its answer is where this search begins: the messages
    beside it are pulled (code 11), one at a time, five or so. Where the clock of the broker was set
    back, the message before the result is older than the time and the result is not.

    ``address``: of the broker; empty: as the route has it; ClientError: it is unknown. ``bounds``:
    offset of the queue's first message and behind its last one; None: they are asked. ``group``: in
    whose name messages are pulled.
    """
    address = address or await access.read_address_of(queue.topic, queue.broker_name)
    if bounds is None:
        first = await queue_number(
            access, queue, RequestCode.GET_MIN_OFFSET, "offset", address=address
        )
        end = await queue_number(
            access, queue, RequestCode.GET_MAX_OFFSET, "offset", address=address
        )
    else:
        first, end = bounds
    if timestamp_ms <= 0 or first >= end:
        return first
    hint = await queue_number(
        access,
        queue,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        "offset",
        more={"timestamp": min(timestamp_ms, END_OF_TIME_MS)},
        address=address,
    )
    everything = subscription_of(queue.topic, ALL_TAGS)
    search = TimeSearch(first, end, timestamp_ms, hint)
    while (probe := search.probe()) is not None:
        search.probed(await _store_time(access, address, queue, probe, group, everything))
    return search.result


async def _store_time(
    access: Access,
    address: str,
    queue: MessageQueue,
    offset: int,
    group: str,
    everything: Subscription,
) -> int | None:
    """When the message at an offset was stored; None: it is not there."""
    request = pull_request(group, queue, offset, everything, max_messages=1, with_subscription=True)
    response = await access.remoting.invoke(
        address, request, timeout_seconds=access.timeout_seconds
    )
    result = pull_result(response, queue, everything, address)
    return next(
        (each.store_timestamp for each in result.messages if each.queue_offset == offset), None
    )
