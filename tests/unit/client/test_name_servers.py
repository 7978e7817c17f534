"""Whose turn it is among name servers, and what a route's answer says."""

from __future__ import annotations

from pathlib import Path

import pytest

import kerolox
from kerolox.client.core.name_servers import NameServers, route_of, route_request, time_shares
from kerolox.errors import BrokerError, RemoteProtocolError
from kerolox.protocol.codes import ResponseCode


def test_all_are_asked_once_round_from_the_first() -> None:
    assert NameServers(["a:1", "b:2", "c:3"], first=4).in_order() == ("b:2", "c:3", "a:1")
    assert NameServers([]).in_order() == ()


def test_the_one_that_answered_is_asked_first_next_time() -> None:
    servers = NameServers(["a:1", "b:2", "c:3"])
    servers.prefer("c:3")
    assert servers.in_order() == ("c:3", "a:1", "b:2")


def test_silent_ones_leave_time_for_the_others() -> None:
    assert time_shares(3.0, 1) == [3.0]
    assert time_shares(3.0, 3) == [1.0, 1.0, 3.0]


def test_addresses_that_are_replaced_leave_nobody_out() -> None:
    servers = NameServers(["a:1", "b:2", "c:3"], first=2)
    servers.addresses = ("d:4", "e:5")
    servers.prefer("c:3")
    assert set(servers.in_order()) == {"d:4", "e:5"}


def test_a_route_answer_is_a_route_or_unknown_or_an_error() -> None:
    request = route_request("T")
    body = b'{"brokerDatas":[],"queueDatas":[]}'
    assert route_of(request.response(body=body), "a:1") is not None
    assert route_of(request.response(ResponseCode.TOPIC_NOT_EXIST, "none"), "a:1") is None
    with pytest.raises(BrokerError, match="busy"):
        route_of(request.response(ResponseCode.SYSTEM_BUSY, "busy"), "a:1")
    with pytest.raises(RemoteProtocolError):
        route_of(request.response(body=b"[]"), "a:1")


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("RequestCode.GET_ROUTEINFO_BY_TOPIC", "protocol/routing/routes.py"),
        ("RequestCode.UPDATE_AND_CREATE_TOPIC", "client/aio/network/access.py"),
    ],
)
def test_one_module_asks_for_routes_and_one_puts_topics(code: str, place: str) -> None:
    source = Path(kerolox.__file__).parent
    files = [
        path
        for room in ("protocol", "remoting", "client", "admin", "cli", "spark", "demo")
        for path in (source / room).rglob("*.py")
    ]
    asking = [str(path.relative_to(source)) for path in files if code in path.read_text()]
    assert asking == [place]


def test_only_one_function_takes_an_address_apart() -> None:
    source = Path(kerolox.__file__).parent
    parsers = [
        path.name for path in source.rglob("*.py") if "is no address; write" in path.read_text()
    ]
    assert parsers == ["addresses.py"]
