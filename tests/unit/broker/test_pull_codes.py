"""Each result of a read has its response code."""

from __future__ import annotations

import pytest

from kerolox.broker.broker import Broker
from kerolox.kernel.status import GetMessageStatus, pull_code
from kerolox.protocol.codes import ResponseCode
from tests.support.clients.peer import peer_of, small_config

SUCCESS = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


@pytest.mark.parametrize(
    ("status", "at_the_start", "further_on"),
    [
        ("FOUND", SUCCESS, SUCCESS),
        ("NO_MATCHED_MESSAGE", RETRY, RETRY),
        ("MESSAGE_WAS_REMOVING", RETRY, RETRY),
        ("OFFSET_FOUND_NULL", NOT_FOUND, NOT_FOUND),
        ("OFFSET_OVERFLOW_BADLY", MOVED, MOVED),
        ("OFFSET_OVERFLOW_ONE", NOT_FOUND, NOT_FOUND),
        ("OFFSET_TOO_SMALL", MOVED, MOVED),
        ("NO_MATCHED_LOGIC_QUEUE", NOT_FOUND, MOVED),
        ("NO_MESSAGE_IN_QUEUE", NOT_FOUND, MOVED),
    ],
)
def test_each_status_has_its_code(
    status: str, at_the_start: ResponseCode, further_on: ResponseCode
) -> None:
    for offset, code in ((0, at_the_start), (5, further_on)):
        assert pull_code(GetMessageStatus[status], offset) == code


def test_all_statuses_are_known() -> None:
    assert [status.name for status in GetMessageStatus] == [
        "FOUND",
        "NO_MATCHED_MESSAGE",
        "MESSAGE_WAS_REMOVING",
        "OFFSET_FOUND_NULL",
        "OFFSET_OVERFLOW_BADLY",
        "OFFSET_OVERFLOW_ONE",
        "OFFSET_TOO_SMALL",
        "NO_MATCHED_LOGIC_QUEUE",
        "NO_MESSAGE_IN_QUEUE",
    ]


async def test_a_store_that_can_not_read_is_code_1(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(small_config(tmp_path), kernel="python") as broker, peer_of(broker) as peer:
        await peer.create_topic("T")

        def broken(*_arguments: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(broker.parts.store, "read", broken)
            answer = await peer.pull("T", unknownMember="1")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "Input/output error" in (answer.remark or "")
        assert (await peer.pull("T", unknownMember="1")).code == NOT_FOUND
