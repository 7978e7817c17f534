"""Signatures that are replayed, cut, forged or written in odd ways, at a broker with ``aclEnable``:
what is denied changes nothing, and whoever signs rightly is served on the same connection.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import ACL_EXCEPTION
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.security.credentials import Credentials, Signer
from tests.support.clients.raw import raw_frame
from tests.support.clients.requests import send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import KERNELS
from tests.support.servers.probe import lines_of
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

pytestmark = pytest.mark.timeout(600)

TOPIC, FORBIDDEN = "Orders", "Forbidden"
OPERATOR = Credentials("operator", "operator-secret")
WORKER = Credentials("worker-account", "worker-secret")
OTHER = Credentials("other-account", "other-secret")
ACCOUNTS = f"""
accounts:
- accessKey: {OPERATOR.access_key}
  secretKey: {OPERATOR.secret_key}
  admin: true
- accessKey: {WORKER.access_key}
  secretKey: {WORKER.secret_key}
  topicPerms: [{TOPIC}=PUB|SUB]
- accessKey: {OTHER.access_key}
  secretKey: {OTHER.secret_key}
  topicPerms: [{TOPIC}=PUB|SUB]
"""
SEND = RequestCode.SEND_MESSAGE_V2
LARGE = 64 << 10
TEXT_MAX = 400
"""Characters of an answer: what it names of a request is cut."""

ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
_TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)

Pairs = list[tuple[str, str]]
"""Header fields as they travel: in an order, and some twice."""


class Line:
    """A connection to the broker, and what is asked over it."""

    def __init__(self, up: Up) -> None:
        self._socket = socket.create_connection(("127.0.0.1", up.port), SECONDS_MAX)
        self._read = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._read.close()
        self._socket.close()

    def say(self, data: bytes) -> RemotingCommand:
        """The answer to a frame."""
        self._socket.sendall(data)
        while True:
            (size,) = struct.unpack(">i", self._read.read(4))
            answer = RemotingCommand.decode(self._read.read(size))
            if answer.is_response:
                return answer

    def ask(
        self, by: Credentials, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """The answer to a request that is signed as it should be."""
        command = RemotingCommand(code, dict(fields or {}), body)
        Signer(by).sign(command)
        answer = self.say(command.encode())
        assert answer.code == ResponseCode.SUCCESS, (code, answer.remark)
        return answer


class Guarded:
    """The broker, what it has, and a connection that is used again and again."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.line = Line(up)

    def figure(self, name: str) -> int:
        answer = self.line.ask(OPERATOR, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = fastjson.members_of(fastjson.loads(answer.body))["table"]
        return int(str(fastjson.members_of(table)[name]))

    def kept(self) -> tuple[object, ...]:
        """All that a request could have changed."""
        tables = [self.line.ask(OPERATOR, code).body for code in _TABLES]
        return self.figure("commitLogMaxOffset"), *tables

    def denied(self, frame: bytes, says: str) -> None:
        """A frame is refused on a connection of long standing and on a new one, once each, and
        nothing else happens; those connections serve whoever signs rightly."""
        before, refusals = self.kept(), self.figure("aclDenied")
        with Line(self.up) as young:
            for line in (self.line, young):
                answer = line.say(frame)
                assert answer.code == ResponseCode.SYSTEM_ERROR, answer
                assert (answer.remark or "").startswith(f"{ACL_EXCEPTION}: {says}"), answer.remark
                assert len(answer.remark or "") <= TEXT_MAX
                assert "-secret" not in (answer.remark or "")
            assert self.kept() == before
            assert self.figure("aclDenied") == refusals + 2
            for line in (self.line, young):
                line.ask(WORKER, SEND, send_fields(b=TOPIC), b"good")

    def taken(self, frame: bytes) -> None:
        """A frame stores one message in the topic, each time that it comes."""
        with Line(self.up) as young:
            for line in (self.line, young):
                before = self.messages(TOPIC), self.messages(FORBIDDEN)
                answer = line.say(frame)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                after = self.messages(TOPIC), self.messages(FORBIDDEN)
                assert after == (before[0] + 1, before[1])

    def messages(self, topic: str) -> int:
        fields = {"topic": topic, "queueId": "0"}
        answer = self.line.ask(OPERATOR, RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.ext_fields["offset"])


@pytest.fixture(scope="module", params=KERNELS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    accounts = folder / "plain_acl.yml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "aclFile": accounts}
    with Up(folder, settings=settings, kernel=request.param) as up:
        made = Guarded(up)
        for topic in (TOPIC, FORBIDDEN):
            fields = topic_fields(topic, queues=1)
            made.line.ask(OPERATOR, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        with made.line:
            yield made
        log = "\n".join(lines_of(up.log))
        assert "-secret" not in log
        assert "Traceback" not in log
        assert max(map(len, log.splitlines())) <= 2_000


def signed(by: Credentials = WORKER, body: bytes = b"replayed", **fields: object) -> Pairs:
    """The fields of a send, with its signature at the end."""
    command = RemotingCommand(SEND, send_fields(**{"b": TOPIC, "i": "TAGS\x01a", **fields}), body)
    Signer(by).sign(command)
    return list(command.ext_fields.items())


def wire(
    pairs: Pairs,
    encoding: SerializeType,
    body: bytes = b"replayed",
    *,
    code: int = SEND,
    opaque: int = 7,
) -> bytes:
    """A frame with these fields in this order."""
    if encoding is SerializeType.JSON:
        members = ",".join(f"{json.dumps(name)}:{json.dumps(text)}" for name, text in pairs)
        return json_frame(f"{{{members}}}", body=body, code=code, opaque=opaque)
    fields = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode()
        + struct.pack(">i", len(text.encode())) + text.encode()
        for name, text in pairs
    )  # fmt: skip
    head = struct.pack(">hbhiii", code, 0, 401, opaque, 0, 0)
    return raw_frame(head + struct.pack(">i", len(fields)) + fields, body, kind=1)


def json_frame(*fields: str, body: bytes = b"replayed", code: int = SEND, opaque: int = 7) -> bytes:
    """A frame whose header has ``extFields`` as often as it is given."""
    members = "".join(f',"extFields":{each}' for each in fields)
    header = (
        f'{{"code":{code},"flag":0,"language":"JAVA","opaque":{opaque},"version":401{members}}}'
    )
    return raw_frame(header.encode(), body)


def replaced(pairs: Pairs, **changes: str | None) -> Pairs:
    """Fields with other texts; None leaves one out."""
    texts = ((name, changes.get(name, text)) for name, text in pairs)
    return [(name, text) for name, text in texts if text is not None]


WRONG = f"Check signature failed for accessKey={WORKER.access_key}"


# -- replayed -------------------------------------------------------------------------------------
@ENCODINGS
def test_a_request_is_taken_as_often_as_it_comes(guarded: Guarded, encoding: SerializeType) -> None:
    """RocketMQ's signature has neither a time nor a number that is used once."""
    pairs = signed()
    guarded.taken(wire(pairs, encoding))
    guarded.taken(wire(pairs, encoding))
    guarded.taken(wire(pairs, encoding, opaque=8))
    other = {SerializeType.JSON: SerializeType.ROCKETMQ, SerializeType.ROCKETMQ: SerializeType.JSON}
    guarded.taken(wire(pairs, other[encoding]))


@ENCODINGS
def test_a_replay_with_another_field_is_denied(guarded: Guarded, encoding: SerializeType) -> None:
    pairs = signed()
    for name, text in pairs[:-2]:
        guarded.denied(wire(replaced(pairs, **{name: f"{text}1"}), encoding), WRONG)
        if text:
            guarded.denied(wire(replaced(pairs, **{name: None}), encoding), WRONG)
    guarded.denied(wire([*pairs, ("n", "broker")], encoding), WRONG)
    guarded.denied(wire(replaced(pairs, b=FORBIDDEN), encoding), WRONG)


def test_a_replay_with_another_body_is_denied(guarded: Guarded) -> None:
    body = b"transfer 10"
    pairs = signed(body=body)
    guarded.taken(wire(pairs, SerializeType.JSON, body))
    for at in range(len(body)):
        changed = body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :]
        guarded.denied(wire(pairs, SerializeType.JSON, changed), WRONG)
    for changed in (b"", body[:-1], body + b"0", b"\0" + body):
        guarded.denied(wire(pairs, SerializeType.JSON, changed), WRONG)


@ENCODINGS
def test_a_replay_in_the_name_of_another_account_is_denied(
    guarded: Guarded, encoding: SerializeType
) -> None:
    pairs = signed()
    theirs = replaced(pairs, AccessKey=OTHER.access_key)
    guarded.denied(wire(theirs, encoding), "Check signature failed for accessKey=other-account")
    of_other = dict(signed(OTHER))["Signature"]
    guarded.denied(wire(replaced(pairs, Signature=of_other), encoding), WRONG)
    with_key = replaced(pairs, AccessKey=OPERATOR.access_key)
    guarded.denied(wire(with_key, encoding), "Check signature failed for accessKey=operator")


def test_a_replay_ends_with_its_account_or_secret(guarded: Guarded) -> None:
    leaver = Credentials("leaver-account", "first-secret")
    fields = {
        "accessKey": leaver.access_key, "secretKey": leaver.secret_key, "admin": "false",
        "topicPerms": f"{TOPIC}=PUB",
    }  # fmt: skip

    def put(secret: str) -> None:
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        guarded.line.ask(OPERATOR, code, {**fields, "secretKey": secret})

    put(leaver.secret_key)
    frame = wire(signed(leaver), SerializeType.JSON)
    guarded.taken(frame)
    put("second-secret")
    guarded.denied(frame, "Check signature failed for accessKey=leaver-account")
    put(leaver.secret_key)
    guarded.taken(frame)
    key = {"accessKey": leaver.access_key}
    guarded.line.ask(OPERATOR, RequestCode.DELETE_ACL_CONFIG, key)
    guarded.denied(frame, "No acl config for leaver-account")
    put("third-secret")
    guarded.denied(frame, "Check signature failed for accessKey=leaver-account")


def test_neither_code_nor_borders_of_values_are_signed(guarded: Guarded) -> None:
    """As in RocketMQ: what is signed are the values alone, one behind the other."""
    pairs = signed()
    answer = guarded.line.say(wire(pairs, SerializeType.JSON, code=9999))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    group, topic = dict(pairs)["a"], dict(pairs)["b"]
    moved = replaced(pairs, a=group + topic[:1], b=topic[1:])
    guarded.denied(wire(moved, SerializeType.JSON), f"No default permission for topic:{topic[1:]}")


# -- cut, huge, and of another form ---------------------------------------------------------------
@ENCODINGS
def test_a_signature_that_is_cut_is_denied_at_each_length(
    guarded: Guarded, encoding: SerializeType
) -> None:
    pairs = signed()
    whole = dict(pairs)["Signature"]
    assert len(whole) == 28
    for length in range(28):
        guarded.denied(wire(replaced(pairs, Signature=whole[:length]), encoding), WRONG)
    guarded.taken(wire(pairs, encoding))


FORMS: dict[str, Callable[[str], str]] = {
    "no base64": lambda whole: "-" * 28,
    "capitals": str.upper,
    "small": str.lower,
    "swapped": str.swapcase,
    "backwards": lambda whole: whole[::-1],
    "of URLs": lambda whole: "-_" + whole[2:],
    "padded twice": lambda whole: whole + "=",
    "unpadded": lambda whole: whole.rstrip("="),
    "blank before": lambda whole: " " + whole,
    "line end behind": lambda whole: whole + "\n",
    "NUL behind": lambda whole: whole + "\0",
    "twice": lambda whole: whole + whole,
    "other script": lambda whole: "\u0430" + whole[1:],
    "hexadecimal": lambda whole: "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "of nothing": lambda whole: "2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
    "large": lambda whole: "A" * LARGE,
    "right, then large": lambda whole: whole + "A" * LARGE,
}


@ENCODINGS
@pytest.mark.parametrize("form", FORMS)
def test_a_signature_of_another_form_is_denied(
    guarded: Guarded, encoding: SerializeType, form: str
) -> None:
    pairs = signed()
    forged = FORMS[form](dict(pairs)["Signature"])
    assert forged != dict(pairs)["Signature"]
    guarded.denied(wire(replaced(pairs, Signature=forged), encoding), WRONG)


@ENCODINGS
@pytest.mark.parametrize(
    "key",
    [
        "K" * LARGE,
        "Worker-Account",
        "WORKER-ACCOUNT",
        " worker-account",
        "worker-account ",
        "worker-account\0",
        "worker-accoun",
        "worker-account,other-account",
        "*",
        "\x1b[2J\r\nINFO all is well",
    ],
    ids=lambda key: repr(key[:16]),
)
def test_an_access_key_of_another_form_is_nobody(
    guarded: Guarded, encoding: SerializeType, key: str
) -> None:
    pairs = signed(Credentials(key, WORKER.secret_key))
    guarded.denied(wire(replaced(pairs, AccessKey=key), encoding), "No acl config for ")


@ENCODINGS
def test_names_of_fields_of_another_case_are_no_account(
    guarded: Guarded, encoding: SerializeType
) -> None:
    for names in (
        {"AccessKey": "accessKey"},
        {"AccessKey": "ACCESSKEY"},
        {"AccessKey": "Accesskey"},
    ):
        pairs = [(names.get(name, name), text) for name, text in signed()]
        guarded.denied(wire(pairs, encoding), "No accessKey is configured")
    pairs = [({"Signature": "signature"}.get(name, name), text) for name, text in signed()]
    guarded.denied(wire(pairs, encoding), WRONG)


def test_what_is_missing_or_empty_is_denied(guarded: Guarded) -> None:
    pairs = signed()
    for encoding in SerializeType:
        guarded.denied(wire(replaced(pairs, Signature=None), encoding), WRONG)
        without = replaced(pairs, AccessKey=None)
        guarded.denied(wire(without, encoding), "No accessKey is configured")
        guarded.denied(wire(replaced(without, Signature=None), encoding), "No accessKey")
    json_kind = SerializeType.JSON
    guarded.denied(wire(replaced(pairs, AccessKey=""), json_kind), "No acl config for ")
    # A text without characters is none in this encoding.
    binary = wire(replaced(pairs, AccessKey=""), SerializeType.ROCKETMQ)
    guarded.denied(binary, "No accessKey is configured")


@pytest.mark.parametrize("name", ["AccessKey", "Signature"])
@pytest.mark.parametrize("value", ["null", "true", "0", "28", "1e3"])
def test_a_value_that_is_no_text_is_denied(guarded: Guarded, name: str, value: str) -> None:
    texts = {each: json.dumps(text) for each, text in signed()} | {name: value}
    fields = ",".join(f'"{each}":{text}' for each, text in texts.items())
    guarded.denied(json_frame(f"{{{fields}}}"), "")


# -- fields in another order, twice, and beside ---------------------------------------------------
@ENCODINGS
def test_fields_in_any_order_are_taken(guarded: Guarded, encoding: SerializeType) -> None:
    pairs = signed()
    guarded.taken(wire(pairs[::-1], encoding))
    generator = random.Random(7)
    for _ in range(10):
        generator.shuffle(pairs)
        guarded.taken(wire(pairs, encoding))


@ENCODINGS
def test_of_a_field_that_stands_twice_the_last_is_signed_and_done(
    guarded: Guarded, encoding: SerializeType
) -> None:
    pairs = signed()
    for name, text in pairs:
        wrong = FORBIDDEN if name == "b" else f"{text}1"
        guarded.taken(wire([(name, wrong), *pairs], encoding))
        says = "No acl config for " if name == "AccessKey" else WRONG
        guarded.denied(wire([*pairs, (name, wrong)], encoding), says)
    forbidden = signed(b=FORBIDDEN)
    says = f"No default permission for topic:{FORBIDDEN}"
    guarded.denied(wire([("b", TOPIC), *forbidden], encoding), says)
    guarded.denied(wire([*forbidden, ("b", TOPIC)], encoding), WRONG)


def test_of_two_sets_of_fields_the_last_is_signed_and_done(guarded: Guarded) -> None:
    def fields(pairs: Pairs) -> str:
        return json.dumps(dict(pairs))

    good, forbidden = signed(), signed(b=FORBIDDEN)
    guarded.taken(json_frame(fields(forbidden), fields(good)))
    says = f"No default permission for topic:{FORBIDDEN}"
    guarded.denied(json_frame(fields(good), fields(forbidden)), says)
    guarded.denied(json_frame(fields(good), "{}"), "No accessKey is configured")
    guarded.denied(json_frame(fields(good), "null"), "No accessKey is configured")


@ENCODINGS
def test_fields_that_nobody_knows_count_when_they_are_signed(
    guarded: Guarded, encoding: SerializeType
) -> None:
    guarded.taken(wire(signed(zone="eu", Zone="x"), encoding))
    pairs = signed()
    for name in ("zone", "A", "Signature2", "accessKey", "~", "\u00e9"):
        guarded.denied(wire([*pairs, (name, "x")], encoding), WRONG)
        guarded.denied(wire([(name, "x"), *pairs], encoding), WRONG)


@ENCODINGS
def test_a_token_counts_when_it_is_signed(guarded: Guarded, encoding: SerializeType) -> None:
    """The broker compares it with nothing, as RocketMQ's does not."""
    account = Credentials(WORKER.access_key, WORKER.secret_key, "a-token")
    pairs = signed(account)
    guarded.taken(wire(pairs, encoding))
    guarded.denied(wire(replaced(pairs, SecurityToken="b-token"), encoding), WRONG)
    guarded.denied(wire(replaced(pairs, SecurityToken=None), encoding), WRONG)
    guarded.denied(wire([*signed(), ("SecurityToken", "a-token")], encoding), WRONG)
