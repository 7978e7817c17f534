"""A consumer takes no queue once it leaves its group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.aio.consumers.push.ownership.ownership import Ownership
from kerolox.client.aio.network.background import PeriodicTasks
from kerolox.message import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize("moment", ["before", "while it is told", "after"])
async def test_a_queue_that_is_taken_while_the_consumer_closes_is_not_pulled(moment: str) -> None:
    background, pulled = PeriodicTasks(), []

    async def run(assignment: Any) -> None:
        pulled.append(assignment.queue)

    async def assigned(queues: Iterable[MessageQueue]) -> None:
        if moment == "while it is told":
            ownership.end()

    given: Any = {
        "queries": None,
        "settings": None,
        "offsets": SimpleNamespace(table=SimpleNamespace(remove=lambda queue: None)),
        "pulling": SimpleNamespace(
            run=run,
            flow=SimpleNamespace(
                process_queue=lambda topic: SimpleNamespace(
                    is_dropped=False, last_pull_ms=0, last_consume_ms=0
                )
            ),
        ),
        "orderly": None,
        "locks": None,
        "events": SimpleNamespace(assigned=assigned),
    }
    assignments: dict[MessageQueue, Any] = {}
    ownership = Ownership(
        assignments, background=background, is_ordered=lambda topic: False, start_ms=0, **given
    )
    if moment == "before":
        ownership.end()
    assert await ownership.take([QUEUE], {QUEUE: 5}) is (moment != "before")
    if moment == "after":
        await assignments[QUEUE].task
    assert pulled == ([QUEUE] if moment == "after" else [])
    await background.stop()
