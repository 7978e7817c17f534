import itertools
import json
import logging
from dataclasses import replace

import pytest

from kerolox.errors import (
    AccessDeniedError,
    BrokerError,
    ConnectError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.remoting.blocking import RECEIVE_BYTES, BlockingConnection
from kerolox.security.credentials import Credentials, Signer
from kerolox.spark.network import pull as pull_module
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.pull import (
    POOL,
    POOLED_MAX,
    PULLS_IN_FLIGHT,
    SLOT_OFFSETS_MAX,
    ConnectionPool,
    RangePuller,
)
from kerolox.spark.option_values import WAIT_MS_MAX
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import DataLossError, Known, Mark, QueueRange
from tests.support.eventually import wait_until
from tests.support.servers.threaded_broker import Queue, ThreadedBroker
from tests.support.servers.up import deaf_address

QUEUE = MessageQueue("t", "broker-a", 0)


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse(
        {"nameServer": "127.0.0.1:1", "subscribe": "t", "pollTimeoutMs": "300", **given}
    )


def pull(broker: ThreadedBroker, start: int, end: int, **given: str) -> tuple[list[int], int]:
    """(queue offsets of the records, sum of the offsets covered)."""
    puller = RangePuller(broker.address, options(**given))
    try:
        pulled = list(puller.pull(QueueRange(QUEUE, start, end)))
    finally:
        puller.close()
    records = [each for part in pulled for each in decode_records(bytes(part.records))]
    assert all(each.body == f"body-{each.queue_offset}".encode() for each in records)
    return [each.queue_offset for each in records], sum(each.offsets for each in pulled)


@pytest.mark.parametrize("per_answer", [1, 7, 32, 5000])
@pytest.mark.parametrize(("start", "end"), [(0, 3000), (13, 14), (13, 1999)])
def test_a_range_is_read_exactly_and_in_order(per_answer: int, start: int, end: int):
    with ThreadedBroker(Queue(3000, per_answer=per_answer)) as broker:
        assert pull(broker, start, end) == (list(range(start, end)), end - start)


@pytest.mark.parametrize("wait", ["1", str(WAIT_MS_MAX)])
def test_the_shortest_and_the_longest_wait_read_a_range(wait: str):
    with ThreadedBroker(Queue(3000)) as broker:
        assert pull(broker, 0, 3000, pollTimeoutMs=wait) == (list(range(3000)), 3000)


@pytest.mark.parametrize("every", [1, 3, 100, 2999])
@pytest.mark.parametrize("scan", [1, 50, 800, 9000])
def test_a_tag_filter_changes_neither_the_ends_nor_the_order(every: int, scan: int):
    queue = Queue(3000, scan=scan)
    queue.tags_of = lambda offset: "a" if offset % every == 0 else "b"
    with ThreadedBroker(queue) as broker:
        offsets, covered = pull(broker, 10, 2990, subExpression="a || c")
        assert offsets == [each for each in range(10, 2990) if each % every == 0]
        assert covered == 2980


def test_every_request_is_signed_where_an_account_is_given():
    queue, signer = Queue(3000, per_answer=7), Signer(Credentials("rocketmq2", "12345678", "t"))
    checked = 0

    def check(request):
        nonlocal checked
        given = request.ext_fields.pop("Signature")
        assert given == signer.signature(request.ext_fields, request.body)
        checked += 1
        return queue(request)

    account = {"accessKey": "rocketmq2", "secretKey": "12345678", "securityToken": "t"}
    with ThreadedBroker(check) as broker:
        assert pull(broker, 13, 1999, **account)[0] == list(range(13, 1999))
    assert checked == len(queue.pulls) > 200


def test_a_refused_account_ends_a_pull_at_once():
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    asked = []

    def refuse(request):
        asked.append(request)
        return request.response(1, remark)

    with (
        ThreadedBroker(refuse) as broker,
        pytest.raises(AccessDeniedError, match="No accessKey is configured"),
    ):
        pull(broker, 0, 10, pollTimeoutMs="60000")
    assert len(asked) == 1


def test_many_pulls_are_in_flight_once_the_length_of_answers_is_known():
    queue = Queue(32 * 200)
    with ThreadedBroker(queue) as broker:
        pull(broker, 0, 32 * 200)
    assert queue.pulls[0] == (0, SLOT_OFFSETS_MAX)
    assert queue.pulls[1 : 1 + PULLS_IN_FLIGHT] == [
        (32 * slot, 32) for slot in range(1, 1 + PULLS_IN_FLIGHT)
    ]
    assert len(queue.pulls) < 200 + 2 * PULLS_IN_FLIGHT


def test_longer_answers_are_asked_for_ever_less_often_in_vain():
    queue = Queue(32 * 2000)
    with ThreadedBroker(queue) as broker:
        pull(broker, 0, 32 * 2000)
    assert sum(count > 32 for _, count in queue.pulls[1:1000]) > 0
    assert sum(count > 32 for _, count in queue.pulls[1000:]) <= 2 * PULLS_IN_FLIGHT


def test_answers_that_get_shorter_and_longer_again_lose_nothing():
    queue = Queue(9000)

    def answer(request):
        offset = int(request.ext_fields["queueOffset"])
        queue.per_answer = 3 if 2000 <= offset < 2500 else 64
        return queue(request)

    with ThreadedBroker(answer) as broker:
        assert pull(broker, 0, 9000) == (list(range(9000)), 9000)


def unasked(request: RemotingCommand) -> RemotingCommand:
    """An answer to a request that nobody has made."""
    stray = request.response(body=bytes(4096))
    stray.opaque = request.opaque + 1_000_000
    return stray


def test_answers_that_nobody_asked_for_are_not_kept():
    queue = Queue(3000, per_answer=7)
    with ThreadedBroker(lambda request: [unasked(request), queue(request)]) as broker:
        puller = RangePuller(broker.address, options())
        offsets = sum(each.offsets for each in puller.pull(QueueRange(QUEUE, 0, 3000)))
        assert puller._arrived.bytes == 0
        puller.close()
    assert offsets == 3000


def test_an_answer_that_comes_twice_counts_once():
    queue = Queue(3000)
    with ThreadedBroker(lambda request: [queue(request)] * 2) as broker:
        assert pull(broker, 0, 3000) == (list(range(3000)), 3000)


def test_answers_that_nobody_asked_for_make_no_pull_wait_on(monkeypatch):
    monkeypatch.setattr(pull_module, "ANSWER_TIMEOUT_SECONDS", 0.2)
    with (
        ThreadedBroker(lambda request: itertools.repeat(unasked(request))) as broker,
        pytest.raises(RequestTimeoutError, match=r"did not answer within 0.2 s"),
    ):
        pull(broker, 0, 10)


class WatchedPuller(RangePuller):
    """Knows the most that it had of answers that wait for their turn."""

    bytes_most = 0

    def _answer_of(self, slot):
        answer = super()._answer_of(slot)
        waiting = self._arrived.bytes + (0 if answer is None else len(answer.records))
        self.bytes_most = max(self.bytes_most, waiting)
        return answer


def test_messages_that_become_large_wait_within_the_bound_of_bytes(monkeypatch):
    in_flight, large = 1024 * 1024, 128 * 1024
    monkeypatch.setattr(pull_module, "IN_FLIGHT_BYTES_MAX", in_flight)
    queue = Queue(600, per_answer=4)
    queue.body_of = lambda offset: bytes(large) if offset >= 200 else b""

    def answer(request):
        queue.per_answer = 4 if int(request.ext_fields["queueOffset"]) < 200 else 1
        return queue(request)

    with ThreadedBroker(answer) as broker:
        puller = WatchedPuller(broker.address, options())
        pulled = [bytes(each.records) for each in puller.pull(QueueRange(QUEUE, 0, 600))]
        puller.close()
    found = [each.queue_offset for part in pulled for each in decode_records(part)]
    assert found == list(range(600))
    # One more read of the socket may bring answers before they are counted.
    assert puller.bytes_most <= in_flight + RECEIVE_BYTES + large


@pytest.mark.parametrize("size", [1, 16 * 1024, 128 * 1024, 2 * 1024 * 1024])
def test_no_more_bytes_are_in_flight_than_the_bound(monkeypatch, size):
    in_flight = 1024 * 1024
    monkeypatch.setattr(pull_module, "IN_FLIGHT_BYTES_MAX", in_flight)
    queue = Queue(100, per_answer=1)
    queue.body_of = lambda offset: bytes(size)
    with ThreadedBroker(queue) as broker:
        puller = RangePuller(broker.address, options())
        for taken, pulled in enumerate(puller.pull(QueueRange(QUEUE, 0, 100)), 1):
            # A message that is larger by itself is asked for alone.
            assert (len(queue.pulls) - taken) * len(pulled.records) <= in_flight
            assert len(queue.pulls) - taken <= PULLS_IN_FLIGHT
        puller.close()
    assert taken == 100


def test_a_lost_connection_is_made_again_and_nothing_is_read_twice():
    queue = Queue(3000)

    def answer(request):
        return (
            None
            if len(queue.pulls) % 40 == 39 and not queue.pulls.append((-1, -1))
            else (queue(request))
        )

    with ThreadedBroker(answer) as broker:
        assert pull(broker, 0, 3000)[0] == list(range(3000))
        assert broker.connections > 2


def test_a_broker_that_stays_away_is_an_error_after_the_poll_timeout():
    with deaf_address() as address, pytest.raises(ConnectError, match="can't connect"):
        list(RangePuller(address, options()).pull(QueueRange(QUEUE, 0, 5)))


def test_offsets_below_the_minimum_are_an_error():
    queue = Queue(100)
    queue.minimum = 40
    with (
        ThreadedBroker(queue) as broker,
        pytest.raises(DataLossError, match="offsets 10 to 39 of t"),
    ):
        pull(broker, 10, 90)


def test_offsets_below_the_minimum_are_skipped_with_a_warning_when_asked(caplog):
    queue = Queue(100)
    queue.minimum = 40
    with ThreadedBroker(queue) as broker, caplog.at_level(logging.WARNING):
        assert pull(broker, 10, 90, failOnDataLoss="false") == (list(range(40, 90)), 50)
    assert "data lost" in caplog.text


def test_an_end_that_the_queue_does_not_have_any_more_is_an_error():
    with (
        ThreadedBroker(Queue(50)) as broker,
        pytest.raises(DataLossError, match="offsets 50 to 89"),
    ):
        pull(broker, 10, 90)


def test_an_end_that_the_queue_does_not_have_any_more_is_skipped_when_asked():
    with ThreadedBroker(Queue(50)) as broker:
        assert pull(broker, 10, 90, failOnDataLoss="false") == (list(range(10, 50)), 40)


def test_messages_that_are_being_removed_are_an_error():
    queue = Queue(100)

    def answer(request):
        code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"
        return queue.answer(request, code, 30, remark)

    with ThreadedBroker(answer) as broker, pytest.raises(DataLossError, match="WAS_REMOVING"):
        pull(broker, 10, 90)


def test_a_busy_broker_is_asked_again():
    queue = Queue(100)
    refusals = iter([True, True])

    def answer(request):
        if next(refusals, False):
            return request.response(ResponseCode.SYSTEM_BUSY, "busy")
        return queue(request)

    with ThreadedBroker(answer) as broker:
        assert pull(broker, 0, 100, pollTimeoutMs="5000")[0] == list(range(100))


def test_a_refusal_is_an_error_with_the_brokers_words():
    def answer(request):
        return request.response(ResponseCode.NO_PERMISSION, "may not be read")

    with ThreadedBroker(answer) as broker, pytest.raises(BrokerError, match="may not be read"):
        pull(broker, 0, 100)


def test_an_answer_that_does_not_advance_is_an_error():
    queue = Queue(100)

    def answer(request):
        return queue.answer(request, ResponseCode.SUCCESS, 10, "FOUND")

    with ThreadedBroker(answer) as broker, pytest.raises(RemoteProtocolError, match="go on at 10"):
        pull(broker, 10, 100)


def test_names_with_percent_signs_and_quotes_reach_the_broker():
    seen = {}
    queue = Queue(10)

    def answer(request):
        seen.update(request.ext_fields)
        return queue(request)

    with ThreadedBroker(answer) as broker:
        # Quotes are no part of names, but what writes them does not count on that.
        made = replace(options(subscribe="%RETRY%g"), consumer_group='g"%d')
        puller = RangePuller(broker.address, made)
        list(puller.pull(QueueRange(MessageQueue("%RETRY%g", "b", 0), 0, 10)))
        puller.close()
    assert seen["topic"] == "%RETRY%g"
    assert seen["consumerGroup"] == 'g"%d'
    assert seen["sysFlag"] == "4"


# -- brokers that move, topics that are made again --------------------------------------------
def test_a_broker_that_is_back_elsewhere_is_found_by_its_route():
    queue = Queue(100)
    with ThreadedBroker(queue) as broker, deaf_address() as gone:
        addresses = {"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"0": broker.address}}
        queues = {"brokerName": "broker-a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        route = json.dumps({"brokerDatas": [addresses], "queueDatas": [queues]}).encode()
        with ThreadedBroker(lambda request: request.response(body=route)) as names:
            given = options(nameServer=names.address, pollTimeoutMs="20000")
            puller = RangePuller(gone, given)
            pulled = list(puller.pull(QueueRange(QUEUE, 0, 100)))
            puller.close()
    assert sum(each.offsets for each in pulled) == 100


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
    ],
)
def test_a_broker_that_is_about_to_start_or_stop_is_asked_again(code: int):
    queue = Queue(100)
    refusals = iter([True, True])

    def answer(request):
        return request.response(code, "not now") if next(refusals, False) else queue(request)

    with ThreadedBroker(answer) as broker:
        assert pull(broker, 0, 100, pollTimeoutMs="20000")[0] == list(range(100))


def test_a_topic_that_stays_away_is_an_error_or_left_out():
    def answer(request):
        return request.response(ResponseCode.TOPIC_NOT_EXIST, "topic[t] not exist")

    with ThreadedBroker(answer) as broker:
        with pytest.raises(DataLossError, match="not exist"):
            pull(broker, 0, 100)
        assert pull(broker, 0, 100, failOnDataLoss="false") == ([], 0)


def known_pull(queue: Queue, known: Known, start: int, end: int, **given: str) -> list[int]:
    with ThreadedBroker(queue) as broker:
        puller = RangePuller(broker.address, options(**given), {QUEUE: known})
        try:
            pulled = list(puller.pull(QueueRange(QUEUE, start, end)))
        finally:
            puller.close()
    return [each.queue_offset for part in pulled for each in decode_records(bytes(part.records))]


def test_messages_of_a_later_life_are_an_error_or_left_out():
    queue = Queue(200)
    queue.time_of = lambda offset: 5_000 + offset
    known = Known(Mark(120, 1_119))
    with pytest.raises(DataLossError, match="deleted and created again"):
        known_pull(queue, known, 10, 90)
    assert known_pull(queue, known, 10, 90, failOnDataLoss="false") == []


def test_a_life_that_ends_while_it_is_read_is_left_at_that_place():
    queue = Queue(200)
    # The topic is made again when 64 messages have been read.
    queue.time_of = lambda offset: offset if len(queue.pulls) < 3 else 5_000 + offset
    assert known_pull(queue, Known(Mark(120, 119)), 0, 120, failOnDataLoss="false") == list(
        range(64)
    )


def test_a_clock_that_was_set_back_is_no_other_life():
    queue = Queue(200)
    queue.time_of = lambda offset: 9_000 if offset < 50 else offset
    assert known_pull(queue, Known(Mark(120, 119)), 0, 100) == list(range(100))


def test_retention_at_the_start_of_a_range_from_earliest_is_no_loss(caplog):
    queue = Queue(100)
    queue.minimum = 40
    with caplog.at_level(logging.WARNING):
        assert known_pull(queue, Known(None, True), 10, 90) == list(range(40, 90))
    assert not caplog.records


# -- slaves, connections that are kept --------------------------------------------------------
class Broker:
    """A name server, a master and a slave in one test: what each has, and what it suggests."""

    def __init__(self, master: Queue, slave: Queue) -> None:
        self.master, self.slave = master, slave
        self.suggests = {0: 1, 1: 1}
        self.master_is_away = False

    def __call__(self, number: int):
        queue = (self.master, self.slave)[number]

        def answer(request):
            if number == 0 and self.master_is_away:
                return None
            made = queue(request)
            made.ext_fields["suggestWhichBrokerId"] = str(self.suggests[number])
            return made

        return answer


def read_with_slave(broker: Broker, *, start: int = 0, end: int = 3000, **given: str) -> list[int]:
    with ThreadedBroker(broker(0)) as master, ThreadedBroker(broker(1)) as slave:
        addresses = {"0": master.address, "1": slave.address}
        brokers = {"brokerName": "broker-a", "cluster": "c", "brokerAddrs": addresses}
        queues = {"brokerName": "broker-a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        route = json.dumps({"brokerDatas": [brokers], "queueDatas": [queues]}).encode()
        with ThreadedBroker(lambda request: request.response(body=route)) as names:
            given = {"pollTimeoutMs": "20000", "readFromSlaves": "true", **given}
            puller = RangePuller(master.address, options(nameServer=names.address, **given))
            try:
                pulled = list(puller.pull(QueueRange(QUEUE, start, end)))
            finally:
                puller.close()
    return [each.queue_offset for part in pulled for each in decode_records(bytes(part.records))]


def test_a_slave_that_the_broker_suggests_is_read_from():
    # Of 625 pulls the master has those that are open when its first answer comes.
    broker = Broker(Queue(20_000), Queue(20_000))
    assert read_with_slave(broker, end=20_000) == list(range(20_000))
    assert len(broker.slave.pulls) > 300
    assert len(broker.master.pulls) < 300


def test_without_the_option_suggestions_are_not_heeded():
    broker = Broker(Queue(3000), Queue(3000))
    assert read_with_slave(broker, readFromSlaves="false") == list(range(3000))
    assert broker.slave.pulls == []


def test_a_slave_that_is_behind_loses_nothing():
    broker = Broker(Queue(3000), Queue(1000))
    assert read_with_slave(broker) == list(range(3000))
    assert broker.slave.pulls
    assert broker.master.pulls[-1][0] > 2000


def test_a_slave_without_old_messages_loses_nothing():
    broker = Broker(Queue(3000), Queue(3000))
    broker.slave.minimum = 2500
    assert read_with_slave(broker) == list(range(3000))


def test_a_slave_is_read_while_its_master_is_away():
    broker = Broker(Queue(3000), Queue(3000))
    broker.suggests = {0: 0, 1: 0}
    broker.master_is_away = True
    assert read_with_slave(broker) == list(range(3000))
    assert broker.master.pulls == []


def test_the_next_task_of_a_process_takes_the_connection_of_the_last():
    queue = Queue(100)
    with ThreadedBroker(queue) as broker:
        for _ in range(5):
            assert pull(broker, 0, 100)[0] == list(range(100))
        assert broker.connections == 1
        pull(broker, 0, 100, accessKey="account-1", secretKey="12345678")
        assert broker.connections == 2


def test_a_connection_with_open_requests_is_not_kept():
    with ThreadedBroker(Queue(3000)) as broker:
        puller = RangePuller(broker.address, options())
        pulled = puller.pull(QueueRange(QUEUE, 0, 3000))
        for _ in range(3):
            next(pulled)
        puller.close()
        assert pull(broker, 0, 3000)[0] == list(range(3000))
        assert broker.connections == 2


def test_a_kept_connection_that_the_broker_has_closed_is_not_used():
    queue, closing = Queue(100), []
    with ThreadedBroker(lambda request: None if closing else queue(request)) as broker:
        pull(broker, 0, 100)
        key = Connector(None, False).key(broker.address)
        connection = POOL.take(key)
        assert connection is not None
        closing.append(True)
        connection.send(RemotingCommand.request(RequestCode.GET_MAX_OFFSET))
        wait_until(lambda: not connection.is_quiet(), what="the broker to close it")
        POOL.give(key, connection)
        assert POOL.take(key) is None
        assert connection.closed


def test_only_so_many_connections_are_kept_and_not_for_long(monkeypatch):
    pool = ConnectionPool()
    with ThreadedBroker(Queue(1)) as broker:
        made = [BlockingConnection(broker.address) for _ in range(POOLED_MAX + 2)]
        for connection in made:
            pool.give("key", connection)
        assert [connection.closed for connection in made] == [True] * 2 + [False] * POOLED_MAX
        assert pool.take("other") is None
        assert pool.take("key") is made[-1]
        monkeypatch.setattr(pull_module, "IDLE_SECONDS_MAX", -1.0)
        assert pool.take("key") is None
        made[-1].close()
        assert all(connection.closed for connection in made)


def test_a_condition_that_the_broker_does_not_take_is_an_error_at_once():
    asked = []

    def refuse(request):
        asked.append(request.ext_fields)
        remark = "The broker does not support consumer to filter message by SQL92"
        return request.response(ResponseCode.SYSTEM_ERROR, remark)

    given = {"subExpressionType": "SQL92", "subExpression": "a > 5", "pollTimeoutMs": "60000"}
    with ThreadedBroker(refuse) as broker, pytest.raises(BrokerError, match="does not support"):
        pull(broker, 0, 10, **given)
    assert len(asked) == 1
    assert (asked[0]["expressionType"], asked[0]["subscription"]) == ("SQL92", "a > 5")
