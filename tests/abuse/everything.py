"""Every code of a role with all that can be wrong with a request, many of them at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.abuse.abuses import Abuse, abuses_of, huge_abuses_of
from tests.abuse.asker import ask_all
from tests.abuse.every_code import BROKER, Role

if TYPE_CHECKING:
    from tests.support.servers.up import Up

__all__ = ["ALL_OF_THEM", "ask_everything", "ask_everything_huge"]

REMARK_CHARACTERS_MAX = 1_500
"""An answer says what is wrong, and does not say it all back."""

OPAQUES_PER_CODE = 10_000
CONNECTIONS, HUGE_CONNECTIONS = 8, 2
CODES_AT_ONCE = 5

ALL_OF_THEM = bool(os.environ.get("KEROLOX_FUZZ_EXAMPLES"))
"""All abuses in both encodings, in place of a part of them for each code."""


def ask_everything(up: Up, role: Role) -> None:
    """Whatever is wrong; each request is answered."""
    for codes in _some_at_once(role):
        _ask(up, role, _ordinary(role, codes), connections=CONNECTIONS)


def ask_everything_huge(up: Up, role: Role) -> None:
    """Texts of megabytes."""
    for codes in _some_at_once(role):
        _ask(up, role, _huge(role, codes), connections=HUGE_CONNECTIONS)


def _some_at_once(role: Role) -> Iterator[list[int]]:
    """So that no connection grows old: a client that is silent for two minutes is cut."""
    codes = sorted(role.headers)
    yield from (codes[at : at + CODES_AT_ONCE] for at in range(0, len(codes), CODES_AT_ONCE))


def _ask(up: Up, role: Role, abuses: Iterable[Abuse], *, connections: int) -> None:
    address = up.broker if role.name == BROKER.name else up.namesrv
    faults = []
    for what, answer in ask_all(address, abuses, connections=connections):
        if answer is None:
            continue
        remark = answer.remark or ""
        if len(remark) > REMARK_CHARACTERS_MAX:
            faults.append(f"{what}: the remark has {len(remark)} characters")
        if answer.code != ResponseCode.SUCCESS and not remark:
            faults.append(f"{what}: code {answer.code} without a remark")
    assert not faults, faults[:20]


def _ordinary(role: Role, codes: list[int]) -> Iterator[Abuse]:
    for number, code in enumerate(codes):
        for abuse in abuses_of(role, code, number * OPAQUES_PER_CODE, all_of_them=ALL_OF_THEM):
            # Where a producer has not decided about its transaction RocketMQ answers nothing.
            is_silent = code == RequestCode.END_TRANSACTION and "commitOrRollback" in abuse.what
            if not is_silent:
                yield abuse


def _huge(role: Role, codes: list[int]) -> Iterator[Abuse]:
    for number, code in enumerate(codes):
        yield from huge_abuses_of(
            role,
            code,
            number * OPAQUES_PER_CODE,
            all_of_them=ALL_OF_THEM,
            is_one_too_long=ALL_OF_THEM or number == 0,
        )
