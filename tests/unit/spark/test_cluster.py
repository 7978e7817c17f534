import json
import logging

import pytest

from kerolox.errors import BrokerError, ConnectError, RemoteProtocolError, TopicRouteNotFoundError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.spark.network import cluster as cluster_module
from kerolox.spark.network.cluster import ClusterView
from tests.support.eventually import wait_until
from tests.support.servers.threaded_broker import ThreadedBroker, record
from tests.support.servers.up import deaf_address

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


class Answers:
    """A name server and all brokers at one address."""

    def __init__(self) -> None:
        self.route: object = None
        self.brokers: dict[str, object] = {}
        """What a name server lists."""
        self.offsets: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.hidden: set[int] = set()
        """Queues that can be read only."""
        self.stored: dict[int, int] = {}
        """Store times by offset, for those who pull."""
        self.committed: dict[tuple[str, int], int] = {}
        """Of group g."""
        self.refusal = 0
        self.closes = 0
        self.asked: list[int] = []

    def __call__(self, request):
        self.asked.append(request.code)
        if self.closes:
            self.closes -= 1
            return None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if self.route is None:
                return request.response(ResponseCode.TOPIC_NOT_EXIST, "no route")
            body = self.route if isinstance(self.route, bytes) else json.dumps(self.route).encode()
            return request.response(body=body)
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.response(body=json.dumps({"brokerAddrTable": self.brokers}).encode())
        if self.refusal:
            return request.response(self.refusal, "not now")
        return self.of_a_broker(request)

    def of_a_broker(self, request):
        topic = request.ext_fields["topic"]
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            table = ",".join(
                f'{{"brokerName":"b","queueId":{queue_id},"topic":"{name}"}}:'
                f'{{"lastUpdateTimestamp":{last},"maxOffset":{high},"minOffset":{low}}}'
                for (name, queue_id), (low, high, last) in self.offsets.items()
                if name == topic and queue_id not in self.hidden
            )
            return request.response(body=f'{{"offsetTable":{{{table}}}}}'.encode())
        queue = topic, int(request.ext_fields["queueId"])
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            time = int(request.ext_fields["timestamp"])
            near = [each for each in self.stored if abs(self.stored[each] - time) <= 1]
            return request.response(0, None, {"offset": near[-1] if near else 0})
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            assert request.ext_fields["consumerGroup"] == "g"
            if queue not in self.committed:
                return request.response(ResponseCode.QUERY_NOT_FOUND, "no offset")
            return request.response(0, None, {"offset": self.committed[queue]})
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.committed[queue] = int(request.ext_fields["commitOffset"])
            return request.response(0)
        if request.code == RequestCode.PULL_MESSAGE:
            offset = int(request.ext_fields["queueOffset"])
            if offset not in self.stored:
                return request.response(ResponseCode.PULL_OFFSET_MOVED, "", {})
            return request.response(body=record(offset, store_timestamp=self.stored[offset]))
        index = [RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET].index(request.code)
        return request.response(0, None, {"offset": self.offsets[queue][index]})


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def broker(answers):
    with ThreadedBroker(answers) as made:
        answers.route = route(made.address)
        answers.offsets = {("t", 0): (3, 9, 77), ("t", 1): (0, 0, 0)}
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cluster_module, "RETRY_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(cluster_module, "ROUTE_SECONDS_IN_TROUBLE", 0.0)


def route(address: str, *, broker_name: str = "b", **queue_data: object) -> dict[str, object]:
    queues = {"brokerName": broker_name, "readQueueNums": 2, "writeQueueNums": 4, "perm": 6}
    addresses = {"0": address, "1": "slave:1"}
    brokers = {"brokerName": "b", "cluster": "c", "brokerAddrs": addresses}
    return {"queueDatas": [{**queues, **queue_data}], "brokerDatas": [brokers]}


def made(*addresses: str, wait_seconds: float = 0.0) -> ClusterView:
    return ClusterView(addresses, wait_seconds=wait_seconds)


def test_read_queues_of_masters_are_found_with_their_bounds(answers, broker):
    with made(broker.address) as cluster:
        held = cluster.complete(["t"])
        assert {cluster.address(queue) for queue in held} == {broker.address}
    assert held == {Q0: (3, 9, 77), Q1: (0, 0, 0)}


def test_bounds_of_a_topic_are_one_request_and_the_route_is_asked_once(answers, broker):
    with made(broker.address) as cluster:
        for _ in range(5):
            cluster.view(["t"])
    assert answers.asked.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1
    assert answers.asked.count(RequestCode.GET_TOPIC_STATS_INFO) == 5
    assert len(answers.asked) == 6


