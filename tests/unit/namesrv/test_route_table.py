"""The route table's rules; the clock is a number."""

from __future__ import annotations

from kerolox.namesrv.route_table import BROKER_EXPIRY_MS, RegisterResult, RouteTable
from kerolox.protocol.bodies import DataVersion, TopicConfig


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
) -> RegisterResult:
    return table.register(
        cluster=cluster,
        address=address,
        broker_name=name,
        broker_id=broker_id,
        ha_address=address.replace("10911", "10912"),
        data_version=DataVersion(counter=counter, timestamp=1),
        topics=[
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                topic_sys_flag=flag,
            )
            for topic in topics
        ],
        filter_servers=filter_servers,
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
    table.connection_closed(1, "10.0.0.1:54321")
    assert register(table, **SLAVE) == RegisterResult(None, None)


def test_a_slave_that_became_master_leaves_its_old_id() -> None:
    table = RouteTable()
    register(table, "T")
    register(table, **SLAVE)
    register(table, "T", broker_id=0, address="10.0.0.2:10911", connection=2)
    assert table.brokers["broker-a"].addresses == {0: "10.0.0.2:10911"}


def test_a_broker_that_comes_back_registers_its_topics_whatever_their_version() -> None:
    table = RouteTable()
    register(table, "T", counter=1)
    register(table, **SLAVE)
    table.unregister(cluster="C", address="10.0.0.1:10911", broker_name="broker-a", broker_id=0)
    assert table.route("T") is not None
    table.delete_topic("T")
    register(table, "T", counter=1)
    assert table.route("T") is not None


def test_an_unregistration_of_the_last_address_takes_name_cluster_and_topics_out() -> None:
    table = RouteTable()
    register(table, "T", "U")
    register(table, "U", name="broker-b", address="10.0.0.3:10911", connection=3)
    table.unregister(cluster="C", address="10.0.0.1:10911", broker_name="broker-a", broker_id=0)
    assert table.clusters == {"C": {"broker-b"}}
    assert sorted(table.topics) == ["U"]
    table.unregister(cluster="C", address="10.0.0.3:10911", broker_name="broker-b", broker_id=0)
    assert (table.clusters, table.topics, table.brokers, table.live) == ({}, {}, {}, {})


def test_an_unknown_broker_may_unregister() -> None:
    table = RouteTable()
    register(table, "T")
    table.unregister(cluster="C", address="10.9.9.9:1", broker_name="other", broker_id=0)
    assert table.route("T") is not None


def test_a_closed_connection_takes_out_the_broker_that_registered_on_it() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    assert table.connection_closed(8, "10.0.0.1:50000") == []
    assert table.route("T") is not None
    assert table.connection_closed(7, "10.0.0.1:50001") == ["10.0.0.1:10911"]
    assert table.route("T") is None


def test_an_old_connection_that_closes_late_does_no_harm() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    register(table, "T", connection=8)
    table.connection_closed(7, "10.0.0.1:50000")
    assert table.route("T") is not None


def test_a_connection_without_a_broker_takes_out_the_one_with_its_own_address() -> None:
    table = RouteTable()
    register(table, "T", connection=7)
    table.connection_closed(9, "10.0.0.1:10911")
    assert table.route("T") is None


def test_a_master_with_a_surviving_slave_keeps_its_topics() -> None:
    table = RouteTable()
    register(table, "T")
    register(table, **SLAVE)
    table.connection_closed(1, "10.0.0.1:50000")
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
    table.touch("10.0.0.1:10911", BROKER_EXPIRY_MS)
    table.touch("10.9.9.9:1", BROKER_EXPIRY_MS)
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


def test_a_topic_without_any_broker_has_no_route() -> None:
    table = RouteTable()
    register(table, "T")
    del table.brokers["broker-a"]
    assert table.route("T") is None


def test_wiping_takes_the_write_bit_off_and_adding_makes_it_six() -> None:
    table = RouteTable()
    register(table, "T", "U")
    assert table.wipe_write_permission("broker-a") == 2
    assert {t: q["broker-a"].perm for t, q in table.topics.items()} == {"T": 4, "U": 4}
    assert table.add_write_permission("broker-a") == 2
    assert table.topics["T"]["broker-a"].perm == 6
    assert table.wipe_write_permission("other") == 0


def test_wiping_lasts_until_the_next_registration_that_counts() -> None:
    table = RouteTable()
    register(table, "T", counter=1)
    table.wipe_write_permission("broker-a")
    register(table, "T", counter=1)
    assert table.topics["T"]["broker-a"].perm == 4
    register(table, "T", counter=2)
    assert table.topics["T"]["broker-a"].perm == 6


def test_topics_of_a_cluster() -> None:
    table = RouteTable()
    register(table, "T", "U", cluster="C")
    register(table, "U", "V", cluster="D", name="broker-d", address="10.0.0.4:10911")
    assert table.topics_of_cluster("C") == ["T", "U"]
    assert table.topics_of_cluster("D") == ["U", "V"]
    assert table.topics_of_cluster("nowhere") == []


def test_system_topics_are_the_names_of_clusters_and_brokers() -> None:
    table = RouteTable()
    assert table.system_topics() == ([], None)
    register(table, "T")
    register(table, name="broker-b", address="10.0.0.3:10911")
    assert table.system_topics() == (["C", "broker-a", "broker-b"], "10.0.0.1:10911")


def test_unit_topics_are_told_by_the_system_flag() -> None:
    table = RouteTable()
    for flag, topic in enumerate(["none", "unit", "subscribed", "both"]):
        register(table, topic, flag=flag, counter=flag + 1)
    assert table.unit_topics() == ["unit", "both"]
    assert table.unit_subscribed_topics() == ["subscribed", "both"]
    assert table.unit_subscribed_topics_of_no_unit() == ["subscribed"]


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
