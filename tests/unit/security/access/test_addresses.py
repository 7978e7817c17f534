"""White lists. The table is what RemoteAddressStrategyFactory of RocketMQ 4.9 does, by its own
tests and by running it; where ours differs, a test of its own says so."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.security.access.addresses import ADDRESSES_CHARACTERS_MAX, parse_addresses

V6 = "1050::0005:0600:300c"
"""The first parts of RocketMQ's own examples: 1050:0:0:5:600:300c with one part to come, or two."""


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", (), ("127.0.0.1", "::1", "")),
        (" \t ", (), ("127.0.0.1", "")),
        ("*", ("127.0.0.1", "::1", ""), ()),
        ("*.*.*.*", ("127.0.0.1", "::1", ""), ()),
        ("*:*:*:*:*:*:*:*", ("127.0.0.1", "::1"), ()),
        ("127.0.0.1", ("127.0.0.1",), ("127.0.0.2", "::1", "", "127.0.0.1.")),
        ("::1", ("::1", "0000:0000:0000:0000:0000:0000:0000:0001"), ("::2", "127.0.0.1", "")),
        ("127.0.0.1,127.0.0.2", ("127.0.0.1", "127.0.0.2"), ("127.0.0.3", "127.0.0.0")),
        ("127.0.0.{1,2,3}", ("127.0.0.1", "127.0.0.3"), ("127.0.0.4", "127.0.0.0")),
        ("127.0.0.{}", (), ("127.0.0.1", "127.0.0.0")),
        (f"{V6}:1,{V6}:2", ("1050::5:600:300c:2",), ("1050::5:600:300c:3",)),
        (f"{V6}:{{1,a}}", ("1050:0:0:0:5:600:300C:A",), ("1050::5:600:300c:2",)),
        ("127.0.0.1-200", ("127.0.0.1", "127.0.0.200"), ("127.0.0.0", "127.0.0.201", "127.0.1.1")),
        ("127.0.0.*", ("127.0.0.0", "127.0.0.255"), ("127.0.1.0", "::1", "")),
        ("127.1-150.*.*", ("127.1.0.255", "127.150.9.9"), ("127.0.0.1", "127.151.0.0")),
        ("127.*.*.*", ("127.0.0.1", "127.255.255.255"), ("128.0.0.1",)),
        ("192.168.0. *", ("192.168.0.9",), ("192.168.1.9",)),
        (f"{V6}:1-200", (f"{V6}:1", f"{V6}:200"), (f"{V6}:0", f"{V6}:201", f"{V6}:ffff")),
        (f"{V6}:*", (f"{V6}:0", f"{V6}:ffff"), ("1050::5:600:300d:0", "10.0.0.1")),
        (f"{V6}:1-200:*", ("1050::5:600:300c:1:9", "1050::5:600:300c:200:0"),
         ("1050::5:600:300c:201:9", "1050::5:600:300c:0:9")),
        ("1050:0005:0600:300c:3261:*", ("1050:5:600:300c:3261:1:2:3",), ("1050:5:600:300c::",)),
        ("fe80::*", ("fe80::1:2:3:4", "fe80::"), ("fe80:1::",)),
    ],
)  # fmt: skip
def test_a_text_names_these_addresses_and_not_those(
    text: str, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    addresses = parse_addresses(text)
    assert [host for host in inside if host not in addresses] == []
    assert [host for host in outside if host in addresses] == []


@pytest.mark.parametrize(
    "text",
    [
        *("256.0.0.1", "::1ggg", "localhost", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", "abc"),
        *(
            "127.0.0.1,2,3}",
            "::1,2,3}",
            "192.168.{1}",
            "{192.168.1}",
            "{192.168.1.1}",
            "1.2.3.4{5}",
        ),
        *("1.{2,3}.4.{5}", "1.2.3.{4-5}", "1.2.3.{256}"),
        *("127.0.0.2-1", "127.0.0.-1-200", "127.0.0.0-256", "10.*", "10.*.*", "**", "1.2.3-4-5.6"),
        *("1.2.3.4, 1.2.3.5", "1.2.3.*,1.2.4.*", "1.2.3.4,*"),
        *("1:*:3", "1:2-3:4:5", "fe80::1-2:3:*", "fe80:1ffff:*", "fe80:2-1:*", "fe80:-1:*"),
    ],
)
def test_a_text_that_rocketmq_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"'|braces"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "text",
    [
        "*.1.2.3",
        "1-2.3.4.5",
        "1.2.3.4*",
        "1.1*.*.*",
        "1:2:3:4:5:6:7:8:*",
        "1::2::*",
        "1-2:*",
        "x:*",
    ],
)
def test_a_text_that_rocketmq_could_never_compare_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        # There all after the first range is ignored.
        ("192.168.*.1", ("192.168.7.1",), ("192.168.7.2",)),
        ("10.1-2.3.4-5", ("10.2.3.5",), ("10.2.9.9", "10.2.3.6")),
        # There a range that ends in 0 is none, and nothing can be compared.
        ("10.1.2.0-0", ("10.1.2.0",), ("10.1.2.1",)),
        # There the range is the third part.
        ("fe80::1-20", ("fe80::1", "fe80::20"), ("fe80::21", "fe80:0:1::")),
        ("::*", ("::1",), ("1::",)),
    ],
)
def test_a_range_means_what_it_says(
    text: str, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    addresses = parse_addresses(text)
    assert [host for host in inside if host not in addresses] == []
    assert [host for host in outside if host in addresses] == []


@pytest.mark.parametrize("text", ["10.1.2.3", "10.1.2.*", "10.1.2.{3,4}", "::ffff:10.1.2.3"])
def test_a_peer_of_ipv4_on_a_socket_of_ipv6_has_its_ipv4_address(text: str) -> None:
    addresses = parse_addresses(text)
    assert "::ffff:10.1.2.3" in addresses
    assert "::ffff:10.1.3.3" not in addresses


def test_a_peer_in_brackets_or_with_a_zone_is_found() -> None:
    assert "[::1]" in parse_addresses("::1")
    assert "fe80::1%eth0" in parse_addresses("fe80::*")
    assert "fe80::1%eth0" not in parse_addresses("fe80::1")


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_addresses(",".join(["10.1.2.3"] * ADDRESSES_CHARACTERS_MAX))


def test_an_error_is_one_short_line() -> None:
    with pytest.raises(ValueError, match=r"\\n") as caught:
        parse_addresses("x\n" * 1000)
    assert len(str(caught.value)) < 300


def test_lists_of_the_same_addresses_are_equal() -> None:
    assert parse_addresses("10.1.2.{3,4}") == parse_addresses("10.1.2.4,10.1.2.3")
    assert parse_addresses("10.1.2.*") == parse_addresses("10.1.2.0-255")
    assert parse_addresses("10.1.2.3") != parse_addresses("10.1.2.*")


PART = st.integers(0, 255)
BOUNDS = st.tuples(PART, PART).map(sorted).map(tuple)


def written(bounds: tuple[int, int], base: str) -> str:
    low, high = bounds
    return f"{low:{base}}" if low == high else f"{low:{base}}-{high:{base}}"


@given(
    st.integers(0, 255), st.tuples(BOUNDS, BOUNDS, BOUNDS), st.lists(PART, min_size=4, max_size=4)
)
def test_ranges_of_ipv4_are_those_of_the_numbers(
    first: int, bounds: tuple[tuple[int, int], ...], host: list[int]
) -> None:
    text = ".".join([str(first), *(written(each, "d") for each in bounds)])
    is_inside = host[0] == first and all(
        low <= part <= high for (low, high), part in zip(bounds, host[1:], strict=True)
    )
    assert (".".join(map(str, host)) in parse_addresses(text)) == is_inside


WORD = st.integers(0, 0xFFFF)


@given(
    st.lists(WORD, min_size=1, max_size=6),
    st.tuples(WORD, WORD).map(sorted).map(tuple),
    st.booleans(),
    st.lists(WORD, min_size=8, max_size=8),
    st.integers(0, 8),
)
def test_ranges_of_ipv6_are_prefixes_and_a_part(
    head: list[int], bounds: tuple[int, int], has_tail: bool, host: list[int], same: int
) -> None:
    host = [*(head[:same]), *host[min(same, len(head)) :]]
    low, high = bounds
    pattern = ":".join([*(f"{each:x}" for each in head), f"{low:x}-{high:x}"])
    addresses = parse_addresses(pattern + ":*" if has_tail else pattern)
    is_inside = host[: len(head)] == head and low <= host[len(head)] <= high
    text = str(ipaddress.IPv6Address(b"".join(each.to_bytes(2) for each in host)))
    assert (text in addresses) == is_inside


@given(st.text("0123456789abcdef.:*-{},% /\n", max_size=40), st.ip_addresses())
def test_any_text_is_a_white_list_or_refused_with_a_reason(
    text: str, host: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    try:
        complaint = f"{str(host) in parse_addresses(text)}"
    except ValueError as error:
        complaint = str(error)
    assert complaint.isprintable()
