from __future__ import annotations

import pytest

from kerolox.protocol.headers import (
    EmptyHeader,
    HeaderFieldError,
    PullMessageHeader,
    SendMessageHeader,
    UnregisterClientHeader,
)

LONG = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "k\x01v",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "true",
}
SHORT = dict(
    zip("abcdefghi", [LONG[k] for k in list(LONG)[:9]], strict=True),
    j="0",
    k="false",
    l="16",
    m="true",
)


def test_long_and_short_names_give_the_same_header() -> None:
    header = SendMessageHeader.decode(LONG)
    assert header == SendMessageHeader.decode_short(SHORT)
    assert (header.queue_id, header.batch, header.max_reconsume_times) == (1, True, 16)


def test_members_that_nobody_knows_are_ignored() -> None:
    assert SendMessageHeader.decode(LONG | {"bname": "b"}) == SendMessageHeader.decode(LONG)
    assert EmptyHeader.decode({"a": "b"}) == EmptyHeader()


def test_members_that_may_be_missing_have_defaults() -> None:
    short = {key: SHORT[key] for key in "bdefgh"}
    header = SendMessageHeader.decode_short(short)
    assert (header.producer_group, header.default_topic) == ("", "")
    assert (header.properties, header.reconsume_times, header.batch) == ("", 0, False)
    assert header.max_reconsume_times is None


@pytest.mark.parametrize("name", ["topic", "queueId", "bornTimestamp", "flag"])
def test_a_missing_required_member_is_named(name: str) -> None:
    given = {key: value for key, value in LONG.items() if key != name}
    with pytest.raises(HeaderFieldError, match=f"^the custom field <{name}> is null$"):
        SendMessageHeader.decode(given)


def test_a_missing_short_member_is_named_as_it_travels() -> None:
    with pytest.raises(HeaderFieldError, match="<e>"):
        SendMessageHeader.decode_short({k: v for k, v in SHORT.items() if k != "e"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queueId", "one"),
        ("queueId", ""),
        ("queueId", "1.5"),
        ("queueId", str(1 << 31)),
        ("queueId", str(-(1 << 31) - 1)),
        ("bornTimestamp", str(1 << 63)),
        ("batch", "maybe"),
    ],
)
def test_a_member_of_the_wrong_type_is_named(name: str, value: str) -> None:
    with pytest.raises(HeaderFieldError, match=f"<{name}> is illegal"):
        SendMessageHeader.decode(LONG | {name: value})


def test_names_that_break_the_rule_are_spelled_out() -> None:
    assert UnregisterClientHeader.decode({"clientID": "c"}).client_id == "c"


def test_a_pull_may_leave_out_its_subscription() -> None:
    header = PullMessageHeader.decode(
        {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "9223372036854775807",
            "maxMsgNums": "32",
            "sysFlag": "2",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subVersion": "0",
        }
    )
    assert header.subscription is None
    assert header.queue_offset == (1 << 63) - 1
