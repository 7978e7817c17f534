import json

import pytest

from kerolox.errors import BrokerError, ConnectError, RemoteProtocolError, TopicRouteNotFoundError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.spark.cluster import Cluster
from tests.support.up import deaf_address
from tests.unit.spark.fake_broker import FakeBroker


class Answers:
    """A name server and all brokers at one address."""

    def __init__(self) -> None:
        self.route: object = None
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}
        self.closes = 0

    def __call__(self, request):
        if self.closes:
            self.closes -= 1
            return None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if self.route is None:
                return request.response(ResponseCode.TOPIC_NOT_EXIST, "no route")
            body = self.route if isinstance(self.route, bytes) else json.dumps(self.route).encode()
            return request.response(body=body)
        queue = request.ext_fields["topic"], int(request.ext_fields["queueId"])
        if queue not in self.offsets:
            return request.response(ResponseCode.SYSTEM_ERROR, "no such queue")
        index = [RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET].index(request.code)
        return request.response(0, None, {"offset": self.offsets[queue][index]})


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def broker(answers):
    with FakeBroker(answers) as made:
        yield made


def route(address: str, **queue_data: object) -> dict[str, object]:
    queues = {"brokerName": "b", "readQueueNums": 2, "writeQueueNums": 4, "perm": 6, **queue_data}
    brokers = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": address, "1": "slave:1"}}
    return {"queueDatas": [queues], "brokerDatas": [brokers]}


def test_read_queues_of_masters_are_found_with_their_bounds(answers, broker):
    answers.route = route(broker.address)
    answers.offsets = {("t", 0): (3, 9), ("t", 1): (0, 0)}
    with Cluster([broker.address]) as cluster:
        routes = cluster.routes(["t"])
        bounds = cluster.bounds(routes)
    assert routes.addresses == {"b": broker.address}
    assert bounds == {MessageQueue("t", "b", 0): (3, 9), MessageQueue("t", "b", 1): (0, 0)}


def test_a_route_with_bare_number_keys_is_read(answers, broker):
    text = json.dumps(route(broker.address)).replace('"0":', "0:").replace('"1":', "1:")
    answers.route = text.encode()
    with Cluster([broker.address]) as cluster:
        assert cluster.routes(["t"]).addresses == {"b": broker.address}


@pytest.mark.parametrize("data", [{"perm": 2}, {"brokerName": "slave-only"}, {"readQueueNums": 0}])
def test_a_topic_without_a_readable_queue_is_an_error(answers, broker, data):
    answers.route = route(broker.address, **data)
    with (
        Cluster([broker.address]) as cluster,
        pytest.raises(TopicRouteNotFoundError, match="no queue that can be read"),
    ):
        cluster.routes(["t"])


def test_an_unknown_topic_is_an_error_that_names_it(broker):
    with (
        Cluster([broker.address]) as cluster,
        pytest.raises(TopicRouteNotFoundError, match="knows no topic t"),
    ):
        cluster.routes(["t"])


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"brokerDatas":[3]}'])
def test_a_route_that_is_none_is_an_error(answers, broker, body):
    answers.route = body
    with Cluster([broker.address]) as cluster, pytest.raises(RemoteProtocolError):
        cluster.routes(["t"])


def test_a_brokers_refusal_is_raised(answers, broker):
    answers.route = route(broker.address)
    with Cluster([broker.address]) as cluster:
        routes = cluster.routes(["t"])
        with pytest.raises(BrokerError, match="no such queue"):
            cluster.bounds(routes)


def test_a_connection_that_was_closed_meanwhile_is_made_again(answers, broker):
    answers.route = route(broker.address)
    with Cluster([broker.address]) as cluster:
        cluster.routes(["t"])
        answers.closes = 1
        assert cluster.routes(["t"]).queues
        assert broker.connections == 2


def test_a_name_server_that_is_down_is_an_error_after_the_retries():
    with (
        deaf_address() as address,
        Cluster([address], retry_seconds=0) as cluster,
        pytest.raises(ConnectError, match=address),
    ):
        cluster.routes(["t"])


def test_the_name_server_that_answered_is_asked_first_the_next_time(answers, broker):
    answers.route = route(broker.address)
    with deaf_address() as down, Cluster([down, broker.address]) as cluster:
        cluster.routes(["t"])
        assert cluster._name_servers == [broker.address, down]
