"""``Admin`` by need: every method, whichever is asked for first."""

from __future__ import annotations

from typing import cast

import pytest

from kerolox.admin import Admin
from kerolox.admin.by_need import SUBJECTS, admin_by_need
from kerolox.client.aio.network.access import Access

ACCESS = cast("Access", object())
OF_ADMIN_ALONE = {"close", "on", "start"}
"""Of one that has connections of its own."""

METHODS = sorted({name for name in dir(Admin) if not name.startswith("_")} - OF_ADMIN_ALONE)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_of_an_admin_is_there_when_it_is_the_first(name: str) -> None:
    admin = admin_by_need(ACCESS)
    assert hasattr(admin, name)
    assert admin.access is ACCESS


def test_all_methods_are_there_after_each_other() -> None:
    admin = admin_by_need(ACCESS)
    assert [name for name in reversed(METHODS) if not hasattr(admin, name)] == []


def test_a_method_is_that_of_an_admin_bound_to_who_asks() -> None:
    admin = admin_by_need(ACCESS)
    assert admin.list_topics.__func__ is Admin.list_topics  # type: ignore[attr-defined]
    assert admin.list_topics.__self__ is admin  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["lists_topics", "_private"])
def test_a_name_that_no_subject_has_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"an Admin has no '{name}'"):
        getattr(admin_by_need(ACCESS), name)


def test_no_subject_stands_twice() -> None:
    assert len(set(SUBJECTS)) == len(SUBJECTS)