def test_queues_that_can_only_be_read_are_asked_one_by_one(answers, broker):
    answers.hidden = {1}
    answers.offsets["t", 1] = (2, 4, 55)
    with made(broker.address) as cluster:
        assert cluster.complete(["t"]) == {Q0: (3, 9, 77), Q1: (2, 4, 0)}


def test_a_route_with_bare_number_keys_is_read(answers, broker):
    text = json.dumps(answers.route).replace('"0":', "0:").replace('"1":', "1:")
    answers.route = text.encode()
    with made(broker.address) as cluster:
        assert cluster.complete(["t"]).keys() == {Q0, Q1}


@pytest.mark.parametrize("data", [{"perm": 2}, {"brokerName": "slave-only"}, {"readQueueNums": 0}])
def test_a_topic_without_a_readable_queue_is_an_error(answers, broker, data):
    answers.route = route(broker.address, **data)
    with (
        made(broker.address) as cluster,
        pytest.raises(TopicRouteNotFoundError, match="no queue that can be read"),
    ):
        cluster.complete(["t"])


def test_an_unknown_topic_is_an_error_that_names_it(answers, broker):
    answers.route, answers.brokers = None, {"b": {}}
    with (
        made(broker.address) as cluster,
        pytest.raises(TopicRouteNotFoundError, match="knows no topic t"),
    ):
        cluster.complete(["t"])


@pytest.mark.parametrize("empty", ["empty", "beside a silent one", "beside one that is down"])
def test_a_name_server_without_brokers_does_not_decide(answers, broker, empty, monkeypatch):
    # What is certain would be an error at once.
    monkeypatch.setattr(cluster_module, "UNKNOWN_SECONDS", 0.0)
    found, answers.route = answers.route, None
    with deaf_address() as down, made(broker.address, down, wait_seconds=60) as cluster:
        if empty == "empty":
            cluster._finder.name_servers.addresses = (broker.address,)
        elif empty == "beside a silent one":
            monkeypatch.setattr(cluster._finder._asker, "_seconds_max", 0.01)
            with ThreadedBroker(lambda request: request.response(1, "starting")) as silent:
                cluster._finder.name_servers.addresses = (broker.address, silent.address)
                assert cluster.view(["t"]) == {}
            cluster._finder.name_servers.addresses = (broker.address, down)
        for _ in range(3):
            assert cluster.view(["t"]) == {}
        answers.route = found
        assert cluster.complete(["t"]).keys() == {Q0, Q1}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"brokerDatas":[3]}'])
def test_a_route_that_is_none_is_an_error(answers, broker, body):
    answers.route = body
    with made(broker.address) as cluster, pytest.raises(RemoteProtocolError):
        cluster.complete(["t"])


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"offsetTable":{"x":1}}'])
def test_bounds_that_are_none_are_an_error(answers, broker, body, monkeypatch):
    monkeypatch.setattr(answers, "of_a_broker", lambda request: request.response(body=body))
    with made(broker.address) as cluster, pytest.raises(RemoteProtocolError):
        cluster.complete(["t"])


def test_a_brokers_refusal_is_raised_at_once(answers, broker):
    answers.refusal = ResponseCode.NO_PERMISSION
    with (
        made(broker.address, wait_seconds=60) as cluster,
        pytest.raises(BrokerError, match="not now"),
    ):
        cluster.complete(["t"])


def test_a_refusal_that_passes_is_waited_for(answers, broker, caplog):
    answers.refusal = ResponseCode.TOPIC_NOT_EXIST
    with made(broker.address, wait_seconds=60) as cluster, caplog.at_level(logging.WARNING):
        assert cluster.view(["t"]) == {}
        answers.refusal = 0
        assert cluster.complete(["t"]).keys() == {Q0, Q1}
    assert "not now" in caplog.text


def test_a_refusal_that_lasts_too_long_is_raised(answers, broker):
    answers.refusal = ResponseCode.TOPIC_NOT_EXIST
    with made(broker.address) as cluster, pytest.raises(BrokerError, match="not now"):
        cluster.view(["t"])


def test_a_connection_that_was_closed_meanwhile_is_made_again(answers, broker):
    with made(broker.address) as cluster:
        cluster.complete(["t"])
        answers.closes = 1
        assert cluster.view(["t"]).keys() == {Q0, Q1}


def test_a_name_server_that_is_down_is_an_error_after_the_wait():
    with (
        deaf_address() as address,
        made(address) as cluster,
        pytest.raises(ConnectError, match=address),
    ):
        cluster.complete(["t"])


def test_the_name_server_that_answered_is_asked_first_the_next_time(answers, broker):
    with deaf_address() as down, made(down, broker.address) as cluster:
        cluster.complete(["t"])
        assert cluster._finder.name_servers.in_order() == (broker.address, down)


