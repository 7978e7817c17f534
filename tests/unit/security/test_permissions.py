"""Permissions of access control: their texts, and what they allow."""

from __future__ import annotations

import pytest

from kerolox.security.access.accounts import (
    Account,
    Permission,
    allows,
    group_resource,
    is_group,
    parse_permission,
)

BOTH = Permission.PUB | Permission.SUB


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        ("PUB", Permission.PUB),
        (" SUB ", Permission.SUB),
        ("PUB|SUB", BOTH),
        ("SUB|PUB", BOTH),
        ("DENY", Permission.DENY),
        ("pub", Permission.DENY),
        ("PUB | SUB", Permission.DENY),
        ("", Permission.DENY),
        (None, Permission.DENY),
    ],
)
def test_only_known_texts_permit_anything(text: str | None, permission: Permission) -> None:
    assert parse_permission(text) == permission


@pytest.mark.parametrize(
    ("owned", "needed", "is_allowed"),
    [
        (Permission.PUB, Permission.PUB, True),
        (Permission.PUB, Permission.SUB, False),
        (BOTH, Permission.SUB, True),
        (BOTH | Permission.DENY, Permission.SUB, False),
        (Permission.SUB, Permission.ANY, True),
        (Permission(0), Permission.ANY, False),
    ],
)
def test_a_need_is_met_by_its_own_bit_unless_denied(
    owned: Permission, needed: Permission, is_allowed: bool
) -> None:
    assert allows(owned, needed) is is_allowed


def test_a_group_is_known_by_its_retry_topic() -> None:
    assert group_resource("g") == "%RETRY%g"
    assert group_resource("%RETRY%g") == "%RETRY%%RETRY%g"
    assert is_group("%RETRY%g")
    assert not is_group("g")


def test_repr_of_an_account_hides_its_secret() -> None:
    assert "hidden" not in repr(Account("access", "hidden"))
