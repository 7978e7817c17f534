"""Access control in the kernel: whose sends and pulls are fast, whose go to the handlers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kerolox.kernel.feed import FED_MORE
from kerolox.kernel.values import AccountRules
from kerolox.protocol.codes import RequestCode, ResponseCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.security.access.accounts import Permission
from kerolox.security.credentials import Credentials, Signer
from kerolox.security.signatures import SecretKey
from tests.support.stores.bench import (
    Bench,
    Wire,
    commands,
    frame,
    holding_pull,
    properties,
    pull,
    send,
    send_batch,
    send_v1,
)

KEY, SECRET = "producer-1", "a secret of twelve"
CREDENTIALS = Credentials(KEY, SECRET)
DENY, PUB, SUB = Permission.DENY, Permission.PUB, Permission.SUB
ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)


def rules(
    access_key: str = KEY,
    secret_key: str = SECRET,
    *,
    everything: bool = False,
    topic: int = DENY,
    group: int = DENY,
    **resources: int,
) -> AccountRules:
    """Of resources ``RETRY_G`` is the retry topic of G."""
    named = {name.replace("RETRY_", "%RETRY%"): bits for name, bits in resources.items()}
    return AccountRules(access_key, secret_key, everything, topic, group, named)


READER_AND_WRITER = rules(T=PUB | SUB, RETRY_G=SUB)


def signed(request: bytes, credentials: Credentials = CREDENTIALS, **changes: str) -> bytes:
    """A frame with an account's signature; ``changes`` are made to its fields afterwards."""
    command = RemotingCommand.decode(request[4:])
    Signer(credentials).sign(command)
    command.ext_fields.update(changes)
    return command.encode()


@pytest.fixture
def wire(bench: Bench) -> Wire:
    """A connection to a store with one account, which may send to T and read it as G."""
    bench.store.set_accounts([READER_AND_WRITER])
    return bench.connect()


@ENCODINGS
def test_what_an_account_may_and_signed_is_fast(wire: Wire, encoding: SerializeType) -> None:
    batch = send_batch([(0, b"a", b"TAGS\x01t"), (1, b"b", b"")], encoding=encoding)
    texts = {"a": "ärger💩", "i": properties(KEYS="ä😀", name='é\n"\\/', TAGS="\x7f")}
    for request in (
        send(encoding=encoding, i=properties(TAGS="t")),
        send(encoding=encoding, body=bytes(range(256)) * 9, **texts),
        send(encoding=encoding, j=None, k=None, m=None, i=None, bname="broker-a"),
        batch,
        pull(encoding=encoding),
        pull(encoding=encoding, subscription="ä || 😀", queueOffset=1),
        pull(encoding=encoding, code=RequestCode.LITE_PULL_MESSAGE, expressionType=None),
    ):
        (answer,) = wire.ask(signed(request))
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
    assert wire.ask(signed(send_v1()))[0].code == 0


@ENCODINGS
@pytest.mark.parametrize(
    "changes",
    [
        {"Signature": ""},
        {"Signature": "tAb/54Rwwcq+pbH8Loi7FWX4QSQ="},
        {"Signature": "x" * 28},
        {"Signature": "é" * 14},
        {"Signature": "x" * 300},
        {"AccessKey": "producer-2"},
        {"AccessKey": ""},
        {"SecurityToken": "t"},
        {"ReqT": "0"},
        {"a": "another group"},
        {"i": properties(TAGS="u")},
    ],
    ids=lambda changes: " ".join(f"{name}={value[:9]}" for name, value in changes.items()),
)
def test_a_send_that_was_changed_after_it_was_signed_is_slow(
    wire: Wire, encoding: SerializeType, changes: dict[str, str]
) -> None:
    request = send(encoding=encoding, i=properties(TAGS="t"))
    assert wire.is_cold(signed(request, **changes))
    assert wire.bench.store.max_physical_offset == 0
    assert len(wire.ask(signed(request))) == 1


def test_a_body_that_was_changed_and_a_cut_signature_are_slow(wire: Wire) -> None:
    request = signed(send(b"hello"))
    assert wire.is_cold(request[:-1] + b"p")
    for end in range(28):
        whole = RemotingCommand.decode(request[4:]).ext_fields["Signature"]
        assert wire.is_cold(signed(send(b"hello"), Signature=whole[:end]))
    assert wire.is_cold(signed(send(), Credentials(KEY, "another secret")))
    assert wire.is_cold(send()), "no account at all"
    assert wire.bench.store.max_physical_offset == 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64])
