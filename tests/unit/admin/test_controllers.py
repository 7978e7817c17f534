"""What controllers of RocketMQ tell of their group."""

from __future__ import annotations

import pytest
from tests.support.servers.fake_broker import FakeBroker

from kerolox.admin import Admin
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("peers", "members"),
    [
        ("n0:10.0.0.1:9878;n1:10.0.0.2:9878;", {"n0": "10.0.0.1:9878", "n1": "10.0.0.2:9878"}),
        # Those that agree by jRaft have no names.
        ("10.0.0.1:9878;", {"10.0.0.1:9878": "10.0.0.1:9878"}),
    ],
)
async def test_members_are_told_with_their_names_or_without(
    peers: str, members: dict[str, str]
) -> None:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        return command.response(0, ext_fields={"peers": peers, "isLeader": "true"})

    async with FakeBroker() as fake, Admin(fake.address) as admin:
        fake.answers[RequestCode.CONTROLLER_GET_METADATA_INFO] = answer
        state = await admin.controller_state(fake.address)
        assert (state.role, state.members) == ("leader", members)
