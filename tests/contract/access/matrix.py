"""Requests of every code, by accounts of every kind, from addresses on white lists and not."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kerolox.errors import ACL_EXCEPTION
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_batch
from kerolox.security.credentials import Credentials, Signer
from tests.support.clients.requests import heartbeat_body, pull_fields, send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX

__all__ = [
    "ACCOUNTS_FILE",
    "ADDRESSES",
    "KINDS",
    "TOPICS",
    "Asked",
    "Case",
    "Outcome",
    "asked",
    "cases",
    "outcomes",
]

SECRET = "a-secret-key"
TOPICS = ("MBoth", "MPub", "MSub", "MDeny", "MOther")
GROUPS = ("m-sub", "m-deny", "m-other")

_RESOURCES = """
  topicPerms:
  - MBoth=PUB|SUB
  - MPub=PUB
  - MSub=SUB
  - MDeny=DENY
  groupPerms:
  - m-sub=SUB
  - m-deny=DENY
"""
_EXTRA = {
    "plain-account": "",
    "only-publishes": "  topicPerms:\n  - MBoth=PUB\n  - MPub=PUB\n",
    "only-reads": "  topicPerms:\n  - MBoth=SUB\n  - MSub=SUB\n  groupPerms:\n  - m-sub=SUB\n",
    "does-both": _RESOURCES,
    "is-denied": "  defaultTopicPerm: PUB|SUB\n  topicPerms:\n  - MBoth=DENY\n  - MPub=DENY\n"
    "  - MSub=DENY\n",
    "has-defaults": "  defaultTopicPerm: SUB|PUB\n  defaultGroupPerm: SUB\n"
    "  topicPerms:\n  - MDeny=DENY\n",
    "is-admin": "  admin: true\n",
    "bound-admin": f"  admin: true\n{_RESOURCES}",
    "is-white": "  whiteRemoteAddress: 127.0.0.3\n",
}
ACCOUNTS_FILE = "globalWhiteRemoteAddresses:\n- 127.0.0.2\naccounts:\n" + "".join(
    f"- accessKey: {name}\n  secretKey: {SECRET}\n{extra}" for name, extra in _EXTRA.items()
)
KINDS = ("none", "unknown", "wrong-signature", *_EXTRA)
"""Kinds of accounts; those behind the first three are access keys."""
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""On no white list, on the global one, on that of an account."""

_FRAMES_AT_ONCE = 64
_PLACE_IN_JAVA = re.compile(r"(, org\.apache\.rocketmq\.acl\.\S+\(\w+\.java:\d+\))$")


class Case(NamedTuple):
    """One request without an account."""

    name: str
    code: int
    fields: dict[str, str]
    body: bytes = b""


class Asked(NamedTuple):
    """Who asked what, from where."""

    case: str
    kind: str
    address: str


class Outcome(NamedTuple):
    """What became of a request."""

    code: int
    denial: str | None
    """The text of access control; None: it let the request in."""


def cases() -> Iterator[Case]:
    """Requests of every code; what a right is needed for, with each topic and group."""
    special = {case.code for case in _special()}
    yield from _special()
    for code in (*RequestCode, 0, 9999):
        if code not in special:
            yield Case(f"{code:d}", code, {})


def _special() -> Iterator[Case]:
    for topic in TOPICS:
        yield from _sends(topic)
        yield Case(f"12 {topic}", 12, _query(topic))
        for group in GROUPS:
            for code in (11, 361):
                fields = pull_fields(topic=topic, consumerGroup=group)
                yield Case(f"{code} {topic} {group}", code, fields)
            offset = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
            yield Case(f"15 {topic} {group}", 15, offset)
            body = heartbeat_body("matrix", group=group, topics={topic: "*", "MBoth": "*"})
            yield Case(f"34 {topic} {group}", 34, {}, body)
    for group in GROUPS:
        back = {"offset": "0", "group": group, "delayLevel": "0", "originTopic": "MBoth"}
        yield Case(f"36 {group}", 36, back)
        leave = {"clientID": "matrix", "consumerGroup": group}
        yield Case(f"35 {group}", 35, leave)
        yield Case(f"38 {group}", 38, {"consumerGroup": group})
        lock = encode_body({"clientId": "matrix", "consumerGroup": group, "mqSet": []})
        yield Case(f"41 {group}", 41, {}, lock)
        yield Case(f"42 {group}", 42, {}, lock)
        for other in GROUPS:
            fields = send_fields(b=f"%RETRY%{other}", a=group)
            yield Case(f"310 retry {other} by {group}", 310, fields)
    yield Case("35 producer", 35, {"clientID": "matrix", "producerGroup": "p"})
    yield Case("34 producer", 34, {}, heartbeat_body("matrix", producers=["p"]))
    yield Case("310 trace", 310, send_fields(b="RMQ_SYS_TRACE_TOPIC"), b"x")
    yield Case("17", 17, topic_fields("MMade"))
    yield from _operators()


