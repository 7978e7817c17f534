"""The same requests to our broker and to the Java broker: the same answers, or a listed reason."""

from __future__ import annotations

import asyncio
from pprint import pformat
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.errors import RequestTimeoutError
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from tests.contract.answers import TOPIC, Case, cases, ends, shape
from tests.contract.answers_online import online_cases
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

SENT_TO_QUEUE_0 = 8
"""Messages of the first queue; the Java broker shows them a little after it acknowledged them."""

LATER = " ".join(["1h"] * 18)
"""Delays by level: no delayed message arrives meanwhile, however long the requests take."""

SILENCE_SECONDS, ANSWER_SECONDS_MAX = 3.0, 30.0
SILENT = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
"""What a broker may not answer at all."""

GOES_ON = "the Java broker goes on with null or 0 where a member is missing or no number"
SINCE_5 = "the code is of 5.x, which a broker of 4.9 refuses"
DIFFERENCES = {
    "pull as a 5.x lite consumer": SINCE_5,
    "one topic": SINCE_5,
    "one group": SINCE_5,
    "topics of one group": SINCE_5,
    "a subscription": SINCE_5,
    "replication": SINCE_5,
    "a heartbeat that is empty": "the Java broker registers a client whose id is null",
    "check nothing": "the Java broker stumbles over the body that is not there",
    "send with a delay that is no number": "theirs is an exception, ours a refused send",
    "send with a flag that is said to be a batch": "theirs is an exception, ours a refused send",
    "pull a bad one": "ours examines the expression before it says that it takes none",
    "pull an unknown type": "ours examines the expression before it says that it takes none",
    "pull by 'k >'": "the Java broker delivers everything; an assertion that is off would refuse",
    "pull by an unknown kind": "the same",
    "pull a negative number": "theirs is an exception; ours gives one message, as for 0",
    "all offsets": "the Java broker kept offsets of the group null and of the topic null",
    "look into an unknown queue": "the Java broker makes the queue that is asked for",
    "look into an unknown topic": "the Java broker makes the queue that is asked for",
    "change an unknown setting": "the Java broker takes it for changed",
    "get_broker_runtime_info": "ours counts connections and refusals, too (test_runtime_info)",
    "get_broker_cluster_acl_info": "the Java broker answers nothing when it has no access control",
}


async def answers(
    address: str, heard: list[RemotingCommand]
) -> dict[str, tuple[Case, RemotingCommand | None]]:
    """What a broker answers to each; None: nothing. What it asks its consumer goes to ``heard``."""

    async def on_request(command: RemotingCommand, connection: object) -> RemotingCommand | None:
        heard.append(command)
        if command.is_oneway:
            return None
        return command.response(0, "as it is", {"seen": command.code}, body=b'{"a":[1]}')

    found: dict[str, tuple[Case, RemotingCommand | None]] = {}
    async with RemotingClient(on_request=on_request) as client:

        async def ask(case: Case) -> RemotingCommand:
            fields = dict(case.fields)
            if case.after is not None:
                name, members = case.after
                earlier = found[name][1]
                assert earlier is not None, name
                fields |= members(earlier)
            request = RemotingCommand.request(case.code, fields, body=case.body)
            request.version = case.version or request.version
            request.language = case.language or request.language
            seconds = SILENCE_SECONDS if case.code == SILENT else ANSWER_SECONDS_MAX
            return await client.invoke(address, request, timeout_seconds=seconds)

        async def is_shown() -> bool:
            queue = {"topic": TOPIC, "queueId": "0"}
            answer = await ask(Case("", RequestCode.GET_MAX_OFFSET, queue))
            return answer.ext_fields["offset"] == str(SENT_TO_QUEUE_0)

        async def is_caught_up() -> bool:
            # A Java broker of less than a second has no such figures yet.
            answer = await ask(Case("", RequestCode.GET_BROKER_RUNTIME_INFO))
            if answer.code != ResponseCode.SUCCESS:
                return False
            return bool(fastjson.loads(answer.body)["table"]["dispatchBehindBytes"] == "0")

        await until(is_caught_up, what="the first figures")
        for case in (*cases(), *online_cases(), *ends()):
            assert case.name not in found, f"two cases are named {case.name!r}"
            if case.name == "pull":
                await until(is_shown, what="the sight of all messages")
            if case.reads_back:
                await until(is_caught_up, what="the end of dispatching")
            # A client hangs up when it hears nothing at all. Here it hears of something else.
            heard_of = is_caught_up() if case.code == SILENT else asyncio.sleep(0)
            try:
                found[case.name] = case, (await asyncio.gather(ask(case), heard_of))[0]
            except RequestTimeoutError:
                found[case.name] = case, None
    return found


def reason(name: str, ours: RemotingCommand | None) -> str | None:
    """Why an answer may differ."""
    if ours is not None and (ours.remark or "").startswith("the custom field <"):
        return GOES_ON
    return DIFFERENCES.get(name)


def asked(command: RemotingCommand) -> dict[str, Any]:
    """What of a broker's request to its consumer both brokers share."""
    return {"oneway": command.is_oneway, **shape(Case("", command.code), command)}


async def test_the_same_requests_get_the_same_answers(tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "ours",
        broker_name="broker-a",
        max_message_size=4 << 20,
        mapped_file_size_commit_log=64 << 20,
        message_delay_level=LATER,
    )
    heard_of_theirs: list[RemotingCommand] = []
    heard_of_ours: list[RemotingCommand] = []
    delays = (f"messageDelayLevel={LATER}",)
    with JavaPeer(tmp_path / "java", settings=delays, with_namesrv=False) as java:
        theirs = await answers(f"127.0.0.1:{java.port}", heard_of_theirs)
    async with Broker(config) as broker:
        ours = await answers(f"127.0.0.1:{broker.port}", heard_of_ours)
    differing: dict[str, Any] = {}
    for name, (case, answer) in theirs.items():
        left, right = shape(case, answer), shape(case, ours[name][1])
        if left != right:
            differing[name] = {"java": left, "ours": right}
    unexplained = {k: v for k, v in differing.items() if reason(k, ours[k][1]) is None}
    assert not unexplained, pformat(unexplained)
    assert len(theirs) >= 300
    assert [asked(each) for each in heard_of_ours] == [asked(each) for each in heard_of_theirs]
    assert sorted(DIFFERENCES.keys() - differing.keys()) == [], "they do not differ any more"
