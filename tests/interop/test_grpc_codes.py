"""What our port answers to calls, most of them wrong, one by one; and with
``KEROLOX_SOFTWARE=all`` the same of RocketMQ's proxy 5.3.3.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.interop.grpc5.calls import CASES, DIFFERENCES, Caller, prepared_for_calls
from tests.interop.grpc5.driver import Drivers
from tests.interop.grpc5.servers import Served, admin_of, java_proxy, our_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("grpc-codes")]

AT_ONCE = 8
SERVERS = {"ours": our_server, "java": java_proxy}


def answers(served: Served) -> dict[str, tuple[str, str]]:
    """Code and text of each case's answer."""
    with admin_of(served) as admin:
        prepared_for_calls(admin)
    caller = Caller(served.server.endpoint)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(CASES, pool.map(caller.answer, CASES.values()), strict=True))
    finally:
        caller.close()


@pytest.fixture(
    scope="module",
    params=["ours", pytest.param("java", marks=[pytest.mark.java, pytest.mark.software])],
)
def answered(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    grpc_drivers: Drivers,
) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """Whose answers, and the answers."""
    folder = tmp_path_factory.mktemp("codes")
    with SERVERS[request.param](folder, grpc_drivers.authority) as served:
        yield request.param, answers(served)


def test_each_call_is_answered_by_its_code(
    answered: tuple[str, dict[str, tuple[str, str]]],
) -> None:
    kind, found = answered
    wanted = {name: case.code for name, case in CASES.items()}
    if kind == "java":
        wanted |= {name: code for name, (code, _why) in DIFFERENCES.items()}
    assert {name: code for name, (code, _text) in found.items()} == wanted
    if kind == "ours":
        refused = [text for code, text in found.values() if code != "OK"]
        assert [text for text in refused if len(text.split()) < 3] == []


def test_a_difference_is_one() -> None:
    for name, (code, why) in DIFFERENCES.items():
        assert code != CASES[name].code, name
        assert why
