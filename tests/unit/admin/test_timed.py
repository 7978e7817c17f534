"""What waits for a moment, read from a broker's records, whatever their properties say."""

from __future__ import annotations

import pytest
from tests.support.eventually import until

from kerolox.admin import Admin
from kerolox.client import Producer
from kerolox.message import Message
from kerolox.testing import LocalBroker

pytestmark = pytest.mark.asyncio

HOUR_MS = 3_600_000


async def test_a_moment_that_is_no_number_of_java_hides_no_message() -> None:
    with LocalBroker() as server:
        now_ms = server.clock()
        at = server.name_server
        async with Producer("p", at) as producer, Admin(at) as admin:
            for body, deliver in ((b"a", "9" * 5_000), (b"b", "x"), (b"c", str(now_ms))):
                # The delay counts, and the moment beside it is stored as it is.
                properties = {"TIMER_DELAY_MS": str(HOUR_MS), "TIMER_DELIVER_MS": deliver}
                await producer.send(Message("T", body, properties=properties))
            [broker] = (await admin.cluster_info()).masters("DefaultCluster")

            async def are_known() -> bool:
                return (await admin.timed_messages(broker)).waiting == {"T": 3}

            await until(are_known, what="the wheel")
            found = (await admin.timed_messages(broker)).messages
        assert [each.message.body for each in found] == [b"a", b"b", b"c"]
        assert all(0 <= each.due_ms - now_ms - HOUR_MS < 60_000 for each in found)