def test_each_frame_of_a_chunk_has_a_verdict_of_its_own(bench: Bench, size: int) -> None:
    other = Credentials("consumer-1", "another secret of twelve")
    deaf = Credentials("consumer-2", "a third secret of twelve")
    bench.store.set_accounts(
        [
            READER_AND_WRITER,
            rules(other.access_key, other.secret_key, T=PUB | SUB, RETRY_G=SUB),
            rules(deaf.access_key, deaf.secret_key),
        ]
    )
    wire, chance = bench.connect(), Random(size)
    for _ in range(20):
        chunk, fast, slow = [], [], []
        for opaque in range(size):
            who = chance.choice((CREDENTIALS, other, deaf))
            request = chance.choice((send, pull))(opaque=opaque)
            if chance.random() < 0.5:
                # Of lengths around those of whole blocks, and above what is checked ahead.
                request = send(bytes(chance.choice((*range(1, 700), 5_000))), opaque=opaque)
            kind = chance.choice(("right", "right", "wrong", "unknown", "unsigned", "other code"))
            match kind:
                case "right":
                    request = signed(request, who)
                case "wrong":
                    request = signed(request, who, Signature="tAb/54Rwwcq+pbH8Loi7FWX4QSQ=")
                case "unknown":
                    request = signed(request, Credentials("nobody-1", SECRET))
                case "other code":
                    beat = RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque, body=b"{}")
                    request = signed(beat.encode(), who)
            chunk.append(request)
            is_fast = kind == "right" and who is not deaf
            (fast if is_fast else slow).append((opaque, request[4:]))
        answers, cold, _flags, error = wire.feed(*chunk)
        assert error is None
        assert cold == [request for _, request in slow]
        assert [answer.opaque for answer in commands(answers)] == [opaque for opaque, _ in fast]


@ENCODINGS
@pytest.mark.parametrize(
    ("account", "sends", "pulls"),
    [
        (rules(T=PUB, RETRY_G=SUB), True, False),
        (rules(T=SUB, RETRY_G=SUB), False, True),
        (rules(T=SUB), False, False),
        (rules(T=SUB, G=SUB), False, False),
        (rules(T=PUB | SUB | DENY, RETRY_G=SUB), False, False),
        (rules(T=DENY, RETRY_G=SUB, topic=PUB | SUB), False, False),
        (rules(topic=PUB), True, False),
        (rules(topic=SUB, group=SUB), False, True),
        (rules(topic=SUB | PUB, group=PUB), True, False),
        (rules(topic=PUB | SUB, group=SUB, RETRY_G=DENY), True, False),
        (rules(), False, False),
        (rules(everything=True), True, True),
    ],
)
def test_permissions_decide(
    bench: Bench, encoding: SerializeType, account: AccountRules, sends: bool, pulls: bool
) -> None:
    bench.store.set_accounts([rules("someone else", topic=PUB | SUB, group=SUB), account])
    wire = bench.connect()
    for request, is_fast in (
        (send(encoding=encoding), sends),
        (send_batch([(0, b"a", b"")], encoding=encoding), sends),
        (pull(encoding=encoding), pulls),
        (pull(encoding=encoding, code=RequestCode.LITE_PULL_MESSAGE), pulls),
    ):
        assert wire.is_cold(signed(request)) != is_fast
    assert wire.is_cold(signed(send_v1())) != sends


def test_traces_are_sent_by_every_account_and_read_by_those_who_may(bench: Bench) -> None:
    bench.store.set_topic("RMQ_SYS_TRACE_TOPIC", 1, 1, 6, True)
    bench.store.set_accounts([rules()])
    wire = bench.connect()
    trace = {"b": "RMQ_SYS_TRACE_TOPIC"}
    assert len(wire.ask(signed(send(**trace)), signed(send_v1(**trace)))) == 2
    assert wire.is_cold(signed(send(**trace), Signature="x" * 28))
    assert wire.is_cold(signed(pull(topic="RMQ_SYS_TRACE_TOPIC")))


def test_a_consumer_sends_back_to_its_own_group_only(bench: Bench) -> None:
    for group in ("G", "H"):
        bench.store.set_topic(f"%RETRY%{group}", 1, 1, 6, True)
    bench.store.set_accounts([rules(RETRY_G=SUB, T=PUB)])
    wire = bench.connect()
    assert len(wire.ask(signed(send(b="%RETRY%G", a="G")))) == 1
    assert wire.is_cold(signed(send(b="%RETRY%G", a="T"))), "a group that does not own it"
    assert wire.is_cold(signed(send(b="%RETRY%H", a="G")))
    assert wire.is_cold(signed(send_v1(b="%RETRY%G", a="G"))), "which names its group elsewhere"
    assert wire.is_cold(signed(send_batch([(0, b"a", b"")], b="%RETRY%G", a="G")))
    assert len(wire.ask(signed(pull(topic="%RETRY%G")))) == 1
    bench.store.set_accounts([rules(RETRY_G=PUB, group=PUB, topic=PUB | SUB)])
    assert wire.is_cold(signed(send(b="%RETRY%G", a="G")))


