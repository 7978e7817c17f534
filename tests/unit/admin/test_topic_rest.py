"""A topic on a broker of RocketMQ comes to rest before it is deleted, and stays if it can't be."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.eventually import until
from tests.unit.admin.test_topics import FakeClient, has

from kerolox.admin import Access, Admin
from kerolox.admin.topic_changes import deletion
from kerolox.errors import ClientError, ConnectError
from kerolox.protocol.codes import RequestCode

UNKNOWN = (3, " request type 31038 not supported")
CLOSES = RequestCode.UPDATE_AND_CREATE_TOPIC
DELETES = RequestCode.DELETE_TOPIC_IN_BROKER
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"a","cluster":"C"}],'
    b'"filterServerTable":{},"queueDatas":[]}'
)


def runtime(end: int, behind: int) -> bytes:
    return b'{"table":{"commitLogMaxOffset":"%d","dispatchBehindBytes":"%d"}}' % (end, behind)


class Java(FakeClient):
    """One broker of RocketMQ with a topic of two queues; ``offset`` is that of the next message of
    each."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = 0
        self.grows = False
        self.answers |= {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE,
            RequestCode.GET_BROKER_ROLE: UNKNOWN,
            RequestCode.GET_TOPIC_CONFIG: has(1, 2),
            RequestCode.GET_BROKER_RUNTIME_INFO: runtime(100, 0),
            RequestCode.GET_BROKER_CONFIG: b"autoCreateTopicEnable=true",
        }

    async def invoke(self, address, command, *, timeout_seconds, ahead=False):  # type: ignore[no-untyped-def]
        answer = await super().invoke(address, command, timeout_seconds=timeout_seconds)
        if command.code == CLOSES and self.grows:
            self.offset += 1
        if command.code == RequestCode.GET_MAX_OFFSET:
            answer.ext_fields["offset"] = str(self.offset)
        return answer

    def done(self) -> list[tuple[str, ...]]:
        """What was asked of the broker to change."""
        return [
            (code.name, *(fields.get(name, "") for name in ("perm", "writeQueueNums")))
            for address, code, fields in self.asked
            if address == "a:1" and code in (CLOSES, DELETES)
        ]


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(deletion, "PRODUCERS_SECONDS", 0.001)
    return Java()


@pytest.fixture
def admin(java: Java) -> Admin:
    return Admin.on(Access(java, ("n:1",)))  # type: ignore[arg-type]


CLOSED, BACK = (CLOSES.name, "4", "0"), (CLOSES.name, "6", "2")
DELETED = (DELETES.name, "", "")


async def test_it_takes_no_more_messages_before_it_is_deleted(java: Java, admin: Admin) -> None:
    assert await admin.delete_topic("T") == ["a:1"]
    assert java.done() == [CLOSED, DELETED]
    closed = next(fields for _, code, fields in java.asked if code == CLOSES)
    assert closed["readQueueNums"] == "0"
    looks = java.fields(RequestCode.GET_MAX_OFFSET)
    assert {each["queueId"] for each in looks} == {"0", "1"}


async def test_queues_that_grow_and_a_log_that_is_not_in_them_are_waited_for(
    java: Java, admin: Admin
) -> None:
    java.answers[RequestCode.GET_BROKER_CONFIG] = b"autoCreateTopicEnable=false"
    java.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(100, 10)
    deleting = asyncio.create_task(admin.delete_topic("T"))
    for java.offset in range(10):
        before = len(java.asked)
        await until(lambda: len(java.asked) > before + 2)  # noqa: B023
    await until(lambda: java.addresses(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert java.done() == [CLOSED]
    java.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = (1, "no figures yet")
    await asyncio.sleep(0.01)
    assert java.done() == [CLOSED]
    # Of what other topics got meanwhile nothing is waited for.
    java.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(1000, 900)
    await deleting
    assert java.done() == [CLOSED, DELETED]


@pytest.mark.parametrize(
    ("makes_topics", "grows", "waits"),
    [("true", True, True), ("true", False, False), ("false", True, False)],
)
async def test_producers_get_time_where_the_topic_could_be_made_anew(
    java: Java, admin: Admin, makes_topics: str, grows: bool, waits: bool
) -> None:
    java.answers[RequestCode.GET_BROKER_CONFIG] = f"autoCreateTopicEnable={makes_topics}".encode()
    java.grows = grows
    await admin.delete_topic("T")
    assert java.done() == [CLOSED, DELETED]
    assert len(java.addresses(RequestCode.GET_BROKER_RUNTIME_INFO)) == 1 + waits


async def test_the_wait_has_an_end(
    java: Java, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "REST_SECONDS_MAX", 0.05)
    java.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(100, 10)
    await admin.delete_topic("T")
    assert java.done() == [CLOSED, DELETED]


async def test_a_topic_that_the_broker_does_not_have_is_not_waited_for(
    java: Java, admin: Admin
) -> None:
    java.answers[RequestCode.GET_TOPIC_CONFIG] = (17, "No topic in this broker")
    await admin.delete_topic("T")
    assert java.done() == [DELETED]


async def test_a_topic_that_is_not_deleted_is_as_before(java: Java, admin: Admin) -> None:
    java.answers[DELETES] = (1, "refused")
    with pytest.raises(ClientError, match="could not be deleted on broker a:1"):
        await admin.delete_topic("T")
    assert java.done() == [CLOSED, DELETED, BACK]
    java.asked.clear()
    java.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(100, 10)
    deleting = asyncio.create_task(admin.delete_topic("T"))
    await until(lambda: java.addresses(RequestCode.GET_BROKER_RUNTIME_INFO))
    deleting.cancel()
    await asyncio.wait([deleting])
    assert deleting.cancelled()
    assert java.done() == [CLOSED, BACK]


async def test_a_topic_whose_deletion_has_no_answer_is_not_made_anew(
    java: Java, admin: Admin
) -> None:
    java.answers[DELETES] = ConnectError("gone")
    with pytest.raises(ClientError, match="gone"):
        await admin.delete_topic("T")
    assert java.done() == [CLOSED, DELETED]
