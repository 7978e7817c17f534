"""The same requests to our broker and to the Java broker: the same answers, or a listed reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.errors import RequestTimeoutError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from tests.contract.answers import TOPIC, Case, cases, shape
from tests.contract.conftest import eventually
from tests.support.clusters import JavaPeer
from tests.unit.broker.support import small_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

SENT_TO_QUEUE_0 = 8
"""Messages of the first queue; the Java broker shows them a little after it acknowledged them."""

SILENCE_SECONDS = 3.0

GOES_ON = "the Java broker goes on with null or 0 where a member is missing or no number"
DIFFERENCES = {
    "a heartbeat that is empty": "the Java broker registers a client whose id is null",
    "check nothing": "the Java broker stumbles over the body that is not there",
    "send with a delay that is no number": "theirs is an exception, ours a refused send",
    "send with a flag that is said to be a batch": "theirs is an exception, ours a refused send",
    "pull a bad one": "ours looks at the expression before it says that it takes none",
    "pull an unknown type": "ours looks at the expression before it says that it takes none",
    "pull a negative number": "theirs is an exception; ours gives one message, as for 0",
    "all offsets": "the Java broker kept offsets of the group null and of the topic null",
    "look into an unknown queue": "the Java broker makes the queue that is asked for",
    "look into an unknown topic": "the Java broker makes the queue that is asked for",
    "change an unknown setting": "the Java broker takes it for changed",
    "get_broker_cluster_acl_info": "the Java broker answers nothing when it has no access control",
}


async def answers(address: str) -> dict[str, tuple[Case, RemotingCommand | None]]:
    """What a broker answers to each; None: nothing."""

    async def on_request(command: RemotingCommand, connection: object) -> None:
        """Notices of the broker to the consumer that the heartbeats told of."""

    found: dict[str, tuple[Case, RemotingCommand | None]] = {}
    async with RemotingClient(on_request=on_request) as client:

        async def ask(case: Case) -> RemotingCommand:
            request = RemotingCommand.request(case.code, case.fields, body=case.body)
            return await client.invoke(address, request, timeout_seconds=SILENCE_SECONDS)

        async def is_shown() -> bool:
            queue = {"topic": TOPIC, "queueId": "0"}
            answer = await ask(Case("", RequestCode.GET_MAX_OFFSET, queue))
            return answer.ext_fields["offset"] == str(SENT_TO_QUEUE_0)

        for case in cases():
            assert case.name not in found, f"two cases are named {case.name!r}"
            if case.name == "pull":
                await eventually(is_shown, what="the sight of all messages")
            try:
                found[case.name] = case, await ask(case)
            except RequestTimeoutError:
                found[case.name] = case, None
    return found


def reason(name: str, ours: RemotingCommand | None) -> str | None:
    """Why an answer may differ."""
    if ours is not None and (ours.remark or "").startswith("the custom field <"):
        return GOES_ON
    return DIFFERENCES.get(name)


async def test_the_same_requests_get_the_same_answers(tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "ours",
        broker_name="broker-a",
        max_message_size=4 << 20,
        mapped_file_size_commit_log=64 << 20,
    )
    with JavaPeer(tmp_path / "java", with_namesrv=False) as java:
        theirs = await answers(f"127.0.0.1:{java.port}")
    async with Broker(config) as broker:
        ours = await answers(f"127.0.0.1:{broker.port}")
    differing: dict[str, Any] = {}
    for name, (case, answer) in theirs.items():
        left, right = shape(case, answer), shape(case, ours[name][1])
        if left != right:
            differing[name] = {"java": left, "ours": right}
    unexplained = {k: v for k, v in differing.items() if reason(k, ours[k][1]) is None}
    assert not unexplained
    assert len(theirs) >= 300
    assert sorted(DIFFERENCES.keys() - differing.keys()) == [], "they do not differ any more"