def test_half_messages_are_sends(bench: Bench) -> None:
    bench.store.set_halves(True)
    bench.store.set_accounts([rules(T=PUB)])
    wire = bench.connect()
    half = {"f": 4, "i": properties(TRAN_MSG="true", PGROUP="PG", UNIQ_KEY="u")}
    assert len(wire.ask(signed(send(**half)))) == 1
    bench.store.set_accounts([rules(T=SUB)])
    assert wire.is_cold(signed(send(**half)))


def test_white_lists_need_no_permission_and_no_signature(bench: Bench) -> None:
    bench.store.set_accounts([rules(), rules("other-key")])
    wire = bench.connect()
    unsigned = send(AccessKey=KEY)
    assert wire.is_cold(unsigned)
    wire.connection.set_white(False, ["other-key"])
    assert wire.is_cold(unsigned)
    wire.connection.set_white(False, ["other-key", KEY])
    assert len(wire.ask(unsigned, pull(AccessKey=KEY))) == 2
    assert wire.is_cold(send(AccessKey="unknown")), "an account that is gone"
    assert wire.is_cold(send())
    wire.connection.set_white(True, ())
    assert len(wire.ask(send(), send(AccessKey="unknown"), pull())) == 3
    assert len(wire.ask(signed(send(), Signature="x"))) == 1
    wire.connection.set_white(False, ())
    assert wire.is_cold(unsigned)


def test_without_accounts_nothing_is_checked_and_with_none_of_them_everything(
    bench: Bench,
) -> None:
    wire = bench.connect()
    assert len(wire.ask(send(), signed(send()), signed(pull()), send(AccessKey="", ReqT="0"))) == 4
    bench.store.set_accounts([])
    assert wire.is_cold(signed(send()))
    assert wire.is_cold(pull())
    bench.store.set_accounts(None)
    assert len(wire.ask(send(), signed(send(), Signature="x"))) == 2


def test_other_accounts_are_in_force_at_once(bench: Bench) -> None:
    wire = bench.connect()
    request = signed(send())
    for secret, is_fast in ((SECRET, True), ("another one", False), (SECRET, True)):
        bench.store.set_accounts([rules("zero"), rules(secret_key=secret, T=PUB)])
        assert wire.is_cold(request) != is_fast
    bench.store.set_accounts([rules("zero", T=PUB)])
    assert wire.is_cold(request)
    bench.store.set_accounts([rules(secret_key="an old one", T=PUB), READER_AND_WRITER])
    assert len(wire.ask(request)) == 1, "of two with one key the last counts"


def test_a_frame_that_waits_for_its_turn_is_checked_when_that_comes(bench: Bench) -> None:
    bench.store.set_accounts([rules(topic=PUB | SUB, group=SUB)])
    wire = bench.connect()
    for _ in range(8):
        bench.append(bytes(60_000))
    pulls = [signed(pull())] * 8
    _answers, cold, flags, _error = wire.feed(*pulls, signed(send()))
    assert (flags & FED_MORE, cold) == (FED_MORE, []), "there is room for all answers"
    bench.store.set_accounts([rules(topic=SUB, group=SUB)])
    while flags & FED_MORE:
        _answers, cold, flags, _error = wire.feed()
    assert cold == [signed(send())[4:]]


@pytest.mark.parametrize("change", ["accounts", "no accounts", "white list", "white key"])
def test_held_pulls_end_when_rights_change_and_nothing_wakes_them(
    bench: Bench, change: str
) -> None:
    bench.store.set_accounts([READER_AND_WRITER])
    wire, other = bench.connect(), bench.connect()
    other.connection.set_white(True, [])
    wire.connection.set_white(change == "white list", [KEY] if change == "white key" else [])
    assert wire.ask(signed(holding_pull(opaque=7))) == []
    assert bench.store.stats()["held_pulls"] == 1
    if change == "accounts":
        bench.store.set_accounts([rules(T=PUB)])
    elif change == "no accounts":
        bench.store.set_accounts(None)
    else:
        wire.connection.set_white(False, [])
    other.ask(send())
    bench.append()
    assert bench.drain_ready() == {}, "it may not read any more"
    assert bench.store.tick(1)
    ((ended,),) = bench.drain_ready().values()
    assert (ended.opaque, ended.code, ended.body) == (7, ResponseCode.PULL_NOT_FOUND, b"")
    assert ended.ext_fields["nextBeginOffset"] == "0"
    assert bench.store.stats()["held_pulls"] == 0


