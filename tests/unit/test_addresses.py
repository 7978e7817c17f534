"""``host:port``, and the hosts of ``listenHost``."""

from __future__ import annotations

import pytest

from kerolox.addresses import (
    ALL_HOSTS,
    is_host,
    is_loopback,
    join_address,
    local_address,
    own_host,
    split_address,
    split_hosts,
)


@pytest.mark.parametrize(
    ("text", "parts", "again"),
    [
        ("10.0.0.1:10911", ("10.0.0.1", 10911), "10.0.0.1:10911"),
        (" broker-a.example:1 ", ("broker-a.example", 1), "broker-a.example:1"),
        ("[::1]:10911", ("::1", 10911), "[::1]:10911"),
        ("::1:10911", ("::1", 10911), "[::1]:10911"),  # as Java writes it
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535), "[fe80::1%eth0]:65535"),
    ],
)
def test_an_address_is_taken_apart_and_put_together(
    text: str, parts: tuple[str, int], again: str
) -> None:
    assert split_address(text) == parts
    assert join_address(*parts) == again


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "a b:1",
        "a;b:1",
        "h:0",
        "h:65536",
        "h:١",
        "h:-1",
        "[]:1",
        "\0:1",
        "\x1b:1",
        "\ud800:1",
        ".:1",
        "a..b:1",
        f"{'x' * 64}:1",
        f"{'x.' * 128}:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write host:port"):
        split_address(text)


@pytest.mark.parametrize("text", ["http://a:1", "http://http://a:1", "tcp://a:1", "https://a:1"])
def test_a_scheme_before_an_address_is_named(text: str) -> None:
    scheme = text.split("://", maxsplit=1)[0]
    with pytest.raises(
        ValueError, match=rf"begins with {scheme}://.* write host:port, as in 'a:1'"
    ):
        split_address(text)


def test_hosts_to_listen_on_are_joined_by_semicolons() -> None:
    assert split_hosts("127.0.0.1; ::1;127.0.0.1") == ("127.0.0.1", "::1")
    assert split_hosts("") == split_hosts("*") == split_hosts("127.0.0.1;*") == (ALL_HOSTS,)
    with pytest.raises(ValueError, match="neither an IP address"):
        split_hosts("a b")


def test_forms_of_one_address_to_listen_on_are_one() -> None:
    assert split_hosts("127.1;[::1];::ffff:127.0.0.1") == ("127.0.0.1", "::1")
    assert split_hosts("0") == ("0.0.0.0",)
    for host in (".", "x" * 64, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match="neither an IP address"):
            split_hosts(host)


@pytest.mark.parametrize(
    ("listened", "own"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("127.0.0.1;10.0.0.5", "10.0.0.5"),
        ("*", local_address()),
        ("0", local_address()),
        ("0.0.0.0;::", local_address()),
        ("broker-a", "broker-a"),
    ],
)
def test_a_server_is_reached_where_it_listens(listened: str, own: str) -> None:
    assert own_host(listened) == own


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.example"]))


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "::1", "a", "broker-a.example", "broker-a.example.", ".", "a..b", ".a"),
        *("x" * 63, "x" * 64, f"{'x' * 64}.b", f"a.{'x' * 64}", f"a.{'x' * 63}", "_dmarc.a", "%"),
    ],
)
def test_an_ascii_host_is_one_if_the_codec_of_names_takes_it(text: str) -> None:
    try:
        text.encode("idna")
    except UnicodeError:
        taken = False
    else:
        taken = True
    assert is_host(text) is taken
