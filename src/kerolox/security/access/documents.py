"""One file of accounts (``plain_acl.yml``): what it says, checked.

::

    globalWhiteRemoteAddresses:
      - 10.10.103.*
    accounts:
      - accessKey: orders-service
        secretKey: ...
        whiteRemoteAddress: 192.168.0.*
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB]
        groupPerms: [billing=SUB]
    dataVersion:
      - {counter: 3, timestamp: 1700000000000}

Every part may be missing. Errors name the file and the line; no text of them or of a warning has a
secret. What RocketMQ takes without a word and hardly anybody means is a warning: a permission that
is none (it denies), a key that nobody knows, an access key that stands twice (the first counts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from kerolox.config import nearest
from kerolox.errors import ConfigError
from kerolox.protocol.bodies import DataVersion
from kerolox.security.access.accounts import (
    Account,
    Addresses,
    Permission,
    group_resource,
    is_permission,
    parse_permission,
)
from kerolox.security.access.addresses import parse_addresses
from kerolox.security.access.yaml_text import (
    Members,
    Node,
    at,
    flag_of,
    has_control,
    is_nothing,
    items,
    members,
    number_of,
    read_yaml,
    text_of,
)
from kerolox.text import quoted

FILE_BYTES_MAX = 3 * 1024 * 1024
"""SnakeYAML reads no more either."""

ACCOUNTS_MAX = 10_000
"""Of one file, and of all."""

RESOURCES_MAX = 10_000
"""Permissions of one account."""

WHITE_LISTS_MAX = 1_000
"""Global ones; each request of a stranger is compared with all of them."""

KEY_CHARACTERS_MIN = 7
"""Of access key and secret key: more than ``ACCESS_KEY_MIN_LENGTH`` and its counterpart."""

KEY_CHARACTERS_MAX = 1024
NAME_CHARACTERS_MAX = 255
"""Of a topic or a group."""

WARNINGS_MAX = 20
"""Of one file; further ones are counted."""

WHITE = "globalWhiteRemoteAddresses"
ACCOUNTS = "accounts"
VERSION = "dataVersion"
ACCESS_KEY = "accessKey"
SECRET_KEY = "secretKey"
_TOP_KEYS = (WHITE, ACCOUNTS, VERSION)
_ACCOUNT_KEYS = (
    ACCESS_KEY,
    SECRET_KEY,
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


_USUAL = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB")
_USUAL_ENDS = tuple("=" + each for each in _USUAL)


@dataclass(frozen=True, slots=True)
class AccountText:
    """An account as a file or a request has it (``PlainAccessConfig``); None: not given."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white: str | None = None
    is_admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    """``topic=PUB|SUB`` each."""
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says."""

    accounts: tuple[Account, ...] = ()
    """In the order of the file, each access key once."""
    white: tuple[Addresses, ...] = ()
    white_texts: tuple[str, ...] = ()
    texts: tuple[AccountText, ...] = field(default=(), repr=False)
    """Of ``accounts``, as they are written."""
    version: DataVersion | None = None
    """None: no request has changed the file."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    is_blank: bool = field(default=False, compare=False)
    """It has no data at all, not even ``accounts: []``."""


