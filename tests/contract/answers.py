"""A few hundred requests, well and badly formed, and what two brokers' answers must share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import LanguageCode, MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.requests import heartbeat_body, pull_fields, send_fields, topic_fields
from tests.support.stores.bench import V1_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kerolox.protocol.command import RemotingCommand

__all__ = ["Case", "cases", "ends", "of_pull", "of_send", "shape", "spoiled"]

TOPIC, GROUP, CLIENT = "AnswersTopic", "answers-group", "127.0.0.1@answers"
SPOILED_TOPIC, SPOILED_GROUP = "AnswersSpoiled", "answers-spoiled"
"""What spoiled requests write to, of which some are stored by one broker and refused by another."""


@dataclass(frozen=True)
class Case:
    """One request. Its name is unique and says what is special about it."""

    name: str
    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    volatile: frozenset[str] = frozenset()
    """Members of the answer that may differ: what went before left different things."""
    after: tuple[str, Callable[[RemotingCommand], dict[str, str]]] | None = None
    """The name of an earlier case, and what its answer gives for further fields of this one."""
    reads_back: bool = False
    """It examines what was just sent: the Java broker shows that a little after it answered."""
    version: int | None = None
    language: LanguageCode | None = None


def cases() -> Iterator[Case]:
    """All requests, in the order in which they are sent: later ones find what earlier ones left."""
    yield from _unknown()
    yield from _topics()
    yield from _heartbeats()
    yield from _sends()
    yield from _pulls()
    yield from _offsets()
    yield from _queries()
    yield from _send_backs()
    yield from _transactions()
    yield from _locks()
    yield from _groups()
    yield from _admin()


def spoiled(case: Case) -> Iterator[Case]:
    """The request as it is, then with each member missing, and each number no number."""
    yield case
    for name, value in case.fields.items():
        others = {key: text for key, text in case.fields.items() if key != name}
        yield replace(case, name=f"{case.name} without {name}", fields=others)
        if re.fullmatch(r"-?\d+", value):
            spoiled = {**others, name: "x"}
            yield replace(case, name=f"{case.name} with {name}=x", fields=spoiled)


def _unknown() -> Iterator[Case]:
    for code in (0, 1, 99, 105, 206, 9999):
        yield Case(f"unknown code {code}", code)


# -- topics -------------------------------------------------------------------------------------
def _create(name: str, topic: str, **members: Any) -> Case:
    return Case(name, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, **members))


def _topics() -> Iterator[Case]:
    yield from spoiled(_create("create", TOPIC))
    yield _create("create one for spoiled requests", SPOILED_TOPIC)
    yield _create("create again", TOPIC)
    yield _create("create with a bad name", "a b")
    yield _create("create with a name of 128", "x" * 128)
    yield _create("create with a name of 127", "x" * 127)
    yield _create("create with an empty name", "")
    yield _create("create a system topic", "SCHEDULE_TOPIC_XXXX")
    yield _create("create the default topic", "TBW102")
    yield _create("create one only to read", "AnswersReadOnly", perm="4")
    yield _create("create one only to write", "AnswersWriteOnly", perm="2")
    yield _create("create with no permission", "AnswersNone", perm="0")
    yield _create("create with a filter type unknown", "AnswersFilter", topicFilterType="X")
    yield _create("create an ordered one", "AnswersOrder", order="true")
    yield _create("create one to delete", "AnswersGone")
    stats = RequestCode.GET_TOPIC_STATS_INFO
    yield from spoiled(Case("topic statistics", stats, {"topic": TOPIC}))
    yield Case("topic statistics of an unknown topic", stats, {"topic": "Nowhere"})
    yield Case("all topics", RequestCode.GET_ALL_TOPIC_CONFIG)
    yield Case("one topic", RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
    yield Case("system topics", RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)


# -- clients ------------------------------------------------------------------------------------
def _heartbeats() -> Iterator[Case]:
    body = heartbeat_body(CLIENT, group=GROUP, topics={TOPIC: "*"}, producers=["answers-producers"])
    yield Case("a heartbeat", RequestCode.HEART_BEAT, {}, body)
    yield Case("a heartbeat again", RequestCode.HEART_BEAT, {}, body)
    for name, body in {
        "without a body": b"",
        "that is no JSON": b"{",
        "that is a list": b"[]",
        "that is empty": b"{}",
        "of wrong types": b'{"clientID":5,"consumerDataSet":7}',
        "with enums as numbers": b'{"clientID":"c","consumerDataSet":[{"groupName":"answers-cpp",'
        b'"consumeType":1,"messageModel":1,"consumeFromWhere":4,"subscriptionDataSet":[{"topic":"T",'
        b'"subString":"a","subVersion":"17","codeSet":["97"]}]}]}\n',
        "with a number that is no enum": b'{"clientID":"c","consumerDataSet":[{"groupName":"g",'
        b'"messageModel":7}]}',
        "in capitals": b'{"ClientID":"c","ConsumerDataSet":[{"GroupName":"answers-net",'
        b'"ConsumeType":"CONSUME_PASSIVELY","MessageModel":"CLUSTERING","ConsumeFromWhere":'
        b'"CONSUME_FROM_LAST_OFFSET","SubscriptionDataSet":[{"Topic":"T","SubString":"*"}]}]}',
    }.items():
        yield Case(f"a heartbeat {name}", RequestCode.HEART_BEAT, {}, body)
    for group in ("answers-cpp", "answers-net"):
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        yield Case(f"members of {group}", code, {"consumerGroup": group})
    check = {
        "clientId": CLIENT,
        "group": GROUP,
        "subscriptionData": {
            "topic": TOPIC,
            "subString": "a > 1",
            "expressionType": "SQL92",
            "subVersion": 1,
        },
    }
    yield Case("check an expression", RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(check))
    check["subscriptionData"] = {**check["subscriptionData"], "subString": "a >"}  # type: ignore[dict-item]
    yield Case("check a bad one", RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(check))
    yield Case("check nothing", RequestCode.CHECK_CLIENT_CONFIG)
    for code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST):
        yield from spoiled(Case(f"clients by {code}", code, {"consumerGroup": GROUP}))
        yield Case(f"clients of an unknown group by {code}", code, {"consumerGroup": "nobody"})
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    yield from spoiled(Case("producers", code, {"producerGroup": "answers-producers"}))
    yield Case("producers of an unknown group", code, {"producerGroup": "nobody"})
    yield Case("all producers", RequestCode.GET_ALL_PRODUCER_INFO)


# -- sends --------------------------------------------------------------------------------------
def _send_fields(**members: str) -> dict[str, str]:
    properties = "UNIQ_KEY\x010A0000010001\x02WAIT\x01true\x02"
    return send_fields(**{"a": "answers-producers", "b": TOPIC, "i": properties, **members})


def of_send(name: str, body: bytes = b"hello", code: int = 310, **members: str) -> Case:
    """A send to the first queue, with other members."""
    return Case(name, code, _send_fields(**members), body)


def _sends() -> Iterator[Case]:
    yield of_send("send")
    short = _send_fields(b=SPOILED_TOPIC)
    long = {V1_NAMES[name]: value for name, value in short.items()}
    offset = frozenset({"queueOffset"})
    yield from spoiled(Case("send short", RequestCode.SEND_MESSAGE_V2, short, b"x", offset))
    yield from spoiled(Case("send long", RequestCode.SEND_MESSAGE, long, b"x", offset))
    any_queue = frozenset({"queueId", "queueOffset"})
    minus = _send_fields(b=SPOILED_TOPIC, e="-1")
    yield Case("send to queue -1", RequestCode.SEND_MESSAGE_V2, minus, b"x", any_queue)
    for queue_id in ("1", "2", "3"):
        yield of_send(f"send to queue {queue_id}", e=queue_id)
    for queue_id in ("4", "99", "2147483647"):
        yield of_send(f"send to queue {queue_id}, which is not there", e=queue_id)
    yield of_send("send without a body", b"")
    yield of_send("send 4 MiB", b"x" * (4 << 20))
    yield of_send("send more than 4 MiB", b"x" * ((4 << 20) + 1))
    yield of_send("send without properties", i="")
    yield of_send("send odd properties", i="a\x02\x01b\x02c\x01")
    yield of_send("send properties of 32,767", i="k\x01" + "v" * 32_765)
    yield of_send("send properties of 32,768", i="k\x01" + "v" * 32_766)
    yield of_send("send a tag and keys", i="TAGS\x01red\x02KEYS\x01k1 k2\x02")
    yield of_send("send with a delay", i="DELAY\x013\x02")
    yield of_send("send with a delay unknown", i="DELAY\x0199\x02")
    yield of_send("send with a delay that is no number", i="DELAY\x01x\x02")
    yield of_send("send to a new topic", b="AnswersNew")
    yield of_send("send to a new topic by a template unknown", b="AnswersNew2", c="Nowhere")
    yield of_send("send to a topic only read", b="AnswersReadOnly")
    yield of_send("send to a topic only written", b="AnswersWriteOnly")
    yield of_send("send to a topic of no permission", b="AnswersNone")
    yield of_send("send to a bad name", b="a b")
    yield of_send("send to a name of 128", b="x" * 128)
    yield of_send("send to a system topic", b="RMQ_SYS_TRANS_HALF_TOPIC")
    yield of_send("send to the delay topic", b="SCHEDULE_TOPIC_XXXX")
    yield of_send("send to the default topic", b="TBW102")
    yield of_send("send to a retry topic", b=f"%RETRY%{GROUP}", j="2")
    yield of_send("send to a retry topic unknown", b="%RETRY%nobody", j="2")
    yield of_send(
        "send with a flag that is said to be a batch", code=RequestCode.SEND_BATCH_MESSAGE, m="true"
    )
    yield of_send("send a sys flag unknown", f="1024")
    yield of_send("send with a negative time", g="-1")


# -- pulls --------------------------------------------------------------------------------------
def of_pull(name: str, **members: str) -> Case:
    """A pull."""
    own = {"consumerGroup": GROUP, "topic": TOPIC, "maxMsgNums": "4", "subVersion": "1"}
    return Case(name, RequestCode.PULL_MESSAGE, pull_fields(**{**own, **members}))


def _pulls() -> Iterator[Case]:
    yield from spoiled(of_pull("pull"))
    yield of_pull("pull with its own subscription", sysFlag="4")
    yield of_pull("pull a tag", sysFlag="4", subscription="red")
    yield of_pull("pull a tag unknown", sysFlag="4", subscription="blue")
    yield of_pull("pull two tags", sysFlag="4", subscription="red || blue")
    yield of_pull("pull a bad tag", sysFlag="4", subscription="||")
    yield of_pull("pull an expression", sysFlag="4", subscription="a > 1", expressionType="SQL92")
    yield of_pull("pull a bad one", sysFlag="4", subscription="a >", expressionType="SQL92")
    yield of_pull("pull an unknown type", sysFlag="4", expressionType="XPATH")
    yield of_pull("pull by a class", sysFlag="12")
    yield of_pull("pull a newer subscription", subVersion="99999999999999")
    yield of_pull("pull an older subscription", subVersion="0")
    yield of_pull("pull and commit", sysFlag="1", commitOffset="1")
    yield of_pull("pull nothing", maxMsgNums="0")
    yield of_pull("pull a negative number", maxMsgNums="-1")
    yield of_pull("pull behind the end", queueOffset="1000")
    yield of_pull("pull before the start", queueOffset="-5")
    yield of_pull("pull an empty queue of another topic", sysFlag="4", topic="AnswersOrder")
    yield of_pull("pull queue 9", queueId="9")
    yield of_pull("pull queue -1", queueId="-1")
    yield of_pull("pull an unknown topic", topic="Nowhere")
    yield of_pull("pull a bad topic", topic="a b")
    yield of_pull("pull a topic only written", topic="AnswersWriteOnly", sysFlag="4")
    yield of_pull("pull a topic not subscribed", topic="AnswersOrder")
    yield of_pull("pull by a group unknown", consumerGroup="newcomers")
    lite = of_pull("pull as a 5.x lite consumer", sysFlag="20")
    yield replace(lite, code=RequestCode.LITE_PULL_MESSAGE)
    yield of_pull("pull by a group unknown, with a subscription", consumerGroup="new2", sysFlag="4")


# -- offsets ------------------------------------------------------------------------------------
def _offsets() -> Iterator[Case]:
    queue = {"topic": TOPIC, "queueId": "0"}
    for code in (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ):
        yield from spoiled(Case(f"{code.name.lower()}", code, queue))
        for name, members in {
            "queue 9": {**queue, "queueId": "9"},
            "an unknown topic": {**queue, "topic": "Nowhere"},
        }.items():
            yield Case(f"{code.name.lower()} of {name}", code, members)
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    for time in ("0", "-1", "9999999999999"):
        yield from spoiled(Case(f"offset at {time}", code, {**queue, "timestamp": time}))
    yield Case("offset at 0 of an unknown topic", code, {**queue, "topic": "N", "timestamp": "0"})
    group = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1"}
    asked, told = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
    yield from spoiled(Case("ask a group's offset", asked, group))
    other = {**group, "consumerGroup": SPOILED_GROUP, "commitOffset": "2"}
    yield from spoiled(Case("tell a spoiled offset", told, other))
    yield Case("tell a group's offset", told, {**group, "commitOffset": "2"})
    yield Case("ask for what was reported", asked, group)
    yield Case("tell a smaller one", told, {**group, "commitOffset": "1"})
    yield Case("tell a negative one", told, {**group, "commitOffset": "-7"})
    yield Case("ask for the negative one", asked, group)
    yield Case("ask for another queue", asked, {**group, "queueId": "2"})
    yield Case("ask for an unknown group", asked, {**group, "consumerGroup": "nobody"})
    yield Case("ask for an unknown topic", asked, {**group, "topic": "Nowhere"})
    yield Case("all offsets", RequestCode.GET_ALL_CONSUMER_OFFSET)
    yield Case("all delay offsets", RequestCode.GET_ALL_DELAY_OFFSET)


# -- queries ------------------------------------------------------------------------------------
def _queries() -> Iterator[Case]:
    members = {
        "topic": TOPIC,
        "key": "k1",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": "9999999999999",
    }
    code = RequestCode.QUERY_MESSAGE
    yield from spoiled(Case("query a key", code, members))
    yield Case("query an unknown key", code, {**members, "key": "none"})
    yield Case("query an unknown topic", code, {**members, "topic": "Nowhere"})
    yield Case("query none", code, {**members, "maxNum": "0"})
    yield Case("query a time before", code, {**members, "endTimestamp": "1"})
    yield Case(
        "query a unique key", code, {**members, "key": "0A0000010001", "_UNIQUE_KEY_QUERY": "true"}
    )
    for offset in ("0", "7", "-1", "999999999999"):
        yield Case(f"view {offset}", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    yield Case("view no number", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "x"})
    code = RequestCode.QUERY_CONSUME_QUEUE
    members = {"topic": TOPIC, "queueId": "0", "index": "0", "count": "3", "consumerGroup": GROUP}
    yield from spoiled(Case("look into a queue", code, members))
    yield Case("look behind its end", code, {**members, "index": "5000"})
    yield Case("look into an unknown queue", code, {**members, "queueId": "9"})
    yield Case("look into an unknown topic", code, {**members, "topic": "Nowhere"})


# -- retries and transactions -------------------------------------------------------------------
def _send_backs() -> Iterator[Case]:
    members = {
        "offset": "0",
        "group": GROUP,
        "delayLevel": "1",
        "originMsgId": "id",
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    yield from spoiled(Case("send back", code, members))
    for name, other in {
        "to the dead": {"delayLevel": "-1"},
        "at no level": {"delayLevel": "0"},
        "at a level unknown": {"delayLevel": "99"},
        "nothing": {"offset": "3"},
        "behind the end": {"offset": "999999999999"},
        "for an unknown group": {"group": "nobody"},
        "for the last time": {"maxReconsumeTimes": "0"},
    }.items():
        yield Case(f"send back {name}", code, {**members, **other})


def _transactions() -> Iterator[Case]:
    yield of_send("a half", i="TRAN_MSG\x01true\x02PGROUP\x01answers-producers\x02", f="4")
    ends = {
        "producerGroup": "answers-producers",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": str(int(MessageSysFlag.TRANSACTION_COMMIT)),
        "fromTransactionCheck": "false",
        "msgId": "id",
        "transactionId": "id",
    }
    code = RequestCode.END_TRANSACTION
    yield Case("commit what is no half", code, ends)
    yield Case("commit what is not there", code, {**ends, "commitLogOffset": "999999999999"})
    yield Case("commit for another group", code, {**ends, "producerGroup": "nobody"})
    roll = str(int(MessageSysFlag.TRANSACTION_ROLLBACK))
    yield Case("roll back what is not there", code, {**ends, "commitOrRollback": roll})
    for body in ("", "x"):
        yield Case(
            f"check a half again that is {body!r}",
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            {"msgId": body},
        )


def _locks() -> Iterator[Case]:
    queues = [{"topic": TOPIC, "brokerName": "broker-a", "queueId": n} for n in (0, 1)]
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        what = {"consumerGroup": GROUP, "clientId": CLIENT, "mqSet": queues}
        yield Case(f"{code.name.lower()}", code, {}, encode_body(what))
        if code is RequestCode.LOCK_BATCH_MQ:
            other = {**what, "clientId": "another"}
            yield Case("lock what another has", code, {}, encode_body(other))
        yield Case(
            f"{code.name.lower()} of no queues", code, {}, encode_body({**what, "mqSet": []})
        )
        yield Case(f"{code.name.lower()} without a body", code)
        yield Case(f"{code.name.lower()} of no JSON", code, {}, b"{")


# -- administration -----------------------------------------------------------------------------
def _groups() -> Iterator[Case]:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    group = {
        "groupName": "answers-made",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 3,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    yield Case("make a group", code, {}, encode_body(group))
    yield Case(
        "make one that may not read",
        code,
        {},
        encode_body({**group, "consumeEnable": False, "groupName": "answers-shut"}),
    )
    yield of_pull("pull by one that may not read", consumerGroup="answers-shut", sysFlag="4")
    yield Case("make a group of no JSON", code, {}, b"{")
    yield Case("make a group without a body", code)
    yield Case("all groups", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    yield Case("topics of one group", RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP})
    pair = {"group": GROUP, "topic": TOPIC}
    yield Case("a subscription", RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, pair)
    yield Case("replication", RequestCode.GET_BROKER_HA_STATUS)
    yield Case("one group", RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "answers-made"})
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    yield from spoiled(Case("delete a group", code, {"groupName": "answers-made"}))
    yield Case(
        "delete it with its offsets", code, {"groupName": "answers-made", "removeOffset": "true"}
    )
    yield Case("delete an unknown group", code, {"groupName": "nobody"})


def _admin() -> Iterator[Case]:
    both = {"topic": TOPIC, "group": GROUP}
    of_group = {"consumerGroup": GROUP, "topic": TOPIC}
    yield from spoiled(Case("consume statistics", RequestCode.GET_CONSUME_STATS, of_group))
    yield Case(
        "consume statistics of an unknown group",
        RequestCode.GET_CONSUME_STATS,
        {"consumerGroup": "nobody"},
    )
    yield Case(
        "consume statistics of an unknown topic",
        RequestCode.GET_CONSUME_STATS,
        {**of_group, "topic": "N"},
    )
    yield from spoiled(
        Case("who consumes", RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC})
    )
    yield Case(
        "who consumes an unknown topic", RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "N"}
    )
    yield from spoiled(Case("time span", RequestCode.QUERY_CONSUME_TIME_SPAN, both))
    yield Case(
        "time span of an unknown topic", RequestCode.QUERY_CONSUME_TIME_SPAN, {**both, "topic": "N"}
    )
    correction = {"compareGroup": GROUP, "topic": TOPIC, "filterGroups": "a,b"}
    yield from spoiled(Case("correction", RequestCode.QUERY_CORRECTION_OFFSET, correction))
    clone = {"srcGroup": GROUP, "destGroup": "answers-clone", "topic": TOPIC, "offline": "true"}
    yield from spoiled(Case("clone offsets", RequestCode.CLONE_GROUP_OFFSET, clone))
    yield Case(
        "clone an unknown group", RequestCode.CLONE_GROUP_OFFSET, {**clone, "srcGroup": "nobody"}
    )
    reset = {**both, "timestamp": "0", "isForce": "true"}
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    yield Case("reset an unknown topic", code, {**reset, "topic": "Nowhere"})
    yield Case("reset an unknown group", code, {**reset, "group": "nobody"})
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    yield Case("status of an unknown group", code, {**both, "group": "nobody"})
    running = {"consumerGroup": "nobody", "clientId": "none", "jstackEnable": "false"}
    yield Case("running info of nobody", RequestCode.GET_CONSUMER_RUNNING_INFO, running)
    directly = {
        "consumerGroup": "nobody",
        "clientId": "none",
        "msgId": "7F00000100002A9F0000000000000000",
    }
    yield Case("consume directly by nobody", RequestCode.CONSUME_MESSAGE_DIRECTLY, directly)
    for code in (
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    ):
        yield Case(code.name.lower(), code)
    update = RequestCode.UPDATE_BROKER_CONFIG
    for name, text in (
        ("change nothing", ""),
        ("change a setting", "traceOn=true\n"),
        ("change an unknown setting", "noSuchKey=1\n"),
    ):
        yield Case(name, update, body=text.encode())
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}
    yield Case("statistics", RequestCode.VIEW_BROKER_STATS_DATA, stats)
    yield Case("unknown statistics", RequestCode.VIEW_BROKER_STATS_DATA, {**stats, "statsKey": "x"})
    yield Case(
        "consume statistics of all", RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}
    )


def ends() -> Iterator[Case]:
    """What goes away last."""
    yield from spoiled(
        Case("delete a topic", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "AnswersGone"})
    )
    yield Case("delete an unknown topic", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Nowhere"})
    members = {"clientID": CLIENT, "producerGroup": "answers-producers", "consumerGroup": GROUP}
    yield from spoiled(Case("unregister", RequestCode.UNREGISTER_CLIENT, members))
    yield Case(
        "clients after all left", RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}
    )


# -- what two answers must share ----------------------------------------------------------------
VOLATILE = {"msgId", "transactionId", "brokerAddr", "version", "indexLastUpdatePhyoffset"}
"""Header members that name a host, a place or a time."""
NAMES_OF_5 = {"brokerActive", "getTransferredTps"}
"""Figures that we tell the tools of 5.x beside those of 4.9."""
RECORDS = {RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
VOLATILE_PROPERTIES = {"ORIGIN_MESSAGE_ID", "1ST_PULL"}
KEYS_WITHOUT_QUOTES = re.compile(rb"([{,])(\d+):")
QUEUE_KEY = re.compile(rb"(?<=[{,])(\{[^{}]*\}):")
TIME_MIN = 1_500_000_000_000


def shape(case: Case, answer: RemotingCommand | None) -> dict[str, Any]:
    """What of an answer is the same on every broker that keeps RocketMQ's rules."""
    if answer is None:
        return {"code": None}
    fields = {
        name: "..." if name in VOLATILE | case.volatile or _is_time(value) else value
        for name, value in answer.ext_fields.items()
    }
    return {
        "code": int(answer.code),
        "fields": dict(sorted(fields.items())),
        "remark": bool(answer.remark) or answer.code == ResponseCode.SUCCESS,
        "body": _body_shape(case, answer),
    }


