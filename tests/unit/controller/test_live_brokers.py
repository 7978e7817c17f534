from __future__ import annotations

import pytest

from kerolox.controller import live_brokers
from kerolox.controller.live_brokers import TIMEOUT_MS_MAX, BrokerIdentity, LiveBrokers
from kerolox.protocol.controller import HEARTBEAT_TIMEOUT_MS, BrokerHeartbeatHeader


def heartbeat(broker_id: int, **members: int) -> BrokerHeartbeatHeader:
    return BrokerHeartbeatHeader(
        cluster_name="c",
        broker_name="b",
        broker_addr=f"host:{broker_id}",
        broker_id=broker_id,
        **members,  # type: ignore[arg-type]
    )


def test_brokers_are_ordered_by_epoch_end_and_priority() -> None:
    live = LiveBrokers()
    for broker_id, epoch, max_offset, priority in (
        (1, 1, 900, 1),
        (2, 2, 100, 1),
        (3, 2, 200, 5),
        (4, 2, 200, 4),
        (5, 2, 200, 4),
    ):
        live.renew(
            heartbeat(broker_id, epoch=epoch, max_offset=max_offset, election_priority=priority),
            7,
            0,
        )
    live.renew(heartbeat(6), 7, 0)
    assert live.best_first("c", "b", 0) == [4, 5, 3, 2, 1, 6]
    assert live.best_first("other", "b", 0) == []


def test_a_broker_is_alive_for_as_long_as_it_said() -> None:
    live = LiveBrokers()
    live.renew(heartbeat(1, heartbeat_timeout_mills=100), 7, 0)
    live.renew(heartbeat(2), 7, 0)
    live.renew(heartbeat(3, heartbeat_timeout_mills=1 << 60), 7, 0)
    live.renew(heartbeat(4, heartbeat_timeout_mills=-5), 7, 0)
    assert live.best_first("c", "b", 100) == [1, 2, 3]
    assert live.best_first("c", "b", 101) == [2, 3]
    assert live.best_first("c", "b", HEARTBEAT_TIMEOUT_MS + 1) == [3]
    gone = live.expire(TIMEOUT_MS_MAX)
    assert gone == [BrokerIdentity("c", "b", each) for each in (1, 2, 4)]
    assert live.expire(TIMEOUT_MS_MAX + 1) == [BrokerIdentity("c", "b", 3)]


def test_the_end_of_a_log_does_not_go_back_within_an_epoch() -> None:
    live = LiveBrokers()
    identity = BrokerIdentity("c", "b", 1)
    ends = []
    for epoch, max_offset in ((1, 10), (1, 20), (1, 15), (2, 5)):
        live.renew(heartbeat(1, epoch=epoch, max_offset=max_offset), 7, 0)
        ends.append((live.table[identity].epoch, live.table[identity].max_offset))
    assert ends == [(1, 10), (1, 20), (1, 20), (2, 5)]


def test_brokers_go_with_the_connection_of_their_last_heartbeat() -> None:
    live = LiveBrokers()
    live.renew(heartbeat(1), 7, 0)
    live.renew(heartbeat(1), 8, 0)
    assert live.connection_closed(7) == []
    assert live.connection_closed(8) == [BrokerIdentity("c", "b", 1)]


def test_heartbeats_of_too_many_brokers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_brokers, "LIVE_BROKERS_MAX", 2)
    live = LiveBrokers()
    assert [live.renew(heartbeat(each), 7, 0) for each in (1, 2, 3, 1)] == [
        True,
        True,
        False,
        True,
    ]


def test_what_comes_late_on_an_older_connection_does_not_end_a_broker() -> None:
    """A network that was cut delivers what was sent before, and then that the connection closed."""
    live = LiveBrokers()
    live.renew(heartbeat(1), 7, 0)
    live.renew(heartbeat(1), 8, 10)
    live.renew(heartbeat(1), 7, 20)
    assert live.connection_closed(7) == []
    assert live.is_alive(BrokerIdentity("c", "b", 1), 20)
    assert live.connection_closed(8) == [BrokerIdentity("c", "b", 1)]
