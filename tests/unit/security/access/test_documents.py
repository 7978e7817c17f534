"""Files of accounts: what they say, and what is wrong with them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ConfigError
from kerolox.protocol.bodies import DataVersion
from kerolox.security.access.accounts import Account, Permission
from kerolox.security.access.addresses import NOBODY, parse_addresses
from kerolox.security.access.documents import FILE_BYTES_MAX, Document, read_document

SECRET = "Geheimnis-2718"
BOTH = Permission.PUB | Permission.SUB
EXAMPLE = f"""
# as RocketMQ's own
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - '*:*:*:*:*:*:*:*'
accounts:
  - accessKey: RocketMQ
    secretKey: {SECRET}
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB = PUB|SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=SUB
  - accessKey: "12345678"
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: yes
dataVersion:
- counter: 3
  timestamp: 1700000000000
"""


def read(text: str) -> Document:
    return read_document(text.encode(), "f.yml")


def account(*lines: str, key: str = "an-account", secret: str = SECRET) -> str:
    return "\n".join(["accounts:", f"- accessKey: {key}", f"  secretKey: {secret}", *lines, ""])


def complaint_about(data: bytes) -> str:
    try:
        read_document(data, "f.yml")
    except ConfigError as error:
        return str(error)
    return ""


def test_rocketmqs_own_example_is_read() -> None:
    document = read(EXAMPLE)
    assert document.accounts == (
        Account(
            "RocketMQ",
            SECRET,
            default_group=Permission.SUB,
            resources={
                "topicA": Permission.DENY,
                "topicB": BOTH,
                "%RETRY%groupA": Permission.SUB,
            },
            white=NOBODY,
        ),
        Account("12345678", "12345678", is_admin=True, white=parse_addresses("192.168.1.*")),
    )
    assert document.white == tuple(map(parse_addresses, ("10.10.103.*", "*")))
    assert document.version == DataVersion(counter=3, timestamp=1_700_000_000_000)
    assert document.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "---\n",
        "accounts:\n",
        "accounts: []\nglobalWhiteRemoteAddresses:\n",
        "{}",
    ],
)
def test_a_file_without_accounts_has_none(text: str) -> None:
    assert read(text) == Document()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("accounts: here", "line 1: accounts must be a list"),
        ("- accessKey: x", "line 1: the file is no mapping"),
        ("accounts:\n- name", "line 2: an account must be a mapping"),
        ("accounts:\n- \n", "line 2: an account must be a mapping"),
        (account(key="short"), "line 2: account: accessKey: it has 5 characters; write 7 or more"),
        (account(key="~"), "line 2: account: accessKey: it is missing"),
        (account(secret="short2"), "line 2: account: secretKey: it has 6 characters"),
        (account(secret="~"), "line 2: account: secretKey: it is missing"),
        (account(key="'       '"), "accessKey: it is blank"),
        (account(key='"a\\nbcdefgh"'), "line 2: accessKey has a control character"),
        (account(key="x" * 2000), "accessKey: 2000 characters; the most is 1024"),
        (account(secret="012345670"), "line 3: secretKey is read as a number, a date or a switch"),
        (account(secret="1234567e3"), "line 3: secretKey is read as a number"),
        (account(secret="2026-01-31"), "line 3: secretKey is read as a number"),
        (account(secret="._28_2701"), "line 3: secretKey is read as a number"),
        (account(secret="1_000_000"), "line 3: secretKey is read as a number"),
        (account(secret="12:30:45"), "line 3: secretKey is read as a number"),
        (account(secret="[a, b]"), "line 3: secretKey must be a text, not a list"),
        (account("  admin: perhaps"), "line 4: admin must be true or false"),
        (account("  admin: [true]"), "line 4: admin must be true or false"),
        (account("  whiteRemoteAddress: 10.1.2.300"), "line 2: account: whiteRemoteAddress: '10.1"),
        (account("  whiteRemoteAddress: *"), "line 4: no YAML: .*in quotes"),
        (account("  whiteRemoteAddress: *all"), "line 4: .*an alias in YAML"),
        (account("  topicPerms: a=PUB"), "line 4: topicPerms must be a list"),
        (account("  topicPerms: [a: PUB]"), "line 4: an item of topicPerms, such as"),
        (account("  topicPerms: [a]"), "The expected resource format is 'Res=Perm'"),
        (account("  topicPerms: [a=b=PUB]"), "The expected resource format is 'Res=Perm'"),
        (account("  groupPerms: ['=PUB']"), "The expected resource format is 'Res=Perm'"),
        (account(f"  groupPerms: [{'g' * 300}=PUB]"), "too long; the most is 255"),
        (account("  secretKey: again"), "line 4: key 'secretKey' stands twice"),
        ("globalWhiteRemoteAddresses:\n- 10.1.2.3\n- nowhere", "line 3: .*'nowhere' is no IP addr"),
        ("globalWhiteRemoteAddresses: 10.1.2.3", "line 1: globalWhiteRemoteAddresses must be a li"),
        ("dataVersion: [{counter: many}]", "line 1: counter must be a whole number"),
        ("dataVersion: [3]", "line 1: an item of dataVersion must be a mapping"),
        ("accounts: &all []", "line 1: .*an anchor in YAML"),
        ("accounts: !!set {}", "line 1: .*a tag in YAML"),
        ("accounts:\n\t- x", "line 2: no YAML: .*blanks"),
        ("a: 1\n---\na: 2", "line 2: a second document"),
        (f"a: {'[' * 50}{']' * 50}", "line 1: more than 16 levels"),
        ("a: \x01", "no YAML"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where_and_why(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"f.yml.*{complaint}") as caught:
        read(text)
    assert str(caught.value).isprintable()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "secret",
    ["12345678", "012345678", "1234567890123456789012", "-1234567", "2026-1-31", "1.2.3.4"],
)
def test_a_plain_text_that_every_reader_takes_alike_is_taken(secret: str) -> None:
    [made] = read(account(secret=secret)).accounts
    assert made.secret_key == secret


def test_bytes_that_are_no_text_are_refused_with_a_line() -> None:
    with pytest.raises(ConfigError, match=r"f\.yml, line 2: not UTF-8"):
        read_document(b"accounts:\n\xff\xfe", "f.yml")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="the most is"):
        read_document(b" " * (FILE_BYTES_MAX + 1), "f.yml")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (account("  topicPerms: [a=pub]"), "line 2: account 'an-account': .* for 'a=pub'.*denies"),
        (
            account("  defaultTopicPerm: ALL"),
            "line 2: account 'an-account': 'ALL' is no permission",
        ),
        (
            account("  whiteRemoteAdress: x"),
            "line 4: .*no effect; did you mean whiteRemoteAddress?",
        ),
        (account() + account().partition("\n")[2], "line 4: account 'an-account' stands twice"),
        ("accoounts: []", "line 1: the key 'accoounts' has no effect; did you mean accounts?"),
    ],
)
def test_what_hardly_anybody_means_is_a_warning(text: str, warning: str) -> None:
    [told] = read(text).warnings
    assert re.search(f"f.yml, {warning}", told), told


def test_a_permission_that_is_none_denies() -> None:
    [made] = read(account("  topicPerms: [a=pub]", "  defaultTopicPerm: ALL")).accounts
    assert made.resources == {"a": Permission.DENY}
    assert made.default_topic == Permission.DENY


def test_many_warnings_are_counted() -> None:
    warnings = read("".join(f"key{number}: 1\n" for number in range(100))).warnings
    assert len(warnings) == 21
    assert "80 more" in warnings[-1]


def test_no_repr_shows_a_secret() -> None:
    assert SECRET not in repr(read(EXAMPLE))


@given(st.text(max_size=60) | st.text("accounts:-[]{}*&!|>'\"\n\t a0%@", max_size=80))
def test_any_text_is_accounts_or_an_error(text: str) -> None:
    complaint = complaint_about(text.encode("utf-8", "surrogatepass"))
    assert complaint.startswith("f.yml") or not complaint
    assert complaint.isprintable()


@given(st.text(min_size=1, max_size=40))
def test_no_error_tells_a_secret(secret: str) -> None:
    text = account(secret=f"{SECRET}{secret}")
    assert SECRET not in complaint_about(text.encode("utf-8", "replace"))
