"""``kerolox trace``."""

from __future__ import annotations

import json

import pytest

from kerolox.client.core.tracing.trace import PubTrace, SubAfterTrace, SubBeforeTrace
from kerolox.client.sync import (
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.errors import TopicRouteNotFoundError
from kerolox.message import ConsumeFromWhere, Message, MessageExt
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox


@pytest.fixture
def message_id(name_server: str) -> str:
    """A message that was sent and consumed, and told of."""
    got: list[MessageExt] = []
    given = PushConsumerSettings(
        enable_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer = PushConsumer("traced-readers", name_server, settings=given)
    consumer.subscribe("Traced", "*", got.extend)
    settings = ProducerSettings(enable_trace=True)
    with Producer("traced-writers", name_server, settings=settings) as producer:
        sent = producer.send(Message("Traced", b"x", tags="a"))

        def is_told() -> bool:
            try:
                found = producer.query_trace(sent.message_id)
            except TopicRouteNotFoundError:
                return False  # the first traces make their topic
            kinds = {type(view.trace) for view in found}
            return kinds >= {PubTrace, SubBeforeTrace, SubAfterTrace}

        with consumer:
            wait_until(lambda: got, what="the message")
            # What is not sent a second after the end is lost: a disk may pause for longer.
            wait_until(is_told, what="the traces")
    return sent.message_id


def test_the_way_of_a_message_is_shown(name_server: str, message_id: str) -> None:
    done = kerolox("trace", message_id, "-n", name_server)
    head, sent, stored, consuming, consumed = done.stdout.splitlines()
    assert head.split()[:4] == ["TIME", "AFTER", "MS", "EVENT"]
    assert "traced-writers" in sent
    assert "NORMAL, 1 bytes of topic Traced to 127.0.0.1:" in sent
    assert " stored " in stored
    assert stored.endswith("@0")
    assert " consuming " in consuming
    assert "traced-readers" in consumed
    assert consumed.endswith(" SUCCESS")
    events = json.loads(kerolox("trace", message_id, "-o", "json", "-n", name_server).stdout)
    assert [each["type"] for each in events] == ["Pub", "Stored", "SubBefore", "SubAfter"]
    assert [each["event"] for each in events] == ["sent", "stored", "consuming", "consumed"]
    after = [each["afterMs"] for each in events]
    assert after[0] == 0
    assert after == sorted(after)
    told = [each["details"] for each in events if each["type"] != "Stored"]
    assert {each["message_id"] for each in told} == {message_id}
    assert (told[0]["tags"], told[2]["return_type"]) == ("a", "SUCCESS")
    raw = kerolox("trace", message_id, "-o", "{event}", "-n", name_server).stdout
    assert raw.split() == ["sent", "stored", "consuming", "consumed"]

    missing = kerolox("trace", "F" * 32, "-n", name_server)
    assert missing.returncode == 1
    assert "has no trace of message" in missing.stderr
    nowhere = kerolox("trace", message_id, "--topic", "Nowhere", "-n", name_server)
    assert nowhere.returncode == 1
    assert "no route for topic 'Nowhere'" in nowhere.stderr