def _is_time(text: str) -> bool:
    return text.isdecimal() and int(text) > TIME_MIN


def _body_shape(case: Case, answer: RemotingCommand) -> Any:
    body = bytes(answer.body or b"")
    if not body:
        return None
    if case.code in RECORDS and answer.code == ResponseCode.SUCCESS:
        return [_record(message) for message in decode_records(body)]
    quoted = KEYS_WITHOUT_QUOTES.sub(rb'\1"\2":', body)
    quoted = QUEUE_KEY.sub(lambda found: json.dumps(found[1].decode()).encode() + b":", quoted)
    try:
        return _json_shape(json.loads(quoted))
    except ValueError:
        return "text"


def _record(message: Any) -> tuple[Any, ...]:
    properties = {
        name: "..." if name in VOLATILE_PROPERTIES else value
        for name, value in message.properties.items()
    }
    return (message.topic, message.queue_id, message.queue_offset, message.body[:20], properties)


def _name(key: str) -> str:
    """A key without the port or the folder in it."""
    return re.sub(r"/\S*", "/folder", re.sub(r":\d{4,5}\b", ":port", key))


def _json_shape(value: Any) -> Any:
    if isinstance(value, dict):
        named = sorted(item for item in value.items() if item[0] not in NAMES_OF_5)
        return {_name(name): _json_shape(item) for name, item in named}
    if isinstance(value, list):
        shapes = {json.dumps(_json_shape(item), sort_keys=True) for item in value}
        return sorted(shapes)
    if isinstance(value, bool):
        return value
    return type(value).__name__
