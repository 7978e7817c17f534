"""What brokers keep back until it is decided: halves of open transactions, which are ended here
where their producer does not end them."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin.messages.waiting import HALVES_READ_MAX
from kerolox.clock import now_ms
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.rendering import shown_body
from kerolox.console.visit import Visit
from kerolox.errors import ClientError, NotFoundError
from kerolox.message import PropertyKey

__all__ = ["commit", "roll_back", "transaction", "transactions"]


async def transactions(visit: Visit) -> Response:
    """Halves that are neither committed nor rolled back."""
    found, failed = await visit.console.cluster.ask_masters(visit.admin.open_halves)
    return visit.page(
        "transactions.html",
        brokers=found,
        failed=failed,
        now_ms=now_ms(),
        most=HALVES_READ_MAX,
    )


async def transaction(visit: Visit) -> Response:
    """One open transaction, and what ending it would do; nothing is changed."""
    broker, key = visit.needed("broker"), visit.needed("id")
    half = await visit.admin.open_half(await _address(visit, broker), key)
    _, body, _ = shown_body(half, "auto", visit.console.schemas)
    return visit.page(
        "transaction.html",
        broker=broker,
        half=half,
        topic=half.properties.get(PropertyKey.REAL_TOPIC, ""),
        group=half.properties.get(PropertyKey.PRODUCER_GROUP, ""),
        asked=half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "0"),
        body=body,
        now_ms=now_ms(),
    )


async def commit(visit: Actor) -> ActionResult:
    """Have its topic get the message."""
    return await _end(visit, is_commit=True)


async def roll_back(visit: Actor) -> ActionResult:
    """Drop the message, whose id was typed once more."""
    if visit.given("again") != visit.given("id"):
        raise ClientError("type the message's id once more to drop it; nothing was changed")
    return await _end(visit, is_commit=False)


async def _end(visit: Actor, *, is_commit: bool) -> ActionResult:
    broker, key = visit.required("broker"), visit.required("id")
    address = await _address(visit, broker)
    half = await visit.admin.end_half_message(address, key, commit=is_commit)
    topic = half.properties.get(PropertyKey.REAL_TOPIC, "")
    location = visit.path("/transactions")
    if is_commit:
        text = f"Committed: {half.message_id} is a message of {topic}."
        location = visit.path("/messages", topic=topic, id=half.unique_key)
    else:
        text = f"Rolled back: {half.message_id} will not come to {topic}."
    return ActionResult(
        text,
        location,
        {
            "msgId": half.message_id,
            "topic": topic,
            "producerGroup": half.properties.get(PropertyKey.PRODUCER_GROUP, ""),
            "brokerName": broker,
        },
        old="open",
        new="committed" if is_commit else "rolled back",
    )


async def _address(visit: Actor, broker: str) -> str:
    """Of the master of that name. Raises NotFoundError where there is none."""
    address = (await visit.console.cluster.masters()).get(broker)
    if address is None:
        raise NotFoundError(f"no master is called {broker!r}")
    return address
