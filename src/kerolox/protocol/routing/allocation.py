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


def sort_as_java(texts: Collection[str]) -> list[str]:
    """Sort as ``String.compareTo`` does: by UTF-16 units, so that all languages agree."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
