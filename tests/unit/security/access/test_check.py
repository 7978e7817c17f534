"""The decision of access control: who may do what, by which text it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.requests import ROUTER
from kerolox.message import encode_properties
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.serialize import FIELDS_MAX
from kerolox.security.access.accounts import Account, Accounts, Permission
from kerolox.security.access.check import AccessControl, Reason
from kerolox.security.access.needs import OF_LATER_CODES, OF_ROCKETMQ, READING, STRICT
from kerolox.security.credentials import Credentials, Signer
from tests.support.clients.requests import heartbeat_body, pull_fields, send_fields

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY
SECRET = "a-secret-key"
HOST = "10.1.2.3"
ACCOUNTS = Accounts(
    by_key={
        each.access_key: each
        for each in (
            Account("plain-account", SECRET),
            Account(
                "worker-account",
                SECRET,
                resources={"T": PUB | SUB, "R": SUB, "W": PUB, "N": DENY, "%RETRY%g": SUB},
            ),
            Account("open-account", SECRET, default_topic=PUB | SUB, default_group=SUB),
            Account("operator", SECRET, is_admin=True),
            Account("bound-operator", SECRET, is_admin=True, resources={"T": PUB}),
            Account("white-account", SECRET, white=frozenset(("10.9.9.9",))),
        )
    },
    white=(frozenset(("10.8.8.8",)),),
)


def signed(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    by: str = "worker-account",
) -> RemotingCommand:
    command = RemotingCommand(code, dict(fields or {}), body)
    if by:
        Signer(Credentials(by, SECRET)).sign(command)
    return command


def text_of(command: RemotingCommand, *, host: str = HOST, strict: bool = True) -> str | None:
    refusal = AccessControl(ACCOUNTS, is_strict=strict).refusal(command, host)
    return None if refusal is None else refusal.text


def no(kind: str, name: str) -> str:
    return f"No default permission for {kind}:{name}"


def send(
    topic: str = "T", code: int = RequestCode.SEND_MESSAGE_V2, **more: object
) -> RemotingCommand:
    return signed(code, send_fields(b=topic, **more))


# -- who ------------------------------------------------------------------------------------------
def test_a_request_without_an_account_is_refused() -> None:
    command = signed(RequestCode.SEND_MESSAGE_V2, send_fields(), by="")
    assert text_of(command) == "No accessKey is configured"


def test_an_unknown_account_is_refused() -> None:
    command = signed(RequestCode.SEND_MESSAGE_V2, send_fields(), by="nobody-knows")
    assert text_of(command) == "No acl config for nobody-knows"


@pytest.mark.parametrize("signature", ["", "x", "é", "\ud800", "A" * 100_000, None])
def test_a_wrong_signature_is_refused(signature: str | None) -> None:
    command = send()
    if signature is None:
        del command.ext_fields["Signature"]
    else:
        command.ext_fields["Signature"] = signature
    assert text_of(command) == "Check signature failed for accessKey=worker-account"


def test_a_cut_or_longer_signature_is_refused() -> None:
    for change in (lambda text: text[:-1], lambda text: text + "=", lambda text: " " + text):
        command = send()
        command.ext_fields["Signature"] = change(command.ext_fields["Signature"])
        assert text_of(command) is not None


def test_a_signature_of_another_account_is_refused() -> None:
    command = send()
    command.ext_fields["AccessKey"] = "operator"
    assert text_of(command) == "Check signature failed for accessKey=operator"


def test_a_changed_field_or_body_is_refused() -> None:
    for name in send_fields():
        command = send()
        command.ext_fields[name] += "1"
        assert text_of(command) is not None, name
    command = send()
    command.body = b"x"
    assert text_of(command) is not None


def test_fields_may_come_in_any_order() -> None:
    command = send()
    command.ext_fields = dict(reversed(command.ext_fields.items()))
    assert text_of(command) is None


@pytest.mark.parametrize("kind", SerializeType)
def test_requests_are_checked_as_they_travelled(kind: SerializeType) -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, send_fields(i=""), b"x")
    command.serialize_type = kind
    Signer(Credentials("worker-account", SECRET)).sign(command)
    assert text_of(RemotingCommand.decode(command.encode()[4:])) is None


@pytest.mark.parametrize("with_mark", [True, False])
def test_a_query_by_id_may_be_signed_with_its_mark_or_without(with_mark: bool) -> None:
    fields = {"topic": "T", "key": "k"}
    if with_mark:
        fields["_UNIQUE_KEY_QUERY"] = "true"
    command = RemotingCommand(RequestCode.QUERY_MESSAGE, fields)
    # A signer leaves the mark out under its own name alone.
    shown = {("_UNIQUE" if name[0] == "_" else name): text for name, text in fields.items()}
    own = RemotingCommand(RequestCode.QUERY_MESSAGE, shown)
    Signer(Credentials("worker-account", SECRET)).sign(own)
    command.ext_fields |= {name: own.ext_fields[name] for name in ("AccessKey", "Signature")}
    assert text_of(command) is None
    other = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, command.ext_fields)
    assert (text_of(other) is None) is not with_mark


def test_long_names_in_a_refusal_are_cut_and_escaped() -> None:
    command = send()
    command.ext_fields["AccessKey"] = "\x1b[2J\n" + "x" * 1_000_000
    refusal = AccessControl(ACCOUNTS, is_strict=True).refusal(command, HOST)
    assert refusal is not None
    assert refusal.reason is Reason.UNKNOWN_ACCOUNT
    assert refusal.text.isprintable()
    assert len(refusal.text) < 400
    text = text_of(send("y" * 1_000_000))
    assert text is not None
    assert len(text) < 400


@given(
    fields=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=12),
    body=st.binary(max_size=32),
    code=st.sampled_from(sorted({*OF_ROCKETMQ, *OF_LATER_CODES, *STRICT, 9999})),
    strict=st.booleans(),
)
def test_nothing_that_is_not_signed_gets_in(
    fields: dict[str, str], body: bytes, code: int, strict: bool
) -> None:
    control = AccessControl(ACCOUNTS, is_strict=strict)
    for key in ("worker-account", "operator", "open-account"):
        command = RemotingCommand(code, {**fields, "AccessKey": key}, body)
        refusal = control.refusal(command, HOST)
        assert refusal is not None
        assert refusal.reason is Reason.SIGNATURE


@given(
    fields=st.dictionaries(
        st.sampled_from(["topic", "b", "a", "group", "consumerGroup", "i", "properties", "x"]),
        st.sampled_from(["T", "R", "W", "N", "%RETRY%g", "g", "", "RMQ_SYS_TRACE_TOPIC"]),
    ),
    body=st.binary(max_size=32) | st.just(heartbeat_body("c", group="g", topics={"T": "*"})),
    code=st.sampled_from(sorted({*OF_ROCKETMQ, *OF_LATER_CODES, *STRICT, 9999})),
    by=st.sampled_from(sorted(ACCOUNTS.by_key)),
)
def test_strictness_only_denies_more(
    fields: dict[str, str], body: bytes, code: int, by: str
) -> None:
    command = signed(code, fields, body, by=by)
    if text_of(command, strict=False) is not None:
        assert text_of(command, strict=True) is not None


def test_what_is_remembered_of_the_order_of_fields_is_bounded() -> None:
    control = AccessControl(ACCOUNTS, is_strict=True)
    for number in range(1_100):
        control.refusal(signed(9999, {f"f{number}": "x"}), HOST)
    wide = {f"f{number}": "x" for number in range(FIELDS_MAX - 2)}
    for _ in range(2):
        assert control.refusal(signed(9999, wide), HOST) is None


# -- white lists ----------------------------------------------------------------------------------
def test_the_global_white_list_lets_all_in() -> None:
    for command in (send(), signed(RequestCode.UPDATE_BROKER_CONFIG, by="")):
        assert text_of(command, host="10.8.8.8") is None


def test_the_white_list_of_an_account_replaces_signature_and_permission() -> None:
    command = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {"AccessKey": "white-account"})
    assert text_of(command, host="10.9.9.9") is None
    assert text_of(command) == "Check signature failed for accessKey=white-account"
    command.ext_fields["AccessKey"] = "worker-account"
    assert text_of(command, host="10.9.9.9") is not None


def test_other_accounts_are_in_force_with_the_next_request() -> None:
    control = AccessControl(ACCOUNTS, is_strict=True)
    assert control.refusal(send(), HOST) is None
    assert control.refusal(send(), "10.8.8.8") is None
    other = Account("worker-account", "another-secret", resources={"T": PUB})
    control.replace(Accounts(by_key={"worker-account": other}))
    refusal = control.refusal(send(), HOST)
    assert refusal is not None
    assert refusal.reason is Reason.SIGNATURE
    assert control.refusal(signed(9999, by=""), "10.8.8.8") is not None


# -- permissions ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("T", None),
        ("W", None),
        ("R", no("topic", "R")),
        ("N", no("topic", "N")),
        ("Other", no("topic", "Other")),
        ("RMQ_SYS_TRACE_TOPIC", None),
    ],
)
def test_sends_need_pub(topic: str, text: str | None) -> None:
    assert text_of(send(topic)) == text
    assert text_of(signed(RequestCode.SEND_MESSAGE, {"topic": topic})) == text


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
def test_batches_and_replies_need_pub_when_strict(code: int) -> None:
    assert text_of(send("R", code)) == no("topic", "R")
    assert text_of(send("R", code), strict=False) is None
    assert text_of(send("T", code)) is None


def test_given_back_messages_need_sub_of_the_group() -> None:
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        assert text_of(send("%RETRY%g", code, a="g")) is None
        assert text_of(send("%RETRY%g", code, a="other")) == no("group", "other")
        assert text_of(send("%RETRY%other", code, a="g")) == no("group", "other")
    assert text_of(send("%RETRY%other", a="g"), strict=False) is None
    older = signed(RequestCode.SEND_MESSAGE, {"topic": "%RETRY%other", "producerGroup": "g"})
    assert text_of(older) == no("group", "other")
    assert text_of(older, strict=False) is None


def test_further_queues_of_a_message_need_pub_too() -> None:
    def named(*topics: str) -> RemotingCommand:
        return send(i=encode_properties({"KEYS": "k", "INNER_MULTI_DISPATCH": ",".join(topics)}))

    assert text_of(named("T", "W")) is None
    assert text_of(named("T", "R")) == no("topic", "R")
    assert text_of(named("%RETRY%g")) == no("group", "g")
    assert text_of(named("R"), strict=False) is None


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
@pytest.mark.parametrize("strict", [True, False])
def test_pulls_need_sub_of_topic_and_group(code: int, strict: bool) -> None:
    def pull(topic: str, group: str) -> str | None:
        fields = pull_fields(topic=topic, consumerGroup=group)
        return text_of(signed(code, fields), strict=strict)

    assert pull("T", "g") is None
    assert pull("R", "g") is None
    assert pull("W", "g") == no("topic", "W")
    assert pull("T", "%RETRY%g") == no("group", "%RETRY%g")
    assert pull("%RETRY%g", "g") is None


def test_a_heartbeat_needs_all_its_groups_and_topics() -> None:
    def beat(group: str, *topics: str) -> str | None:
        body = heartbeat_body("c", group=group, topics=dict.fromkeys(topics, "*"))
        return text_of(signed(RequestCode.HEART_BEAT, body=body))

    assert beat("g", "T", "R", "%RETRY%g") is None
    assert beat("g", "T", "W") == no("topic", "W")
    assert beat("other", "T") == no("group", "other")
    assert beat("") is None


@pytest.mark.parametrize("strict", [True, False])
def test_who_may_make_a_group_by_its_settings_may_read_as_it(strict: bool) -> None:
    def poll(group: str) -> str | None:
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        return text_of(signed(code, {"group": group}), strict=strict)

    assert poll("g") is None
    assert poll("other") == no("group", "other")


def test_who_asks_for_its_queues_may_read_the_topic_as_the_group() -> None:
    def ask(group: str, topic: str) -> str | None:
        body = encode_body({"clientId": "c", "consumerGroup": group, "topic": topic})
        return text_of(signed(RequestCode.QUERY_ASSIGNMENT, body=body))

    assert ask("g", "T") is None
    assert ask("g", "%RETRY%g") is None
    assert ask("g", "W") == no("topic", "W")
    assert ask("other", "T") == no("group", "other")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_pops_need_sub_of_topic_and_group(code: int, strict: bool) -> None:
    def ask(topic: str, group: str) -> str | None:
        fields = {"topic": topic, "consumerGroup": group}
        return text_of(signed(code, fields), strict=strict)

    assert ask("T", "g") is None
    assert ask("W", "g") == no("topic", "W")
    assert ask("T", "other") == no("group", "other")


@pytest.mark.parametrize(
    "code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
)
def test_a_retry_that_is_out_needs_the_group_alone(code: int) -> None:
    def ask(topic: str, group: str) -> str | None:
        return text_of(signed(code, {"topic": topic, "consumerGroup": group}))

    assert ask("%RETRY%g_W", "g") is None
    assert ask("%RETRY%g+W", "g") is None
    assert ask("%RETRY%other_W", "g") == no("group", "other_W")
    assert ask("%RETRY%other_W", "other") == no("group", "other")


def test_a_batch_of_acknowledgements_needs_all_its_groups_and_topics() -> None:
    def ask(*places: tuple[str, str]) -> str | None:
        acks = [
            {"b": "AQ==", "c": group, "it": 1, "pt": 1, "q": 0, "r": "1", "so": 0, "t": topic}
            for group, topic in places
        ]
        return text_of(signed(RequestCode.BATCH_ACK_MESSAGE, body=encode_body({"acks": acks})))

    assert ask(("g", "T")) is None
    assert ask(("g", "T"), ("g", "W")) == no("topic", "W")
    assert ask(("g", "T"), ("other", "T")) == no("group", "other")


def test_a_malformed_body_is_refused_once_its_signature_is_right() -> None:
    beat = signed(RequestCode.HEART_BEAT, body=b"{")
    refusal = AccessControl(ACCOUNTS, is_strict=True).refusal(beat, HOST)
    assert refusal is not None
    assert refusal.reason is Reason.MALFORMED
    beat.body = b"["
    assert text_of(beat) == "Check signature failed for accessKey=worker-account"


def test_a_heartbeat_of_thousands_of_groups_is_decided() -> None:
    groups = [{"groupName": "g", "subscriptionDataSet": []} for _ in range(2_000)]
    body = encode_body({"clientID": "c", "consumerDataSet": [*groups, {"groupName": "other"}]})
    assert text_of(signed(RequestCode.HEART_BEAT, body=body)) == no("group", "other")


def test_locks_need_sub_of_the_group_when_strict() -> None:
    body = encode_body({"clientId": "c", "consumerGroup": "other", "mqSet": []})
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert text_of(signed(code, body=body)) == no("group", "other")
        assert text_of(signed(code, body=body), strict=False) is None


def test_a_default_holds_where_nothing_is_said() -> None:
    fields = pull_fields(topic="Any", consumerGroup="any")
    assert text_of(signed(RequestCode.PULL_MESSAGE, fields, by="open-account")) is None
    assert text_of(signed(RequestCode.PULL_MESSAGE, fields, by="plain-account")) is not None


# -- administrators -------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [17, 25, 200, 207, 215])
@pytest.mark.parametrize("strict", [True, False])
def test_administrators_alone_change_topics_groups_and_settings(code: int, strict: bool) -> None:
    text = f"Need admin permission for request code={code}, but accessKey=open-account is not"
    assert text_of(signed(code, by="open-account"), strict=strict) == text
    for by in ("operator", "bound-operator"):
        assert text_of(signed(code, by=by), strict=strict) is None


@pytest.mark.parametrize("code", [50, 51, 53, 222, 309, 314, 306, 316, 329, 323])
def test_other_changes_need_an_administrator_when_strict(code: int) -> None:
    text = text_of(signed(code, by="open-account"))
    assert text is not None
    assert text.startswith("Need admin permission")
    assert text_of(signed(code, by="open-account"), strict=False) is None
    assert text_of(signed(code, by="operator")) is None


@pytest.mark.parametrize("strict", [True, False])
def test_secrets_of_accounts_are_for_administrators(strict: bool) -> None:
    assert text_of(signed(54, by="open-account"), strict=strict) is not None


def test_an_administrator_with_resources_is_bound_to_them() -> None:
    assert text_of(signed(310, send_fields(b="T"), by="bound-operator")) is None
    assert text_of(signed(310, send_fields(b="R"), by="bound-operator")) == no("topic", "R")
    assert text_of(signed(310, send_fields(b="R"), by="operator")) is None


def test_ends_in_bulk_need_pub_of_the_half_topic_when_strict() -> None:
    command = signed(RequestCode.END_HALF_MESSAGES)
    assert text_of(command) == no("topic", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert text_of(command, strict=False) is None


# -- the tables -----------------------------------------------------------------------------------
def test_each_code_that_a_broker_serves_is_in_a_table() -> None:
    classified = {*OF_ROCKETMQ, *OF_LATER_CODES, *STRICT, *READING}
    assert {code for code in ROUTER.codes if code not in classified} == set()
    assert not READING & {*OF_ROCKETMQ, *OF_LATER_CODES, *STRICT}


def test_unknown_codes_need_a_right_signature() -> None:
    assert text_of(signed(9999)) is None
    assert text_of(signed(9999, by="")) == "No accessKey is configured"


def test_a_request_can_not_name_two_topics() -> None:
    route = ROUTER.routes[RequestCode.SEND_MESSAGE_V2]
    header = route.decode({**send_fields(b="T"), "topic": "R", "producerGroup": "other"})
    assert header.topic == "T"  # type: ignore[attr-defined]
    assert header.producer_group == "producers"  # type: ignore[attr-defined]
