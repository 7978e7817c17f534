"""What a kernel answers by itself is what access control would let in, whatever comes."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.kernel.values import AccountRules
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import SEND_LONG_NAMES
from kerolox.protocol.records import encode_batch
from kerolox.security.access.accounts import Account, Accounts, Permission
from kerolox.security.access.check import AccessControl
from kerolox.security.credentials import Credentials, Signer
from tests.support.stores.bench import Bench, frame, pull_fields, send_fields

TRIES = int(os.environ.get("KEROLOX_ACCESS_TRIES", "100"))
"""Random requests for each kernel."""

HOST = "10.20.30.41"
TOPICS = ("T", "Other", "%RETRY%G", "%RETRY%H", "RMQ_SYS_TRACE_TOPIC")
KEYS = ("producer-1", "schlüssel-2")
SECRETS = ("a first secret", "ein zweites Geheimnis")
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

permissions = st.sampled_from([1, 4, 8, 12, 12, 12, 13, 5]).map(Permission)
white_lists = st.sampled_from([frozenset[str]()] * 5 + [frozenset((HOST,))])


@st.composite
def all_accounts(draw: st.DrawFn) -> Accounts:
    found = {}
    for key in draw(st.sampled_from([KEYS, KEYS, KEYS[:1], ()])):
        found[key] = Account(
            key,
            draw(st.sampled_from([SECRETS[0], SECRETS[0], SECRETS[0], SECRETS[1]])),
            is_admin=draw(st.booleans()),
            white=draw(white_lists),
            default_topic=draw(permissions),
            default_group=draw(permissions),
            resources=draw(st.dictionaries(st.sampled_from(TOPICS), permissions, max_size=4)),
        )
    white = (draw(white_lists),) if draw(st.integers(0, 4)) == 0 else ()
    return Accounts(found, white)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request of a code that may be fast, mostly signed as it should be."""
    kinds = [10, 310, 310, 320, 11, 361]
    code = RequestCode(draw(st.sampled_from(kinds)))
    topic = draw(st.sampled_from(("T", "T", "T", *TOPICS)))
    group = draw(st.sampled_from(("G", "G", "H")))
    body = b""
    if code in PULLS:
        fields = pull_fields(topic=topic, consumerGroup=group)
    else:
        text = draw(st.sampled_from(["", "TAGS\x01ä", 'KEYS\x01a"\\/💩\x02TAGS\x01b']))
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE
        fields = send_fields(b=topic, a=group, i=text, m="true" if is_batch else "false")
        body = encode_batch([(0, b"a", b"")]) if is_batch else draw(st.binary(min_size=1))
    if code == RequestCode.SEND_MESSAGE:
        fields = {SEND_LONG_NAMES[name]: value for name, value in fields.items()}
    command = RemotingCommand.request(code, fields, body=body)
    command.serialize_type = draw(st.sampled_from(list(SerializeType)))
    if draw(st.integers(0, 9)):
        token = draw(st.sampled_from(["", "", "t", "ä" * 200]))
        key, secret = draw(st.sampled_from(KEYS)), draw(st.sampled_from([SECRETS[0], *SECRETS]))
        Signer(Credentials(key, secret, token)).sign(command)
    pairs = list(command.ext_fields.items())
    if draw(st.booleans()):
        pairs = draw(st.permutations(pairs))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        _change(draw, pairs)
    return _encoded(draw, command, pairs)


def _change(draw: st.DrawFn, pairs: list[tuple[str, str]]) -> None:
    place = draw(st.integers(0, len(pairs) - 1))
    name, value = pairs[place]
    other = draw(st.sampled_from(["", value[:-1], value + "=", KEYS[0], "T", "0", "\x85", "\0"]))
    match draw(st.sampled_from(["value", "leave out", "repeat", "before", "rename", "add"])):
        case "value":
            pairs[place] = (name, other)
        case "leave out" if len(pairs) > 1:
            del pairs[place]
        case "repeat":
            pairs.append((name, draw(st.sampled_from([value, other]))))
        case "before":
            pairs.insert(0, (name, other))
        case "rename":
            pairs[place] = (draw(st.sampled_from([name.lower(), name + " ", "n"])), value)
        case _:
            names = ["n", "bname", "z", "ReqT", "OnsChannel", "Signature", "AccessKey", "é"]
            pairs.append((draw(st.sampled_from(names)), other))


def _encoded(draw: st.DrawFn, command: RemotingCommand, pairs: list[tuple[str, str]]) -> bytes:
    """Written by hand, since no encoder repeats a field."""
    if command.serialize_type == SerializeType.JSON:
        is_ascii = draw(st.booleans())

        def text(value: str) -> str:
            return json.dumps(value, ensure_ascii=is_ascii)

        members = ",".join(f"{text(name)}:{text(value)}" for name, value in pairs)
        header = f'{{"code":{int(command.code)},"extFields":{{{members}}},"flag":0,"opaque":7}}'
        return frame(header.encode(), command.body)
    fields = b""
    for name, value in pairs:
        key, data = name.encode(), value.encode()
        fields += struct.pack(">h", len(key)) + key + struct.pack(">i", len(data)) + data
    fixed = struct.pack(">hbhiiii", command.code, 0, 409, 7, 0, 0, len(fields))
    return frame(fixed + fields, command.body, 1)


@pytest.mark.parametrize("is_same", [True, False], ids=["same draws", "other draws"])
def test_what_is_fast_would_be_let_in(bench: Bench, is_same: bool) -> None:
    """A share of draws that are the same each time is fast; of others that is chance."""
    for topic in TOPICS[1:]:
        bench.store.set_topic(topic, 4, 4, 6, True)
    bench.store.set_group("H", True, 1)
    tried = fast = 0

    @settings(
        max_examples=TRIES,
        deadline=None,
        database=None,
        derandomize=is_same,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(all_accounts(), st.lists(requests(), min_size=1, max_size=3))
    def check(accounts: Accounts, frames: list[bytes]) -> None:
        nonlocal tried, fast
        control = AccessControl(accounts, is_strict=True)
        bench.store.set_accounts([_rules(each) for each in accounts.by_key.values()])
        connection: Any = bench.connect().connection
        white_keys = [each.access_key for each in accounts.by_key.values() if HOST in each.white]
        connection.set_white(control.is_white(HOST), white_keys)
        for request in frames:
            tried += 1
            _answers, slow, _flags, error = connection.feed(request, len(request))
            assert error is None
            if slow is None:
                fast += 1
                assert control.refusal(RemotingCommand.decode(request[4:]), HOST) is None
        connection.close()

    check()
    assert fast > (tried // 20 if is_same else 0), "hardly any is fast"


def _rules(account: Account) -> AccountRules:
    return AccountRules(
        account.access_key,
        account.secret_key,
        account.may_everything,
        account.default_topic,
        account.default_group,
        account.resources,
    )
