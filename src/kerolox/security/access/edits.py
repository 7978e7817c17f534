"""Changes of one file of accounts, as requests make them (``PlainPermissionManager``).

They change the tree of a file in place: what is not spoken of stays, unknown keys too, and the
order. Comments are lost. ``dataVersion`` counts each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kerolox.protocol.bodies import DataVersion
from kerolox.security.access.documents import (
    ACCESS_KEY,
    ACCOUNTS,
    KEY_CHARACTERS_MIN,
    SECRET_KEY,
    VERSION,
    WHITE,
    AccountText,
    account_of,
    check_permissions,
)
from kerolox.security.access.yaml_text import (
    Items,
    Members,
    Node,
    Scalar,
    has_control,
    is_nothing,
    list_node,
    mapping_node,
    plain_node,
    read_yaml,
    text_node,
    write_yaml,
)
from kerolox.text import printable

Edit = Callable[[Members], None]


def edited(data: bytes, where: str, version: DataVersion, edit: Edit) -> bytes:
    """A file, of path ``where``, after a change; ``version`` is that of the new one. ConfigError:
    the old one is no YAML.
    """
    root = read_yaml(data, where) or mapping_node({})
    root.is_flow = False
    edit(root)
    members: dict[str, Node] = {
        "counter": plain_node(version.counter),
        "timestamp": plain_node(version.timestamp),
    }
    _set(root, VERSION, list_node([mapping_node(members)]))
    return write_yaml(root)


def check_account(text: AccountText, *, is_new: bool) -> None:
    """Have a request make this account, or change one to it, as RocketMQ checks it; ValueError,
    with no secret in it, where it may not.
    """
    key, secret = text.access_key, text.secret_key
    if (secret is None and is_new) or not all(
        len(each) >= KEY_CHARACTERS_MIN for each in (key, secret) if each is not None
    ):
        raise ValueError(
            f"The accessKey={printable(key, characters_max=64)} and secretKey=*** cannot be null "
            "and length should longer than 6"
        )
    check_permissions(text)
    for what, value in (("whiteRemoteAddress", text.white), ("accessKey", key)):
        if value and has_control(value):
            raise ValueError(f"{what} has a control character")
    # All but the secret, which stays.
    account_of(text if secret else replace(text, secret_key="*" * KEY_CHARACTERS_MIN))


def put_account(text: AccountText) -> Edit:
    """Add an account, or change the members of one that are given."""

    def edit(root: Members) -> None:
        values = _values(text)
        nodes = _accounts(root)
        for node in nodes.nodes:
            if isinstance(node, Members) and _access_key(node) == text.access_key:
                for key, value in values.items():
                    _set(node, key, value)
                return
        nodes.nodes.append(mapping_node(values))
        nodes.is_flow = False

    return edit


def delete_account(access_key: str) -> Edit:
    """Take an account out."""

    def edit(root: Members) -> None:
        nodes = _accounts(root)
        nodes.nodes = [
            node
            for node in nodes.nodes
            if not isinstance(node, Members) or _access_key(node) != access_key
        ]
        nodes.is_flow = not nodes.nodes

    return edit


def put_white(addresses: Iterable[str]) -> Edit:
    """Replace the global white list."""
    texts = list(addresses)

    def edit(root: Members) -> None:
        _set(root, WHITE, list_node([text_node(each) for each in texts]))

    return edit


def _values(text: AccountText) -> dict[str, Node]:
    """The members that are given, in RocketMQ's order."""
    values: dict[str, Node] = {ACCESS_KEY: text_node(text.access_key)}
    if text.secret_key:
        values[SECRET_KEY] = text_node(text.secret_key)
    if text.white is not None:
        values["whiteRemoteAddress"] = text_node(text.white)
    values["admin"] = plain_node(text.is_admin)
    for key, permission in (
        ("defaultTopicPerm", text.default_topic),
        ("defaultGroupPerm", text.default_group),
    ):
        if permission:
            values[key] = text_node(permission)
    for key, permissions in (("topicPerms", text.topics), ("groupPerms", text.groups)):
        if permissions is not None:
            values[key] = list_node([text_node(each) for each in permissions])
    return values


def _accounts(root: Members) -> Items:
    """The list of accounts, made if there is none."""
    found = _get(root, ACCOUNTS)
    if isinstance(found, Items):
        return found
    made = list_node([])
    _set(root, ACCOUNTS, made)
    return made


def _access_key(node: Members) -> str:
    found = _get(node, ACCESS_KEY)
    return found.text if isinstance(found, Scalar) and not is_nothing(found) else ""


def _get(node: Members, key: str) -> Node | None:
    return next((value for name, value in node.pairs if name.text == key), None)


def _set(node: Members, key: str, value: Node) -> None:
    for at, (name, _) in enumerate(node.pairs):
        if name.text == key:
            node.pairs[at] = (name, value)
            return
    node.pairs.append((text_node(key), value))
