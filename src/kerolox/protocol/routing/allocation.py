"""Who of a group reads which queue, by the strategies that every member knows.

Members decide so for themselves; a broker decides for members that ask it (QUERY_ASSIGNMENT). As
long as all have the same sorted lists, each queue has exactly one reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kerolox.message import MessageQueue

AllocationStrategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""From our client id, all queues and all client ids (both sorted): our queues."""


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """AVG: a run of neighbours each; the first members get the remainder."""
    if client_id not in client_ids or not queues:
        return []
    index, members = client_ids.index(client_id), len(client_ids)
    size, remainder = divmod(len(queues), members)
    if index < remainder:
        start = index * (size + 1)
        return list(queues[start : start + size + 1])
    start = index * size + remainder
    return list(queues[start : start + size])


def allocate_averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: dealt out one by one, as cards are."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


ALL_QUEUES = -1
"""The queue id that stands for all queues of a topic at a broker, in a pop."""


def allocate_for_pop(
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    strategy: AllocationStrategy,
    share: int,
) -> list[MessageQueue]:
    """What a member pops from (``allocate4Pop``): several have the same queue.

    Args:
        client_id: of the member.
        queues: all of the topic, sorted.
        client_ids: of all members, sorted.
        strategy: who would read what by pulls.
        share: ``popShareQueueNum``: how many of the members after it a member helps; with 0 or
            less, or as many as there are others, each pops from all queues of each broker at once.
    """
    if share <= 0 or share >= len(client_ids) - 1:
        found = [MessageQueue(topic, broker, ALL_QUEUES) for topic, broker, _ in queues]
    elif client_id not in client_ids or not queues:
        return []
    elif len(client_ids) > len(queues):
        return [queues[client_ids.index(client_id) % len(queues)]]
    else:
        own = client_ids.index(client_id)
        helped = (client_ids[(own + step) % len(client_ids)] for step in range(share + 1))
        found = [queue for each in helped for queue in strategy(each, queues, client_ids)]
    return list(dict.fromkeys(found))


def sort_as_java(texts: Collection[str]) -> list[str]:
    """Sort as ``String.compareTo`` does: by UTF-16 units, so that all languages agree."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
