"""What the Java 4.9 client does beside sending and reading, unmodified, against our broker.

Filters, delay, retry, order, transactions, requests, positions, and what operators ask of
consumers.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client import create_reply
from kerolox.client.sync import Producer, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message
from tests.support.eventually import wait_until
from tests.support.programs import java_command
from tests.support.servers.clusters import QUICK_CHECKS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.message import MessageExt

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java-features")]

SCENARIOS = (
    "sql92 delay timed retry_to_dlq straight_to_dlq more_retry_queues orderly_retry "
    "orderly_joins_and_leaves "
    "orderly_kill transactions request_reply request_callback request_to_kerolox "
    "shares_with_kerolox from_first from_last from_timestamp pull_held pull_filtered "
    "lite_assign_and_seek lite_by_time lite_subscribe_sql directly clone_offset reset "
    "reset_offline topic_made_again"
).split()

SETTINGS = {
    "enablePropertyFilter": "true",
    # All that is stored counts as cold, so that new groups start where their clients want.
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s " * 17 + "3s",
    **QUICK_CHECKS,
    # The queues of a consumer that was killed wait so long for another one.
    "rebalanceLockMaxLiveTime": 3_000,
}

# Queues are shared anew within a second instead of 20.
OPTIONS = (
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.lockInterval=500",
    "-Drocketmq.client.unlockDelayTimeMills=1000",
)

SERVED_BY_KEROLOX, SERVED_BY_JAVA, SHARED = "KeroloxServes", "JavaServes", "SharedAcross"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("features"), settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def replies() -> dict[str, str]:
    """What our client learned by the Java process, by what it asked."""
    return {}


@pytest.fixture(scope="module")
def shared() -> dict[str, list[str]]:
    """What members of one group got, by language."""
    return {"kerolox": [], "java": []}


@pytest.fixture(scope="module")
def outcomes(up: Up, replies: dict[str, str], shared: dict[str, list[str]]) -> dict[str, str]:
    """Scenario name to "ok" or what went wrong; all of them in one Java process, and at once."""
    with Producer("kerolox-side", up.namesrv) as producer:

        def serve(messages: list[MessageExt]) -> None:
            for message in messages:
                reply = create_reply(message, b"kerolox heard: " + message.body)
                reply.properties["kind"] = "yes"
                producer.send(reply)

        def share(messages: list[MessageExt]) -> None:
            shared["kerolox"] += (message.body.decode() for message in messages)

        producer.create_topic(SERVED_BY_KEROLOX, queues=2)
        producer.create_topic(SHARED, queues=4)
        settings = PushConsumerSettings(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        consumer = PushConsumer("kerolox-serves", up.namesrv, settings=settings)
        consumer.subscribe(SERVED_BY_KEROLOX, "*", serve)
        member = PushConsumer("shared-across", up.namesrv, settings=settings)
        member.subscribe(SHARED, "T || U", share)
        with consumer, member:
            process = subprocess.Popen(
                java_command("interop.Features", up.namesrv, options=OPTIONS),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                request = Message(SERVED_BY_JAVA, b"are you there?", tags="request")
                reply = producer.request(request, timeout_ms=60_000)
                replies["are you there?"] = reply.body.decode()
                output, errors = process.communicate(timeout=500)
            finally:
                process.kill()
            rows = [line.split("\t") for line in output.splitlines()]
            shared["java"] += (body for row in rows if row[0] == "shared" for body in row[1:])
            wait_until(lambda: len(shared["java"] + shared["kerolox"]) >= 48 or not shared["java"])
    print(errors)
    return {row[1]: row[2] for row in rows if row[0] == "scenario"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_application_works_unmodified(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "ok"


def test_no_scenario_is_left_out(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)


def test_a_java_consumer_replies_to_our_producer(
    outcomes: dict[str, str], replies: dict[str, str]
) -> None:
    assert replies == {"are you there?": "ARE YOU THERE?"}


def test_a_group_of_java_and_kerolox_shares_queues_and_gets_each_message_once(
    outcomes: dict[str, str], shared: dict[str, list[str]]
) -> None:
    both = [f"both{number}" for number in range(40)]
    alone = [f"alone{number}" for number in range(8)]
    assert sorted(shared["java"] + shared["kerolox"]) == sorted(both + alone)
    assert set(alone) <= set(shared["kerolox"])
    assert len(shared["java"]) == 20