def read_document(data: bytes, where: str) -> Document:
    """What a file says; ``where`` is its path, for errors and warnings.

    ConfigError: it is too large, no YAML, or an account is wrong; the text names file and line, and
    what would be right.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"{where}: {len(data)} bytes of accounts; the most is {FILE_BYTES_MAX}, so write "
            "several files into the folder acl"
        )
    root = read_yaml(data, where)
    if root is None:
        return Document(is_blank=True)
    return _Reader(where).document(root)


def account_of(text: AccountText) -> Account:
    """The account that a text describes; permissions that are none deny.

    ValueError: a key is missing, too short or too long, a permission has another form, or the white
    list is none. The text has no secret.
    """
    _check_key(text.access_key, "accessKey")
    _check_key(text.secret_key, "secretKey")
    resources: dict[str, Permission] = {}
    for permissions, is_group in ((text.groups, True), (text.topics, False)):
        for item in permissions or ():
            name, permission = split_permission(item)
            resources[group_resource(name) if is_group else name] = parse_permission(permission)
    if len(resources) > RESOURCES_MAX:
        raise ValueError(f"{len(resources)} topics and groups; the most is {RESOURCES_MAX}")
    try:
        white = parse_addresses(text.white)
    except ValueError as error:
        raise ValueError(f"whiteRemoteAddress: {error}") from None
    return Account(
        access_key=text.access_key,
        secret_key=text.secret_key or "",
        is_admin=text.is_admin,
        white=white,
        default_topic=parse_permission(text.default_topic),
        default_group=parse_permission(text.default_group),
        resources=resources,
    )


def check_permissions(text: AccountText) -> None:
    """Refuse permissions that mean nothing by a ValueError (``Permission.checkResourcePerms``)."""
    for item in (*(text.topics or ()), *(text.groups or ())):
        _, permission = split_permission(item)
        if not is_permission(permission):
            raise ValueError(
                f"Parse resource permission error for {quoted(item)}. "
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )
    for default in (text.default_topic, text.default_group):
        if default and not is_permission(default):
            raise ValueError(f"{quoted(default)} is no permission; write DENY, PUB, SUB or PUB|SUB")


def split_permission(item: str) -> tuple[str, str]:
    """Name and permission of ``name=permission``; ValueError where it has another form."""
    parts = item.split("=")
    if "" in parts:
        parts = [each for each in parts if each]
    if len(parts) != 2 or not parts[0].strip() or has_control(item):
        raise ValueError(
            f"Parse Resource format error for {quoted(item)}. "
            "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
        )
    name = parts[0].strip()
    if len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(f"the name {quoted(name)} is too long; the most is {NAME_CHARACTERS_MAX}")
    return name, parts[1].strip()


def _check_key(key: str | None, what: str) -> None:
    if key is None or len(key) < KEY_CHARACTERS_MIN:
        count = f"it has {len(key)} characters" if key else "it is missing"
        raise ValueError(f"{what}: {count}; write {KEY_CHARACTERS_MIN} or more")
    if len(key) > KEY_CHARACTERS_MAX:
        raise ValueError(f"{what}: {len(key)} characters; the most is {KEY_CHARACTERS_MAX}")
    if not key.strip() or has_control(key):
        raise ValueError(f"{what}: it is blank or has a control character; choose another one")


class _Reader:
    """Reads the nodes of one file."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._warnings: list[str] = []

    def document(self, root: Members) -> Document:
        top = members(root, self._where, "the file")
        self._warn_of_unknown(root, _TOP_KEYS)
        white_texts, white = self._white_lists(top.get(WHITE))
        texts, accounts = self._accounts(top.get(ACCOUNTS))
        version = self._version(top.get(VERSION))
        if len(self._warnings) > WARNINGS_MAX:
            more = len(self._warnings) - WARNINGS_MAX
            self._warnings[WARNINGS_MAX:] = [f"{self._where}: {more} more warnings"]
        return Document(
            tuple(accounts),
            tuple(white),
            tuple(white_texts),
            tuple(texts),
            version,
            tuple(self._warnings),
        )

    def _white_lists(self, node: Node | None) -> tuple[list[str], list[Addresses]]:
        nodes = items(node, self._where, WHITE)
        if len(nodes) > WHITE_LISTS_MAX:
            raise ConfigError(
                f"{at(nodes[WHITE_LISTS_MAX], self._where)}: {len(nodes)} global white lists; the "
                f"most is {WHITE_LISTS_MAX}; join addresses by commas"
            )
        texts, lists = [], []
        for each in nodes:
            text = text_of(each, self._where, f"an item of {WHITE}") or ""
            try:
                lists.append(parse_addresses(text))
            except ValueError as error:
                raise ConfigError(f"{at(each, self._where)}: {WHITE}: {error}") from None
            texts.append(text)
        return texts, lists

    def _accounts(self, node: Node | None) -> tuple[list[AccountText], list[Account]]:
        nodes = items(node, self._where, ACCOUNTS)
        if len(nodes) > ACCOUNTS_MAX:
            raise ConfigError(
                f"{at(nodes[ACCOUNTS_MAX], self._where)}: {len(nodes)} accounts; the most is "
                f"{ACCOUNTS_MAX}"
            )
        texts: dict[str, AccountText] = {}
        accounts: list[Account] = []
        for each in nodes:
            text = self._account_text(each)
            try:
                account = account_of(text)
            except ValueError as error:
                raise ConfigError(f"{at(each, self._where)}: account: {error}") from None
            if account.access_key in texts:
                self._warn(
                    each, f"account {quoted(account.access_key)} stands twice; the first counts"
                )
                continue
            self._warn_of_permissions(each, text)
            texts[account.access_key] = text
            accounts.append(account)
        return list(texts.values()), accounts

    def _account_text(self, node: Node) -> AccountText:
        where = self._where
        values = members(node, where, "an account")
        self._warn_of_unknown(node, _ACCOUNT_KEYS)

        def text(key: str) -> str | None:
            return text_of(values.get(key), where, key)

        def texts(key: str) -> tuple[str, ...] | None:
            value = values.get(key)
            if is_nothing(value):
                return None
            what = f"an item of {key}, such as 'name=PUB|SUB',"
            return tuple(text_of(each, where, what) or "" for each in items(value, where, key))

        return AccountText(
            access_key=text(ACCESS_KEY) or "",
            secret_key=text(SECRET_KEY),
            white=text("whiteRemoteAddress"),
            is_admin=flag_of(values.get("admin"), where, "admin"),
            default_topic=text("defaultTopicPerm"),
            default_group=text("defaultGroupPerm"),
            topics=texts("topicPerms"),
            groups=texts("groupPerms"),
        )

    def _version(self, node: Node | None) -> DataVersion | None:
        nodes = items(node, self._where, VERSION)
        if not nodes:
            return None
        values = members(nodes[0], self._where, f"an item of {VERSION}")
        counter, timestamp = (
            number_of(values.get(key), self._where, key) for key in ("counter", "timestamp")
        )
        return DataVersion(counter=counter, timestamp=timestamp)

    def _warn_of_permissions(self, node: Node, text: AccountText) -> None:
        defaults, resources = (text.default_topic, text.default_group), (text.topics, text.groups)
        # Most are as usual; the form of each is right, since it has been read.
        if all(each in _USUAL for each in defaults if each) and all(
            item.endswith(_USUAL_ENDS) for item in chain.from_iterable(filter(None, resources))
        ):
            return
        try:
            check_permissions(text)
        except ValueError as error:
            self._warn(node, f"account {quoted(text.access_key)}: {error} It denies.")

    def _warn_of_unknown(self, node: Node, known: Iterable[str]) -> None:
        for key, _ in node.pairs if isinstance(node, Members) else ():
            if key.text not in known:
                best = nearest(key.text, known)
                hint = f"; did you mean {best}?" if best else ""
                self._warn(key, f"the key {quoted(key.text)} has no effect{hint}")

    def _warn(self, node: Node, text: str) -> None:
        self._warnings.append(f"{at(node, self._where)}: {text}")
