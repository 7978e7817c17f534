"""The route table's rules; the clock is a number."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kerolox.namesrv import memory_limiter, route_table, topic_lists
from kerolox.namesrv.claims import (
    CONNECTIONS_MAX,
    TAKEOVER_MS,
    TAKEOVER_MS_MIN,
    Claim,
    ContradictionError,
)
from kerolox.namesrv.memory_limiter import TablesFullError
from kerolox.namesrv.route_table import BROKER_EXPIRY_MS, RegisterResult, RouteTable
from kerolox.protocol.bodies import DataVersion, TopicConfig
from kerolox.protocol.codes import RequestCode


def register(
    table: RouteTable,
    *topics: str,
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    cluster: str = "C",
    counter: int = 1,
    connection: int = 1,
    now_ms: int = 0,
    queues: int = 4,
    filter_servers: list[str] | None = None,
    flag: int = 0,
    host: str = "10.0.0.1",
    epoch: int | None = None,
    successor: str = "",
    timeout_ms: int | None = None,
) -> RegisterResult:
    claim = Claim(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=address.replace("10911", "10912"),
        connection=connection,
        host=host,
        epoch=epoch,
        successor=successor,
        timeout_ms=timeout_ms,
    )
    live = table.start_registration(claim, now_ms)
    version = DataVersion(counter=counter, timestamp=1)
    if table.wants_topics(live, version):
        given = [
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                topic_sys_flag=flag,
            )
            for topic in topics
        ]
        table.put_topics(live, given)
    return table.finish_registration(live, version, filter_servers)


def names(pieces: Iterable[list[str]]) -> list[str]:
    return [name for piece in pieces for name in piece]


def unregister(
    table: RouteTable,
    address: str = "10.0.0.1:10911",
    name: str = "broker-a",
    broker_id: int = 0,
    connection: int = 1,
    now_ms: int = 0,
) -> None:
    table.unregister(
        address=address,
        broker_name=name,
        broker_id=broker_id,
        connection=connection,
        now_ms=now_ms,
    )


SLAVE = {"broker_id": 1, "address": "10.0.0.2:10911", "connection": 2}


def test_a_route_has_the_queues_and_the_brokers_of_its_topic() -> None:
    table = RouteTable()
    register(table, "T", queues=4)
    register(table, "T", "U", name="broker-b", address="10.0.0.3:10911", queues=2)
    route = table.route("T")
    assert route is not None
    assert [(q.broker_name, q.read_queue_nums) for q in route.queues] == [
        ("broker-a", 4),
        ("broker-b", 2),
    ]
    assert [(b.broker_name, b.addresses) for b in route.brokers] == [
        ("broker-a", {0: "10.0.0.1:10911"}),
        ("broker-b", {0: "10.0.0.3:10911"}),
    ]
    assert table.route("V") is None


def test_a_topic_that_a_later_registration_leaves_out_stays() -> None:
    table = RouteTable()
    register(table, "T", "U", counter=1)
    register(table, "U", counter=2)
    assert table.route("T") is not None


def test_topics_count_only_when_the_data_version_changed() -> None:
    table = RouteTable()
    register(table, "T", queues=4, counter=1)
    register(table, "T", queues=8, counter=1)
    assert table.topics["T"]["broker-a"].read_queue_nums == 4
    register(table, "T", queues=8, counter=2)
    assert table.topics["T"]["broker-a"].read_queue_nums == 8


def test_a_version_with_the_same_counter_and_another_time_is_a_change() -> None:
    table = RouteTable()
    register(table, "T", counter=1)
    assert not table.is_changed("10.0.0.1:10911", DataVersion(counter=1, timestamp=1))
    assert table.is_changed("10.0.0.1:10911", DataVersion(counter=1, timestamp=2))
    assert table.is_changed("10.9.9.9:1", DataVersion(counter=1, timestamp=1))


def test_topics_of_a_slave_do_not_count() -> None:
    table = RouteTable()
    register(table, "T", **SLAVE)
    assert table.topics == {}
    assert table.brokers["broker-a"].addresses == {1: "10.0.0.2:10911"}


def test_a_slave_is_told_of_its_master_while_that_lives() -> None:
    table = RouteTable()
    assert register(table, **SLAVE) == RegisterResult(None, None)
    assert register(table, "T") == RegisterResult(None, None)
    assert register(table, **SLAVE) == RegisterResult("10.0.0.1:10912", "10.0.0.1:10911")
    table.connection_closed(1)
    assert register(table, **SLAVE) == RegisterResult(None, None)


def test_a_slave_that_became_master_leaves_its_old_id() -> None:
    table = RouteTable()
    register(table, "T")
    register(table, **SLAVE)
    # Its old master is a slave now.
    register(table, "T", broker_id=2)
    register(table, "T", broker_id=0, address="10.0.0.2:10911", connection=2)
    assert table.brokers["broker-a"].addresses == {2: "10.0.0.1:10911", 0: "10.0.0.2:10911"}


def test_a_broker_that_comes_back_registers_its_topics_whatever_their_version() -> None:
    table = RouteTable()
    register(table, "T", counter=1)
    register(table, **SLAVE)
    unregister(table)
    assert table.route("T") is not None
    table.delete_topic("T")
    register(table, "T", counter=1)
    assert table.route("T") is not None


def test_an_unregistration_of_the_last_address_takes_name_cluster_and_topics_out() -> None:
    table = RouteTable()
    register(table, "T", "U")
    register(table, "U", name="broker-b", address="10.0.0.3:10911", connection=3)
    unregister(table)
    assert table.clusters == {"C": {"broker-b"}}
    assert sorted(table.topics) == ["U"]
    unregister(table, "10.0.0.3:10911", "broker-b", connection=3)
    assert (table.clusters, table.topics, table.brokers, table.live) == ({}, {}, {}, {})


def test_an_unknown_broker_may_unregister() -> None:
    table = RouteTable()
    register(table, "T")
    unregister(table, "10.9.9.9:1", "other")
    assert table.route("T") is not None


def test_a_closed_connection_takes_out_the_broker_that_registered_on_it() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    assert table.connection_closed(8) == []
    assert table.route("T") is not None
    assert table.connection_closed(7) == ["10.0.0.1:10911"]
    assert table.route("T") is None


def test_an_old_connection_that_closes_late_does_no_harm() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    register(table, "T", connection=8)
    table.connection_closed(7)
    assert table.route("T") is not None


def test_a_connection_without_a_broker_takes_out_none_whatever_its_address() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    assert table.connection_closed(9) == []
    assert table.route("T") is not None


def test_a_master_with_a_surviving_slave_keeps_its_topics() -> None:
    table = RouteTable()
    register(table, "T")
    register(table, **SLAVE)
    table.connection_closed(1)
    route = table.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {1: "10.0.0.2:10911"}


def test_a_broker_expires_after_two_minutes_of_silence_and_not_before() -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000, connection=7)
    assert table.expire(1_000 + BROKER_EXPIRY_MS) == []
    assert table.expire(1_001 + BROKER_EXPIRY_MS) == [("10.0.0.1:10911", 7)]
    assert table.route("T") is None


def test_a_broker_that_asks_for_its_data_version_does_not_expire() -> None:
    table = RouteTable()
    register(table, "T", now_ms=0)
    assert table.touch("10.0.0.1:10911", 1, BROKER_EXPIRY_MS)
    assert not table.touch("10.9.9.9:1", 1, BROKER_EXPIRY_MS)
    assert table.expire(BROKER_EXPIRY_MS + 1) == []


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    register(table, "T", cluster="C")
    register(table, "T", cluster="D", name="broker-d", address="10.0.0.4:10911")
    table.delete_topic("T", "D")
    assert list(table.topics["T"]) == ["broker-a"]
    table.delete_topic("T", "nowhere")
    table.delete_topic("U", "C")
    table.delete_topic("T", "C")
    assert table.topics == {}
    register(table, "T", counter=2)
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics == {}


def test_a_broker_that_has_a_deleted_topic_still_brings_it_back() -> None:
    """The deletion did not reach it: its data version is the same."""
    table = RouteTable()
    register(table, "T", counter=1)
    register(table, "T", name="broker-b", address="10.0.0.3:10911", connection=3, counter=7)
    table.delete_topic("T")
    register(table, name="broker-b", address="10.0.0.3:10911", connection=3, counter=8)
    assert table.route("T") is None
    assert table.is_changed("10.0.0.1:10911", DataVersion(counter=1, timestamp=1))
    register(table, "T", counter=1)
    assert list(table.topics["T"]) == ["broker-a"]


def test_wiping_takes_the_write_bit_off_and_adding_makes_it_six() -> None:
    table = RouteTable()
    register(table, "T", "U")
    assert sum(table.wipe_write_permission("broker-a")) == 2
    assert {t: q["broker-a"].perm for t, q in table.topics.items()} == {"T": 4, "U": 4}
    assert sum(table.add_write_permission("broker-a")) == 2
    assert table.topics["T"]["broker-a"].perm == 6
    assert sum(table.wipe_write_permission("other")) == 0


def test_wiping_lasts_until_the_next_registration_that_counts() -> None:
    table = RouteTable()
    register(table, "T", counter=1)
    list(table.wipe_write_permission("broker-a"))
    register(table, "T", counter=1)
    assert table.topics["T"]["broker-a"].perm == 4
    register(table, "T", counter=2)
    assert table.topics["T"]["broker-a"].perm == 6


def test_topics_of_a_cluster() -> None:
    table = RouteTable()
    register(table, "T", "U", cluster="C")
    register(table, "U", "V", cluster="D", name="broker-d", address="10.0.0.4:10911")
    assert names(topic_lists.topics_of_cluster(table, "C")) == ["T", "U"]
    assert names(topic_lists.topics_of_cluster(table, "D")) == ["U", "V"]
    assert names(topic_lists.topics_of_cluster(table, "nowhere")) == []


def test_system_topics_are_the_names_of_clusters_and_brokers() -> None:
    table = RouteTable()
    assert topic_lists.system_topics(table) == ([], None)
    register(table, "T")
    register(table, name="broker-b", address="10.0.0.3:10911")
    assert topic_lists.system_topics(table) == (["C", "broker-a", "broker-b"], "10.0.0.1:10911")


def test_unit_topics_are_told_by_the_system_flag() -> None:
    table = RouteTable()
    for flag, topic in enumerate(["none", "unit", "subscribed", "both"]):
        register(table, topic, flag=flag, counter=flag + 1)
    lists = {code: names(topic_lists.unit_topics(table, code)) for code in topic_lists.UNIT_FLAGS}
    assert lists == {
        RequestCode.GET_UNIT_TOPIC_LIST: ["unit", "both"],
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: ["subscribed", "both"],
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ["subscribed"],
    }


def test_filter_servers_are_kept_replaced_and_removed() -> None:
    table = RouteTable()
    register(table, "T", filter_servers=["f:1"])
    route = table.route("T")
    assert route is not None
    assert route.filter_servers == {"10.0.0.1:10911": ["f:1"]}
    register(table, "T", filter_servers=None)
    assert table.filter_servers == {"10.0.0.1:10911": ["f:1"]}
    register(table, "T", filter_servers=[])
    assert table.filter_servers == {}


# -- who may claim what ------------------------------------------------------------------------
OTHER = {"address": "10.0.0.9:10911", "connection": 9, "host": "10.0.0.9"}


def test_a_broker_that_says_how_long_it_may_be_silent_loses_its_place_then() -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000, timeout_ms=2_000)
    assert table.touch("10.0.0.1:10911", 1, 2_500)
    with pytest.raises(ContradictionError):
        register(table, "T", **OTHER, now_ms=4_500)
    register(table, "T", **OTHER, now_ms=4_501)
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.9:10911"}
    assert not table.touch("10.0.0.1:10911", 1, 4_502)


def test_an_elected_master_gets_the_place_of_one_whose_lease_is_over() -> None:
    """A master sends no heartbeat from two thirds of its time on; the election is at its end."""
    elected = {**OTHER, "epoch": 3, "timeout_ms": 3_000}
    table = RouteTable()
    register(table, "T", now_ms=1_000, timeout_ms=3_000, epoch=2)
    assert table.touch("10.0.0.1:10911", 1, 3_000)
    with pytest.raises(ContradictionError):
        register(table, "T", **elected, now_ms=4_000)
    for claim in ({**elected, "epoch": 2}, {**elected, "epoch": None}, {**elected, "broker_id": 1}):
        register(table, "T", address="10.0.0.8:10911", connection=8, broker_id=1, now_ms=4_000)
        with pytest.raises(ContradictionError):
            register(table, "T", **claim, now_ms=4_001)
    with pytest.raises(ContradictionError):
        register(table, "T", **{**elected, "timeout_ms": None}, now_ms=4_001)
    register(table, "T", **elected, now_ms=4_001)
    assert table.brokers["broker-a"].addresses[0] == "10.0.0.9:10911"


def test_no_epoch_takes_the_place_of_a_master_without_a_lease() -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000, epoch=2)
    with pytest.raises(ContradictionError):
        register(table, "T", **OTHER, now_ms=60_000, epoch=3, timeout_ms=3_000)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1 << 62])
def test_no_broker_loses_its_place_at_once_or_never(timeout_ms: int) -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000, timeout_ms=timeout_ms)
    with pytest.raises(ContradictionError):
        register(table, "T", **OTHER, now_ms=1_000 + TAKEOVER_MS_MIN)
    register(table, "T", **OTHER, now_ms=1_001 + TAKEOVER_MS)


def test_a_live_brokers_place_is_not_given_to_another_address() -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000)
    with pytest.raises(ContradictionError) as caught:
        register(table, "Evil", **OTHER, now_ms=1_000 + TAKEOVER_MS)
    told = str(caught.value)
    assert "10.0.0.9:10911" in told
    assert "10.0.0.1:10911" in told
    assert "another brokerName" in told
    assert caught.value.holder == "10.0.0.1:10911"
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.1:10911"}
    assert list(table.live) == ["10.0.0.1:10911"]
    assert list(table.topics) == ["T"]


def test_the_live_broker_is_told_once_who_claimed_its_place() -> None:
    table = RouteTable()
    register(table, "T")
    with pytest.raises(ContradictionError):
        register(table, **OTHER)
    told = register(table, "T").challenger
    assert told is not None
    assert "10.0.0.9:10911, which comes from 10.0.0.9" in told
    assert register(table, "T").challenger is None


def test_a_broker_whose_old_connection_closed_takes_its_place_anywhere_at_once() -> None:
    table = RouteTable()
    register(table, "T")
    table.connection_closed(1)
    register(table, "T", **OTHER)
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.9:10911"}


def test_a_broker_that_is_silent_too_long_loses_its_place_to_who_claims_it() -> None:
    table = RouteTable()
    register(table, "T", now_ms=1_000)
    register(table, "U", **OTHER, now_ms=1_001 + TAKEOVER_MS)
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.9:10911"}
    assert list(table.live) == ["10.0.0.9:10911"]
    assert table.connection_closed(1) == []
    assert table.route("T") is not None
    assert table.route("U") is not None


def test_a_broker_may_change_its_address_on_its_own_connection() -> None:
    table = RouteTable()
    register(table, "T")
    register(table, "T", address="10.0.0.1:20911")
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.1:20911"}
    assert list(table.live) == ["10.0.0.1:20911"]


def test_a_live_master_gives_its_place_to_the_slave_that_it_names() -> None:
    table = RouteTable()
    register(table, "T", epoch=1)
    register(table, **SLAVE, epoch=1)
    with pytest.raises(ContradictionError):
        register(table, **{**SLAVE, "broker_id": 0}, epoch=2)
    register(table, "T", epoch=1, successor=SLAVE["address"])
    with pytest.raises(ContradictionError):
        register(table, address="10.0.0.3:10911", connection=3, epoch=2)
    register(table, "T", "U", **{**SLAVE, "broker_id": 0}, epoch=2, counter=2)
    assert table.brokers["broker-a"].addresses == {0: SLAVE["address"]}
    register(table, broker_id=1, epoch=2)
    route = table.route("U")
    assert route is not None
    assert route.brokers[0].addresses == {0: SLAVE["address"], 1: "10.0.0.1:10911"}


def test_a_successor_that_is_named_no_more_gets_no_place() -> None:
    table = RouteTable()
    register(table, "T", successor=SLAVE["address"])
    register(table, "T")
    with pytest.raises(ContradictionError):
        register(table, **{**SLAVE, "broker_id": 0}, epoch=2)


def test_a_master_older_than_one_before_it_is_refused_while_the_name_is_known() -> None:
    table = RouteTable()
    register(table, "T", epoch=3)
    register(table, **SLAVE, epoch=3)
    unregister(table)
    old = {"address": "10.0.0.3:10911", "connection": 3}
    with pytest.raises(ContradictionError, match="has epoch 2, and there was a master of epoch 3"):
        register(table, "T", **old, epoch=2)
    assert 0 not in table.brokers["broker-a"].addresses
    # A slave has no place to fight for, and a broker of RocketMQ says no epoch.
    register(table, **{**old, "broker_id": 2}, epoch=2)
    register(table, "T", address="10.0.0.4:10911", connection=4)
    unregister(table, address="10.0.0.4:10911", connection=4)
    register(table, "T", **old, epoch=3)
    unregister(table, address="10.0.0.3:10911", connection=3)
    unregister(table, address=str(SLAVE["address"]), broker_id=1, connection=2)
    # Nobody knows the name any more.
    register(table, "T", **old, epoch=1)


def test_a_live_brokers_address_is_not_given_to_another_name() -> None:
    table = RouteTable()
    register(table, "T")
    with pytest.raises(ContradictionError, match="give each broker an address of its own"):
        register(table, "U", name="broker-b", connection=9)
    # Else the end of that connection would take the live broker out.
    table.connection_closed(9)
    assert table.route("T") is not None
    assert "broker-b" not in table.brokers


def test_the_same_broker_may_come_on_another_connection_from_its_host() -> None:
    table = RouteTable()
    register(table, "T", connection=1)
    register(table, "T", connection=2)
    assert table.live["10.0.0.1:10911"].connection == 2
    assert table.connection_closed(2) == []
    assert table.route("T") is not None
    assert table.connection_closed(1) == ["10.0.0.1:10911"]
    assert table.route("T") is None


def test_the_same_broker_from_another_host_waits_until_the_old_connection_is_silent() -> None:
    table = RouteTable()
    register(table, "T", now_ms=0)
    with pytest.raises(ContradictionError, match=r"comes from 10\.0\.0\.7"):
        register(table, "T", connection=2, host="10.0.0.7", now_ms=TAKEOVER_MS)
    register(table, "T", connection=2, host="10.0.0.7", now_ms=TAKEOVER_MS + 1)
    assert table.live["10.0.0.1:10911"].host == "10.0.0.7"


def test_an_old_connection_that_was_silent_for_long_does_not_keep_a_broker() -> None:
    table = RouteTable()
    register(table, "T", connection=1, now_ms=0)
    register(table, "T", connection=2, now_ms=TAKEOVER_MS + 1)
    assert table.connection_closed(2) == ["10.0.0.1:10911"]


@pytest.mark.parametrize(
    "change",
    [
        {"address": "10.0.0.1:666"},
        {"cluster": "D"},
        {"broker_id": 1},
        {"name": "broker-b"},
    ],
)
def test_a_further_connection_changes_nothing_while_an_earlier_one_is_open(change) -> None:
    table = RouteTable()
    register(table, "T", connection=1)
    register(table, "T", connection=2)
    with pytest.raises(ContradictionError):
        register(table, "T", connection=2, **change)
    with pytest.raises(ContradictionError):
        unregister(table, connection=2)
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.1:10911"}
    assert table.clusters == {"C": {"broker-a"}}
    assert table.connection_closed(2) == []
    register(table, "T", connection=1, **change)


def test_many_connections_do_not_push_the_brokers_own_out() -> None:
    table = RouteTable()
    register(table, "T", connection=1)
    for connection in range(2, CONNECTIONS_MAX + 1):
        register(table, "T", connection=connection)
    with pytest.raises(ContradictionError):
        register(table, "T", connection=99)
    for connection in range(2, CONNECTIONS_MAX + 1):
        assert table.connection_closed(connection) == []
    assert table.live["10.0.0.1:10911"].connection == 1


def test_a_further_connection_of_a_live_broker_is_told(caplog) -> None:
    table = RouteTable()
    register(table, "T", connection=1)
    register(table, "T", connection=1)
    assert "further connection" not in caplog.text
    register(table, "T", connection=2)
    assert "further connection from 10.0.0.1" in caplog.text


def test_masters_and_slaves_behind_one_host_are_no_contradiction() -> None:
    table = RouteTable()
    register(table, "T", address="10.0.0.1:10911", connection=1)
    register(table, "T", address="10.0.0.1:20911", connection=2, broker_id=1)
    register(table, "T", address="10.0.0.1:30911", connection=3, name="broker-b")
    assert len(table.live) == 3


def test_only_the_connection_that_registered_a_broker_unregisters_it() -> None:
    table = RouteTable()
    register(table, "T")
    with pytest.raises(ContradictionError, match=r"10\.0\.0\.1:10911 registered on another"):
        unregister(table, connection=9)
    assert table.route("T") is not None
    unregister(table, connection=1)
    assert table.route("T") is None


def test_a_name_is_in_its_masters_cluster_and_no_other() -> None:
    table = RouteTable()
    register(table, "T", cluster="C")
    register(table, cluster="D", **SLAVE)
    assert table.clusters == {"C": {"broker-a"}}
    register(table, "T", cluster="D")
    assert table.clusters == {"D": {"broker-a"}}
    assert table.brokers["broker-a"].cluster == "D"


# -- bounds ------------------------------------------------------------------------------------
def test_addresses_of_brokers_are_bounded_in_all_and_by_connection(monkeypatch) -> None:
    monkeypatch.setattr(memory_limiter, "BROKERS_MAX", 6)
    monkeypatch.setattr(memory_limiter, "BROKERS_OF_CONNECTION_MAX", 2)
    table = RouteTable()
    for number in range(2):
        register(table, name=f"b{number}", address=f"a:{number}", connection=1)
    with pytest.raises(TablesFullError, match="on this connection"):
        register(table, name="b2", address="a:2", connection=1)
    register(table, name="b2", address="a:2", connection=2)
    with pytest.raises(TablesFullError, match=r"3 brokers are registered, 3 from 10\.0\.0\.1"):
        register(table, name="b3", address="a:3", connection=3)
    register(table, name="b2", address="a:2", connection=2)
    # Another host has its share of what is left, and what goes makes room.
    register(table, name="b4", address="b:4", connection=4, host="10.0.0.2")
    register(table, name="b5", address="b:5", connection=4, host="10.0.0.2")
    with pytest.raises(TablesFullError, match=r"5 brokers are registered, 2 from 10\.0\.0\.2"):
        register(table, name="b6", address="b:6", connection=5, host="10.0.0.2")
    table.connection_closed(1)
    register(table, name="b6", address="b:6", connection=5, host="10.0.0.2")


def test_a_broker_has_so_many_topics_at_most(monkeypatch) -> None:
    monkeypatch.setattr(memory_limiter, "ENTRIES_OF_BROKER_MAX", 5)
    table = RouteTable()
    with pytest.raises(TablesFullError, match="broker-a has 5 topics at this name server"):
        register(table, *(f"T{n}" for n in range(6)))
    assert table.limiter.entries == 5


@pytest.mark.parametrize(
    ("bound", "most"), [("ENTRIES_MAX", 9), ("ROUTES_BYTES_MAX", 9 * (280 + 80 + 2))]
)
def test_a_topic_too_many_is_refused_and_the_broker_stays(monkeypatch, bound, most) -> None:
    monkeypatch.setattr(memory_limiter, bound, most)
    table = RouteTable()
    with pytest.raises(TablesFullError, match="delete topics that nobody uses"):
        register(table, *(f"T{n}" for n in range(9)))
    assert len(table.topics) == table.limiter.entries == 5
    assert table.route("T4") is not None
    # What is there may change, and what goes makes room.
    register(table, "T1", counter=2, queues=9)
    table.delete_topic("T0")
    register(table, "N0", counter=3)
    assert table.route("N0") is not None
    # A broker of another host has half of what is left, whatever the first one does.
    other = {"name": "b", "address": "b:1", "connection": 2, "host": "10.0.0.2"}
    with pytest.raises(TablesFullError, match=r"2 of brokers from 10\.0\.0\.2"):
        register(table, "U0", "U1", "U2", **other)
    table.connection_closed(1)
    register(table, "U0", "U1", "U2", "U3", "U4", **other)
    table.connection_closed(2)
    assert (table.limiter.entries, table.limiter.bytes, table.limiter.shares) == (0, 0, {})


def test_what_is_counted_is_what_is_there() -> None:
    table = RouteTable()
    register(table, *(f"T{n}" for n in range(50)))
    register(table, "T1", "U", name="broker-b", address="10.0.0.3:10911", connection=3)
    assert (table.limiter.entries, table.limiter.bytes) == (
        52,
        52 * 80 + 51 * 280 + 40 * 3 + 10 * 2 + 1,
    )
    table.delete_topic("T1")
    table.connection_closed(3)
    table.connection_closed(1)
    assert (table.limiter.entries, table.limiter.bytes, table.topics) == (0, 0, {})


def test_a_broker_of_many_topics_is_out_of_all_answers_before_it_is_swept(monkeypatch) -> None:
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 10)
    monkeypatch.setattr(route_table, "PIECE", 10)
    table = RouteTable()
    register(table, *(f"T{n}" for n in range(95)))
    table.connection_closed(1)
    assert not table.is_swept
    assert table.route("T3") is None
    assert names(table.topic_names()) == []
    # It comes back before that is done: only what it has now counts.
    register(table, "T3", "U")
    steps = list(table.sweep())
    assert len(steps) == 10
    assert table.is_swept
    assert sorted(table.topics) == ["T3", "U"]
    assert names(table.topic_names()) == ["U", "T3"] or names(table.topic_names()) == ["T3", "U"]
    assert table.limiter.entries == 2


def test_a_registration_whose_broker_goes_meanwhile_leaves_nothing_behind() -> None:
    table = RouteTable()
    claim = Claim("C", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912", 1, "10.0.0.1")
    live = table.start_registration(claim, 0)
    assert table.put_topics(live, [TopicConfig(topic_name="T")])
    table.connection_closed(1)
    assert not table.put_topics(live, [TopicConfig(topic_name="U")])
    assert table.finish_registration(live, DataVersion(counter=1), []) == RegisterResult()
    assert (table.topics, table.brokers, table.live) == ({}, {}, {})
