"""The interface of the kernels is made of parts that one can hold."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from kerolox import kernel
from kerolox.kernel.feed import ConnectionKernel
from kerolox.kernel.store import StoreKernel

METHODS_MAX = 20


def own_members(part: type) -> list[str]:
    """Public methods and properties that a class itself states."""
    return [name for name in vars(part) if not name.startswith("_")]


def protocols() -> list[type]:
    """Every protocol of the package."""
    modules = [
        import_module(each.name) for each in iter_modules(kernel.__path__, "kerolox.kernel.")
    ]
    return [
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each)
        and each.__module__ == module.__name__
        and getattr(each, "_is_protocol", False)
    ]


@pytest.mark.parametrize("part", protocols(), ids=lambda part: part.__name__)
def test_a_protocol_states_fewer_than_twenty_methods(part: type) -> None:
    assert len(own_members(part)) < METHODS_MAX


def test_the_whole_store_states_no_method_of_its_own() -> None:
    assert own_members(StoreKernel) == []


@pytest.mark.parametrize("part", protocols(), ids=lambda part: part.__name__)
def test_no_method_of_the_interface_takes_or_gives_any(part: type) -> None:
    for name in own_members(part):
        member = vars(part)[name]
        stated = member.fget if isinstance(member, property) else member
        stated = getattr(stated, "__func__", stated)
        assert "Any" not in str(inspect.signature(stated)), f"{part.__name__}.{name}"


def test_every_part_of_a_store_is_found() -> None:
    assert {StoreKernel, ConnectionKernel} < set(protocols())
    assert len(protocols()) >= 10