@pytest.mark.parametrize("state", ["down", "empty", "without the broker"])
def test_a_known_route_outlives_what_happens_to_name_servers(answers, broker, state, monkeypatch):
    with ThreadedBroker(answers) as names, made(names.address, wait_seconds=60) as cluster:
        cluster.complete(["t"])
        monkeypatch.setattr(cluster_module, "ROUTE_SECONDS", 0.0)
        if state == "down":
            names.__exit__()
        elif state == "empty":
            answers.route = None
        else:
            answers.route = {"queueDatas": [], "brokerDatas": []}
        for _ in range(5):
            assert cluster.view(["t"]).keys() == {Q0, Q1}


def test_a_broker_that_is_away_holds_up_nobody_and_is_back_when_it_answers(answers, broker):
    with deaf_address() as away, made(broker.address, wait_seconds=60) as cluster:
        both = route(broker.address)
        more = route(away, broker_name="away")
        more["brokerDatas"][0]["brokerName"] = "away"
        answers.route = {key: both[key] + more[key] for key in both}
        assert cluster.view(["t"]).keys() == {Q0, Q1}
        assert cluster.view(["t"]).keys() == {Q0, Q1}
        # It comes back elsewhere; any of the next checks sees the new route.
        more["brokerDatas"][0]["brokerAddrs"]["0"] = broker.address
        back = {Q0, Q1, MessageQueue("t", "away", 0), MessageQueue("t", "away", 1)}
        wait_until(lambda: cluster.view(["t"]).keys() == back, what="the queues of both")


def test_a_broker_that_is_away_for_too_long_is_an_error(answers, broker):
    with deaf_address() as away, made(broker.address) as cluster:
        answers.route = route(away)
        with pytest.raises(ConnectError, match=away):
            cluster.complete(["t"])


def test_a_queue_that_no_master_has_is_an_error_that_names_it(answers, broker):
    other = MessageQueue("t", "b", 7)
    with (
        made(broker.address) as cluster,
        pytest.raises(ConnectError, match="no master has queue 7 of t on b"),
    ):
        cluster.complete(["t"], [Q0, other])


def test_store_times_are_those_of_the_messages(answers, broker):
    answers.stored = {3: 70, 4: 70, 5: 71, 6: 75, 7: 75, 8: 77}
    with made(broker.address) as cluster:
        held = cluster.complete(["t"])[Q0]
        assert cluster.store_time(Q0, 5, "g") == 71
        assert cluster.store_time(Q0, 12, "g") is None
        after = [cluster.first_after(Q0, held, time_ms, "g") for time_ms in (69, 70, 74, 75, 77)]
        assert after == [3, 5, 6, 8, 9]


# -- times and groups ------------------------------------------------------------------------
def test_the_first_offset_of_a_time_is_found_for_many_queues_at_once(answers, broker):
    answers.stored = {offset: 1000 + offset // 3 for offset in range(9)}
    answers.offsets = {("t", 0): (3, 9, 77), ("t", 1): (0, 0, 0)}
    with made(broker.address) as cluster:
        held = cluster.complete(["t"])
        for time, first in ((0, 3), (1001, 3), (1002, 6), (1003, 9)):
            found = cluster.first_since({Q0: time, Q1: time}, held, "g")
            assert found == {Q0: first, Q1: 0}
        assert cluster.first_after(Q0, held[Q0], 1001, "g") == 6


def test_offsets_of_a_group_are_stored_and_found_again(answers, broker):
    with made(broker.address) as cluster:
        held = cluster.complete(["t"])
        assert cluster.committed(held, "g") == {}
        assert cluster.commit({Q0: 5}, "g") == {Q0}
        assert cluster.committed(held, "g") == {Q0: 5}


def test_a_broker_that_is_away_is_asked_for_times_until_it_answers(answers, broker):
    answers.stored = {3: 1000}
    with made(broker.address, wait_seconds=60.0) as cluster:
        held = cluster.complete(["t"])
        answers.closes = 4
        assert cluster.first_since({Q0: 0}, held, "g") == {Q0: 3}
    with made(broker.address) as cluster:
        held = cluster.complete(["t"])
        answers.closes = 1_000
        with pytest.raises(ConnectError):
            cluster.first_since({Q0: 0}, held, "g")
        assert cluster.commit({Q0: 5}, "g") == set()


def test_a_broker_that_refuses_offsets_of_a_group_is_an_error(answers, broker):
    with made(broker.address) as cluster:
        cluster.complete(["t"])
        answers.refusal = ResponseCode.NO_PERMISSION
        with pytest.raises(BrokerError, match="not now"):
            cluster.commit({Q0: 5}, "g")
