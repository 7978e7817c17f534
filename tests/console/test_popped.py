"""Messages that members popped and hold: on the page of their group, and released there."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.client import RemotingClient
from tests.console.site import Visitor
from tests.support.clients.peer import Peer
from tests.support.clients.pops import Member

if TYPE_CHECKING:
    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster


async def test_messages_that_are_out_are_shown_and_released_as_the_plan_says(
    console: Console,
    topic_of_console: str,
    our_cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    group = f"g-{topic_of_console}"
    await console.admin.put_group(SubscriptionGroupConfig(group_name=group))
    client = RemotingClient()
    try:
        peer = Peer(our_cluster.broker, client)
        await peer.heartbeat("worker-1", group, {topic_of_console: "*"})
        member = Member(peer, topic_of_console, group)
        [popped] = await member.pop()
        viewer, operator = Visitor(console, "viewer"), Visitor(console, "operator")
        page = (await viewer.look("/group", name=group)).text
        assert "Messages that are out" in page
        assert "worker-1 has 1, for " in page
        asked = {"name": group, "owner": "worker-1", "minutes": "0"}
        plan = (await viewer.look("/group/release", **asked)).text
        assert "1 message would come again at once, that worker-1 has." in plan
        assert "Release them" not in plan
        assert "0 messages" in (await viewer.look("/group/release", **{**asked, "minutes": 9})).text
        assert (await viewer.post("/group/release", **asked)).status_code == 403
        plan = (await operator.look("/group/release", **asked)).text
        at = plan.partition('name="at" value="')[2].partition('"')[0]
        # Nothing was out a minute before.
        early = {**asked, "at": str(int(at) - 60_000)}
        assert "0 messages of group" in await operator.act("/group/release", **early)
        caplog.clear()
        told = await operator.act("/group/release", **asked, at=at)
        assert f"1 message of group {group} come again." in told
        lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == AUDIT_LOGGER]
        [line] = [each for each in lines if each.get("group") == group]
        assert (line["old"], line["new"]) == ("1 message out", "1 released")
        assert (await member.change(popped, 1_000)).code != 0
    finally:
        await client.close()