def _sends(topic: str) -> Iterator[Case]:
    short = send_fields(b=topic)
    long = {
        "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
    }  # fmt: skip
    yield Case(f"10 {topic}", 10, long, b"x")
    yield Case(f"310 {topic}", 310, short, b"x")
    batch = {**short, "m": "true"}
    yield Case(f"320 {topic}", 320, batch, encode_batch([(0, b"x", b"")]))
    yield Case(f"324 {topic}", 324, long, b"x")
    yield Case(f"325 {topic}", 325, short, b"x")


def _query(topic: str) -> dict[str, str]:
    return {
        "topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1",
    }  # fmt: skip


def _operators() -> Iterator[Case]:
    """Those that would change the accounts, or wait, if they were well formed."""
    yield Case("37", 37, {
        "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0",
        "commitOrRollback": "12",
    })  # fmt: skip
    yield Case("50", 50, {"accessKey": "short", "secretKey": "short", "admin": "false"})
    yield Case("51", 51, {"accessKey": "nobody-knows"})
    yield Case("53", 53, {"globalWhiteAddrs": "1.1.1.1", "aclFileFullPath": "/nowhere"})
    yield Case("207", 207, {"groupName": "nobody-knows", "removeOffset": "false"})
    yield Case("215", 215, {"topic": "MNothing"})
    yield Case("222", 222, {
        "topic": "MNothing", "group": "g", "timestamp": "0", "isForce": "true",
    })  # fmt: skip
    yield Case("314", 314, {"srcGroup": "a", "destGroup": "b", "topic": "MNothing"})


def asked(addresses: Iterable[str] = ADDRESSES) -> dict[Asked, RemotingCommand]:
    """All requests of the matrix."""
    signers = {kind: Signer(Credentials(kind, SECRET)) for kind in KINDS[3:]}
    signers["unknown"] = Signer(Credentials("nobody-knows", SECRET))
    signers["wrong-signature"] = Signer(Credentials("does-both", "another-secret"))
    made = {}
    for address in addresses:
        for kind in KINDS:
            for case in cases():
                command = RemotingCommand(case.code, dict(case.fields), case.body)
                if kind in signers:
                    signers[kind].sign(command)
                made[Asked(case.name, kind, address)] = command
    return made


async def outcomes(port: int, requests: dict[Asked, RemotingCommand]) -> dict[Asked, Outcome]:
    """What a broker of this machine answers to each request."""
    found: dict[Asked, Outcome] = {}
    for address in ADDRESSES:
        own = [(each, command) for each, command in requests.items() if each.address == address]
        if not own:
            continue
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        try:
            for start in range(0, len(own), _FRAMES_AT_ONCE):
                found |= await _answers(reader, writer, own[start : start + _FRAMES_AT_ONCE])
        finally:
            writer.close()
    return found


async def _answers(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    some: list[tuple[Asked, RemotingCommand]],
) -> dict[Asked, Outcome]:
    open_ = {}
    for opaque, (each, command) in enumerate(some):
        command.opaque = opaque
        open_[opaque] = each
        writer.write(command.encode())
    found = {}
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while open_:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = RemotingCommand.decode(await reader.readexactly(size))
                if answer.is_response:
                    found[open_.pop(answer.opaque)] = _outcome(answer)
    except TimeoutError:
        raise AssertionError(f"no answer to {sorted(map(str, open_.values()))}") from None
    return found


def _outcome(answer: RemotingCommand) -> Outcome:
    remark = answer.remark or ""
    if not remark.startswith(ACL_EXCEPTION):
        return Outcome(answer.code, None)
    return Outcome(answer.code, _PLACE_IN_JAVA.sub("", remark))
