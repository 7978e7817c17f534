import json

import pytest

from kerolox.errors import ConnectError, RemoteProtocolError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.spark.network import cluster
from kerolox.spark.network.cluster import Topics
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.routes import RouteFinder
from kerolox.spark.selection import Selection
from tests.support.eventually import wait_until
from tests.support.servers.threaded_broker import ThreadedBroker
from tests.support.servers.up import deaf_address


class Names:
    """A name server that lists topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = list(topics)
        self.body: bytes | None = None
        self.asked = 0

    def __call__(self, request):
        if request.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            return request.response(body=b'{"topicList":["broker-a"]}')
        assert request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        self.asked += 1
        body = self.body or json.dumps({"topicList": self.topics}).encode()
        return request.response(body=body)


def topics(*addresses: str, pattern: str = "t.*", wait_seconds: float = 0.0) -> Topics:
    finder = RouteFinder(addresses, Connector())
    return Topics(Selection(pattern=pattern), finder, wait_seconds)


def test_topics_that_appear_are_found_while_nobody_waits(monkeypatch):
    names = Names("t1", "u1", "broker-a")
    with ThreadedBroker(names) as server:
        made = topics(server.address)
        assert made.now() == ("t1",)
        names.topics += ["t2"]
        assert made.now() == ("t1",)
        assert names.asked == 1
        monkeypatch.setattr(cluster, "LIST_SECONDS", 0.0)
        wait_until(lambda: made.now() == ("t1", "t2"), what="the new topic")
        names.topics.remove("t1")
        assert made.fresh() == ("t2",)
        made.close()


def test_a_name_server_that_goes_away_or_starts_empty_changes_nothing(monkeypatch):
    names = Names("t1")
    monkeypatch.setattr(cluster, "LIST_SECONDS", 0.0)
    with ThreadedBroker(names) as server:
        made = topics(server.address)
        assert made.now() == ("t1",)
        asked, names.topics = names.asked, []
        wait_until(lambda: made.now() == ("t1",) and names.asked > asked + 1, what="two checks")
    for _ in range(20):
        assert made.now() == ("t1",)
    made.close()


def test_the_first_list_is_waited_for_and_its_lack_is_an_error():
    with deaf_address() as address:
        made = topics(address)
        with pytest.raises(ConnectError, match="can't connect"):
            made.now()
        made.close()
        with ThreadedBroker(Names("t1")) as server:
            made = topics(address, server.address)
            assert made.now() == ("t1",)
            made.close()


def test_a_list_that_is_not_readable_is_an_error():
    names = Names()
    for names.body in (b"{}", b"[", b'{"topicList":5}'):
        with ThreadedBroker(names) as server:
            made = topics(server.address, wait_seconds=60.0)
            with pytest.raises(RemoteProtocolError, match="sent no list of topics"):
                made.now()
            made.close()


def test_topics_by_name_are_not_asked_for():
    made = Topics(Selection(topics=("t",)), RouteFinder(["127.0.0.1:1"], Connector()), 0.0)
    assert made.now() == made.fresh() == ("t",)
    made.close()


def test_a_refusal_for_want_of_rights_is_an_error_at_once():
    def refuse(request):
        return request.response(ResponseCode.NO_PERMISSION, "not for you")

    with ThreadedBroker(refuse) as server:
        made = topics(server.address, wait_seconds=60.0)
        with pytest.raises(Exception, match="not for you"):
            made.now()
        made.close()
