"""Signatures of requests; the vectors were made with ``openssl dgst -sha1 -hmac``."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kerolox.client import ProducerSettings
from kerolox.errors import ConfigError
from kerolox.protocol.codes import FRAME_BYTES_MAX, RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.security.credentials import FILE_BYTES_MAX, Credentials, Signer, tool_credentials

ACCOUNT = Credentials("rocketmq2", "12345678")
WITH_TOKEN = Credentials("rocketmq2", "12345678", "a-token")
SECRETS = ("12345678", "a-token")
SEND = {
    **{"m": "false", "k": "false", "j": "0", "i": "KEYS\x0142\x02WAIT\x01true"},
    **{"h": "0", "g": "1732290000000", "f": "0", "e": "3", "d": "4"},
    **{"c": "TBW102", "b": "Orders", "a": "orders"},
}


def signed(fields: dict[str, str], body: bytes = b"", *, account: Credentials = ACCOUNT) -> str:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(fields), body)
    Signer(account).sign(command)
    return command.ext_fields["Signature"]


@pytest.mark.parametrize(
    ("fields", "body", "account", "signature"),
    [
        (SEND, b"hello", ACCOUNT, "IC9NIUs2FdI71EVAivWgfEvaDzg="),
        (SEND, b"hello", WITH_TOKEN, "c1eIInq7hn6fNBSSDallzEf/usU="),
        ({}, b"", ACCOUNT, "Ou1T58RIcyZWaTIwzkhJZWn/Zvs="),
        ({"topic": "\u00e9\u20ac"}, b"\xff\x00", ACCOUNT, "gNMuF2hXCNdpvE6mkLyjCFFGPok="),
        # Java's order is that of UTF-16 units: a surrogate comes before U+FF5E.
        ({"\uff5e": "v2", "\U0001f600": "v1"}, b"", ACCOUNT, "RPSkT3vIeYavl+s4okgrf5E+L5s="),
    ],
)
def test_a_signature_is_over_the_values_in_order_of_names_and_the_body(
    fields: dict[str, str], body: bytes, account: Credentials, signature: str
) -> None:
    assert signed(fields, body, account=account) == signature


def test_the_vector_of_the_go_client_holds() -> None:
    signer = Signer(Credentials("any", "adiaushdiaushd"))
    text = b"Hello RocketMQ Client ACL Feature"
    assert signer.signature({}, text) == "tAb/54Rwwcq+pbH8Loi7FWX4QSQ="


def test_a_request_names_its_account_and_is_changed_in_nothing_else() -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"hello")
    Signer(WITH_TOKEN).sign(command)
    added = {name: command.ext_fields[name] for name in command.ext_fields.keys() - SEND.keys()}
    assert added.keys() == {"AccessKey", "SecurityToken", "Signature"}
    assert (added["AccessKey"], added["SecurityToken"]) == ("rocketmq2", "a-token")
    assert {**SEND, **added} == command.ext_fields
    assert command.body == b"hello"


def test_a_request_that_is_sent_again_is_signed_alike() -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"hello")
    signer = Signer(ACCOUNT)
    signer.sign(command)
    first = dict(command.ext_fields)
    signer.sign(command)
    assert command.ext_fields == first


def test_kinds_of_requests_beyond_those_remembered_are_signed_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remembered = signed(SEND, b"hello")
    monkeypatch.setattr("kerolox.security.signatures.ORDERS_MAX", 0)
    assert signed(SEND, b"hello") == remembered


def test_the_mark_of_a_query_by_id_is_sent_but_not_signed() -> None:
    marked = RemotingCommand(RequestCode.QUERY_MESSAGE, {"_UNIQUE_KEY_QUERY": "true", "key": "k"})
    Signer(ACCOUNT).sign(marked)
    assert marked.ext_fields["_UNIQUE_KEY_QUERY"] == "true"
    assert marked.ext_fields["Signature"] == signed({"key": "k"})


def test_binary_headers_leave_out_what_a_broker_would_read_as_null() -> None:
    command = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, {"i": "", "b": "T"}, serialize_type=SerializeType.ROCKETMQ
    )
    Signer(ACCOUNT).sign(command)
    assert command.ext_fields.keys() == {"b", "AccessKey", "Signature"}
    assert command.ext_fields["Signature"] == signed({"b": "T"})


def request_of(
    fields: dict[str, str], body: bytes, encoding: SerializeType = SerializeType.JSON
) -> RemotingCommand:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(fields), body)
    command.serialize_type = encoding
    return command


@pytest.mark.parametrize("account", [ACCOUNT, WITH_TOKEN, Credentials('q"\\\u00e9', "secret-key")])
def test_requests_that_are_frames_are_signed_as_others_are(account: Credentials) -> None:
    signer = Signer(account)
    odd = {"i": 'a"\\\u00e9\x01\n"extFields":{"Signature":"x', "zone": "\U0001f600"}
    requests = [(SEND, b"hello"), (odd, b'"extFields":{' * 100), ({"b": ""}, b"\xff")]
    frames = b"".join(request_of(*each).encode() for each in requests)
    sealed = FrameDecoder().feed(memoryview(signer.sign_frames(frames)))
    assert len(sealed) == len(requests)
    for frame, (fields, body) in zip(sealed, requests, strict=True):
        wanted, got = request_of(fields, body), RemotingCommand.decode(frame)
        signer.sign(wanted)
        assert got == wanted


def test_frames_that_are_signed_or_no_json_travel_as_they_are() -> None:
    signer = Signer(ACCOUNT)
    signed, binary = request_of(SEND, b"a"), request_of(SEND, b"b", SerializeType.ROCKETMQ)
    signer.sign(signed)
    signer.sign(binary)
    frames = (
        signed.encode() + binary.encode() + request_of(SEND, b"b", binary.serialize_type).encode()
    )
    assert signer.sign_frames(frames) == frames
    assert signer.sign_frames(b"") == b""
    fieldless = request_of({}, b"").encode()
    assert signer.sign_frames(fieldless) == fieldless


def test_a_frame_that_is_as_large_as_one_may_be_is_not_made_larger() -> None:
    signer, empty = Signer(ACCOUNT), len(request_of(SEND, b"").encode())
    for spare, is_signed in ((-4, False), (200, True)):
        frame = request_of(SEND, bytes(FRAME_BYTES_MAX - empty - spare)).encode()
        sealed = signer.sign_frames(frame)
        assert (sealed != frame) is is_signed
        assert len(sealed) - 4 <= FRAME_BYTES_MAX


def test_no_secret_is_shown() -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"hello")
    Signer(WITH_TOKEN).sign(command)
    settings = ProducerSettings(credentials=WITH_TOKEN)
    for shown in (repr(WITH_TOKEN), str(WITH_TOKEN), repr(settings), repr(command)):
        assert "rocketmq2" in shown
        assert not [secret for secret in SECRETS if secret in shown]
    assert command.ext_fields["Signature"] not in repr(command)


def test_credentials_can_be_carried_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(WITH_TOKEN)) == WITH_TOKEN


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("", "12345678"), "access_key is blank"),
        (("rocketmq2", " "), "secret_key is blank"),
        (("rocketmq2", "12345678", "  "), "security_token is blank"),
        (("rocketmq2", b"12345678"), "secret_key is a bytes"),
        (("rocketmq2", "12345678\ud800"), "secret_key has a character"),
    ],
)
def test_what_can_be_no_account_is_refused_untold(
    arguments: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        Credentials(*arguments)
    assert "12345678" not in str(caught.value)


def test_settings_take_credentials_only_and_do_not_tell_what_they_got() -> None:
    with pytest.raises(ConfigError, match="credentials are a tuple; make Credentials") as caught:
        ProducerSettings(credentials=("rocketmq2", "12345678"))  # type: ignore[arg-type]
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tools.yml", "# of mqadmin\naccessKey: rocketmq2\nsecretKey: 12345678  # a comment\n"),
        ("tools.yaml", "---\naccessKey: 'rocketmq2'\nsecretKey: \"12345678\"\n"),
        ("key", "AccessKey=rocketmq2\nSecretKey = 12345678 \n"),
    ],
)
def test_files_are_read_as_rocketmq_has_them(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert Credentials.from_file(tmp_path / name) == ACCOUNT


def test_a_file_may_have_a_token(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("AccessKey=rocketmq2\nSecretKey=12345678\nSecurityToken=a-token\n")
    assert Credentials.from_file(path) == WITH_TOKEN


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("tools.yml", "accessKey: a\n", "has no secretKey; it needs accessKey and secretKey"),
        ("tools.yml", "accounts:\n  - secretKey: 12345678\n", "line 2: write accessKey: TEXT"),
        ("tools.yml", "secretKey: '12345678' 9\n", "line 1: something stands behind"),
        ("key", "SecretKey=12345678\n", "has no AccessKey"),
        ("key", "SecretKey=12345678\\uzzzz\n", "four hex digits"),
        ("key", "\xff", "it is no UTF-8"),
        ("key", "x" * FILE_BYTES_MAX + "AccessKey=a\nSecretKey=12345678\n", "has no AccessKey"),
    ],
)
def test_a_file_that_is_none_is_named_and_not_quoted(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=complaint) as caught:
        Credentials.from_file(tmp_path / name)
    assert name in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"credentials from .*nowhere: No such file"):
        Credentials.from_file(tmp_path / "nowhere")


def test_tools_take_options_then_variables_then_files_of_rocketmq(tmp_path: Path) -> None:
    home, rocketmq = tmp_path / "home", tmp_path / "rocketmq"
    (rocketmq / "conf").mkdir(parents=True)
    home.mkdir()
    assert tool_credentials(None, None, None, {}) is None
    environment = {"HOME": str(home), "ROCKETMQ_HOME": str(rocketmq)}
    assert tool_credentials(None, None, None, environment) is None
    (home / "key").write_text("AccessKey=of-home\nSecretKey=12345678\n")
    assert named(environment) == "of-home"
    (rocketmq / "conf" / "tools.yml").write_text("accessKey: of-tools\nsecretKey: 12345678\n")
    assert named(environment) == "of-tools"
    environment |= {"KEROLOX_ACCESS_KEY": "of-env", "KEROLOX_SECRET_KEY": "12345678"}
    assert named(environment) == "of-env"
    given = tool_credentials("of-option", None, "a-token", environment)
    assert given == Credentials("of-option", "12345678", "a-token")


def named(environment: dict[str, str]) -> str:
    found = tool_credentials(None, None, None, environment)
    assert found is not None
    return found.access_key


@pytest.mark.parametrize("text", ["SecretKey=12345678\n", "-----BEGIN KEY-----\n", "\\uzzzz=1\n"])
def test_a_file_called_key_may_be_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    assert tool_credentials(None, None, None, {"HOME": str(tmp_path)}) is None


def test_half_an_account_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give --secret-key or \$KEROLOX_SECRET_KEY"):
        tool_credentials("rocketmq2", None, None, {})
    with pytest.raises(ConfigError, match=r"give --access-key or \$KEROLOX_ACCESS_KEY") as caught:
        tool_credentials(None, "12345678", None, {})
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_one_line_break_behind_a_key_of_a_tool_is_no_part_of_it(end: str) -> None:
    variables = {"KEROLOX_ACCESS_KEY": f"operator{end}", "KEROLOX_SECRET_KEY": f"12345678{end}"}
    made = tool_credentials(None, None, None, variables)
    assert made == Credentials("operator", "12345678")
    assert tool_credentials(f"operator{end}", f"12345678{end}", None, {}) == made
    with pytest.raises(ConfigError, match="secret_key ends with a line break"):
        tool_credentials("operator", f"12345678\n{end}", None, {})
    with pytest.raises(ConfigError, match="secret_key ends with a line break"):
        Credentials("operator", f"12345678{end}")
