"""Fields and bodies of requests as clients write them; a test names only what is different."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.protocol.bodies import encode_body
from kerolox.protocol.command import wire_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BORN_MS", "heartbeat_body", "pull_fields", "send_fields", "topic_fields"]

BORN_MS = 1_700_000_000_000


def send_fields(**changes: object) -> dict[str, str]:
    """SEND_MESSAGE_V2, by its short names; None leaves a field out."""
    fields = {
        "a": "producers",
        "b": "T",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": BORN_MS,
        "h": 0,
        "i": "",
        "j": 0,
        "k": False,
        "m": False,
    }
    return wire_fields({**fields, **changes})


def pull_fields(**changes: object) -> dict[str, str]:
    """PULL_MESSAGE from the begin of queue 0, which is not held; None leaves a field out."""
    fields = {
        "consumerGroup": "readers",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 0,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
    }
    return wire_fields({**fields, **changes})


def topic_fields(topic: str, *, queues: int = 4, **changes: object) -> dict[str, str]:
    """UPDATE_AND_CREATE_TOPIC; None leaves a field out."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    return wire_fields({**fields, **changes})


def heartbeat_body(
    client_id: str,
    *,
    group: str = "",
    topics: Mapping[str, str] | None = None,
    version: int = 1,
    expression_type: str = "TAG",
    model: str = "CLUSTERING",
    consume_type: str = "CONSUME_PASSIVELY",
    codes: Sequence[int] = (),
    tags: Sequence[str] = (),
    unit_mode: bool = False,
    producers: Sequence[str] = (),
) -> bytes:
    """HEART_BEAT of a consumer, if ``group`` names one, and of producers.

    Args:
        client_id: who it is from.
        group: of the consumer.
        topics: expressions by topic, all of one version, type, set of codes and of tags.
        version: of the subscriptions.
        expression_type: ``TAG`` or ``SQL92``.
        model: ``CLUSTERING`` or ``BROADCASTING``.
        consume_type: ``CONSUME_PASSIVELY`` (push) or ``CONSUME_ACTIVELY``.
        codes: hashes of tags.
        tags: tags as texts.
        unit_mode: of the consumer.
        producers: groups.
    """
    subscriptions = [
        {
            "topic": topic,
            "subString": expression,
            "expressionType": expression_type,
            "subVersion": version,
            "codeSet": list(codes),
            "tagsSet": list(tags),
            "classFilterMode": False,
        }
        for topic, expression in (topics or {}).items()
    ]
    consumer = {
        "groupName": group,
        "consumeType": consume_type,
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions,
        "unitMode": unit_mode,
    }
    return encode_body(
        {
            "clientID": client_id,
            "consumerDataSet": [consumer] if group else [],
            "producerDataSet": [{"groupName": name} for name in producers],
        }
    )