def test_a_wider_white_list_leaves_held_pulls_alone(bench: Bench) -> None:
    bench.store.set_accounts([READER_AND_WRITER])
    bench.store.tick(1)
    wire, other = bench.connect(), bench.connect()
    wire.connection.set_white(False, ["x"])
    assert wire.ask(signed(holding_pull())) == []
    wire.connection.set_white(False, ["x", "y"])
    other.connection.set_white(True, [])
    other.ask(send())
    assert list(bench.drain_ready()) == [wire.connection_id]


def test_pulls_held_by_handlers_and_waits_end_when_accounts_change(bench: Bench) -> None:
    far = 1 << 60
    assert bench.store.hold(99, 0, 5, "G", "T", 0, 0, 32, None, far)
    assert bench.store.wait_for_offset(11, "G", "T", 0, 0, far)
    bench.store.set_accounts([])
    bench.append()
    assert bench.store.tick(1)
    ((ended,),) = bench.drain_ready().values()
    assert (ended.opaque, ended.code) == (5, ResponseCode.PULL_NOT_FOUND)
    assert bench.store.drain_arrived() == [11]


def test_white_lists_of_a_closed_connection_are_nothing(bench: Bench) -> None:
    wire = bench.connect()
    wire.connection.set_white(True, [])
    wire.connection.close()
    wire.connection.set_white(False, [])
    assert not bench.store.tick(1)


def header(fields: str) -> bytes:
    return f'{{"code":310,"extFields":{{{fields}}},"flag":0,"opaque":1,"version":409}}'.encode()


def test_the_signature_is_of_decoded_text_in_the_order_of_names(bench: Bench) -> None:
    """A header written by hand; the text to sign is spelled out."""
    bench.store.set_accounts([rules(T=PUB)])
    wire = bench.connect()
    body = b"\xff\x00body"
    values = (KEY, "ALIYUN", "0", "token", "PG", "T", "\u20acTBW102", "4", "0", "0", "1700", "0",
              "KEYS\x01\u00e4\U0001f4a9/", "false")  # fmt: skip
    signature = SecretKey(SECRET).signature("".join(values).encode(), body)
    fields = (
        f'"i":"KEYS\\u0001\\u00e4\\ud83d\\udca9\\/","k":"false","Signature":"{signature}",'
        f'"c":"\u20acTBW102","g":"1700","d":"4","e":"0","f":"0","h":"0","b":"T","a":"PG",'
        f'"SecurityToken":"token","ReqT":"0","OnsChannel":"ALIYUN","AccessKey":"{KEY}"'
    )
    assert len(wire.ask(frame(header(fields), body))) == 1
    assert wire.is_cold(frame(header(fields.replace('"e":"0"', '"e":"1"')), body))
    assert wire.is_cold(frame(header(fields + ',"z":"1"'), body)), "a field that nobody knows"


def test_a_field_without_a_value_is_not_certain(wire: Wire) -> None:
    """What a ROCKETMQ header signs for it is the word null, or nothing, as one reads it."""
    binary = SerializeType.ROCKETMQ
    command = RemotingCommand.decode(send(encoding=binary, i=properties(TAGS="t"))[4:])
    Signer(CREDENTIALS).sign(command)
    assert len(wire.ask(command.encode())) == 1
    command.ext_fields["n"] = ""
    assert wire.is_cold(command.encode())
    wire.connection.set_white(False, [KEY])
    assert wire.is_cold(command.encode())
    wire.connection.set_white(True, [])
    assert len(wire.ask(command.encode())) == 1


def test_an_account_does_not_show_its_secret() -> None:
    assert SECRET not in repr(READER_AND_WRITER) + str([READER_AND_WRITER])


@pytest.mark.parametrize(
    "accounts", ["text", [1], [("key",)], [("k", "s", False, 1, 1, 5)]], ids=repr
)
def test_what_are_no_accounts_is_refused_and_changes_nothing(bench: Bench, accounts: Any) -> None:
    bench.store.set_accounts([READER_AND_WRITER])
    wire = bench.connect()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        bench.store.set_accounts(accounts)
    assert len(wire.ask(signed(send()))) == 1
    assert wire.is_cold(send())
