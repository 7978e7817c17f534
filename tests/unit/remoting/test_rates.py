"""Token buckets, and how many of them there are."""

from __future__ import annotations

from kerolox.addresses import network_of
from kerolox.remoting.limits.rates import Rates


class Hand:
    """A clock to turn by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    clock = Hand()
    rates = Rates(10, 5, clock=clock)
    assert sum(rates.take("a") for _ in range(100)) == 5
    clock.now = 0.25
    assert sum(rates.take("a") for _ in range(100)) == 2
    clock.now = 100
    assert sum(rates.take("a") for _ in range(100)) == 5, "never more than the burst"


def test_each_name_has_a_bucket_of_its_own() -> None:
    rates = Rates(1, 1, clock=Hand())
    assert [rates.take(name) for name in ("a", "b", "a", "b")] == [True, True, False, False]


def test_what_does_not_fit_takes_nothing() -> None:
    rates = Rates(1, 10, clock=Hand())
    assert not rates.take("a", 11)
    assert rates.take("a", 10)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = Hand()
    rates = Rates(1, 1, clock=clock)
    assert rates.take("a")
    clock.now = -1000
    assert not rates.take("a")


def test_names_without_end_take_bounded_room_and_recent_ones_are_kept() -> None:
    rates = Rates(0.001, 1, names_max=100, clock=Hand())
    assert rates.take("kept")
    for number in range(10_000):
        assert rates.take(f"n{number}")
        assert not rates.take("kept")
        assert len(rates) <= 101


def test_an_address_of_ipv6_counts_with_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("no:address") == "no:address"
