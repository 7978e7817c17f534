"""Changes of one file of accounts, as requests make them (``PlainPermissionManager``).

They change the tree of a file in place: what is not spoken of stays, unknown keys too, and the
order. Comments are lost. ``dataVersion`` counts each change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import yaml

Edit = Callable[["yaml.MappingNode"], None]


def edited(data: bytes, where: str, version: DataVersion, edit: Edit) -> bytes:
    """A file after a change.

    Args:
        data: the file before.
        where: its path, for errors.
        version: that of the file after the change.
        edit: makes the change.

    Raises:
        ConfigError: the file is no YAML.
    """
    root = read_yaml(data, where) or mapping_node({})
    root.flow_style = False
    edit(root)
    members: dict[str, yaml.Node] = {
        "counter": plain_node(version.counter),
        "timestamp": plain_node(version.timestamp),
    }
    _set(root, VERSION, list_node([mapping_node(members)]))
    return write_yaml(root)


def check_account(text: AccountText, *, is_new: bool) -> None:
    """Whether a request may make this account, or change one to it, as RocketMQ checks it.

    Raises:
        ValueError: it may not; the text has no secret.
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
    account_of(text if secret else _with_any_secret(text))


def put_account(text: AccountText) -> Edit:
    """Add an account, or change the members of one that are given."""

    def edit(root: yaml.MappingNode) -> None:
        import yaml

        values = _values(text)
        nodes = _accounts(root)
        for node in nodes.value:
            if isinstance(node, yaml.MappingNode) and _access_key(node) == text.access_key:
                for key, value in values.items():
                    _set(node, key, value)
                return
        nodes.value.append(mapping_node(values))
        nodes.flow_style = False

    return edit


def delete_account(access_key: str) -> Edit:
    """Take an account out."""

    def edit(root: yaml.MappingNode) -> None:
        import yaml

        nodes = _accounts(root)
        nodes.value = [
            node
            for node in nodes.value
            if not isinstance(node, yaml.MappingNode) or _access_key(node) != access_key
        ]
        nodes.flow_style = not nodes.value

    return edit


def put_white(addresses: Iterable[str]) -> Edit:
    """Replace the global white list."""
    texts = list(addresses)

    def edit(root: yaml.MappingNode) -> None:
        _set(root, WHITE, list_node([text_node(each) for each in texts]))

    return edit


def _with_any_secret(text: AccountText) -> AccountText:
    """For a check of all but the secret, which stays."""
    return dataclasses.replace(text, secret_key="*" * KEY_CHARACTERS_MIN)


def _values(text: AccountText) -> dict[str, yaml.Node]:
    """The members that are given, in RocketMQ's order."""
    values: dict[str, yaml.Node] = {ACCESS_KEY: text_node(text.access_key)}
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


def _accounts(root: yaml.MappingNode) -> yaml.SequenceNode:
    """The list of accounts, made if there is none."""
    import yaml

    found = _get(root, ACCOUNTS)
    if isinstance(found, yaml.SequenceNode):
        return found
    made = list_node([])
    _set(root, ACCOUNTS, made)
    return made


def _access_key(node: yaml.MappingNode) -> str:
    found = _get(node, ACCESS_KEY)
    return "" if found is None or is_nothing(found) else str(found.value)


def _get(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in node.value if name.value == key), None)


def _set(node: yaml.MappingNode, key: str, value: yaml.Node) -> None:
    for at, (name, _) in enumerate(node.value):
        if name.value == key:
            node.value[at] = (name, value)
            return
    node.value.append((text_node(key), value))
