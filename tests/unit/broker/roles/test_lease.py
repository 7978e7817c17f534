from __future__ import annotations

from kerolox.broker.roles.lease import MasterLease


def test_a_lease_is_two_thirds_of_what_the_controller_waits_from_when_it_was_asked() -> None:
    lease = MasterLease(9_000)
    assert not lease.holds(0)
    lease.renew(1_000)
    assert lease.holds(6_999)
    assert not lease.holds(7_000)


def test_a_late_answer_to_an_earlier_heartbeat_shortens_no_lease() -> None:
    lease = MasterLease(9_000)
    lease.renew(2_000)
    lease.renew(1_000)
    assert lease.holds(7_999)


def test_a_lease_that_was_dropped_is_held_again_by_a_new_heartbeat_only() -> None:
    lease = MasterLease(9_000)
    lease.renew(1_000)
    lease.drop()
    assert not lease.holds(1_001)
    lease.renew(2_000)
    assert lease.holds(2_001)
