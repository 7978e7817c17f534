"""Each request code of a name server, as bytes on the wire would ask and be answered."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest
from tests.support.slices import each_step_is_a_turn

from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.handlers import NameServerHandlers
from kerolox.namesrv.key_values import KeyValues
from kerolox.namesrv.route_table import RouteTable
from kerolox.properties import parse_properties
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.registration import RegisterBody, encode_registration

ADDRESS = "10.0.0.1:10911"


class FakeConnection:
    def __init__(self, connection_id: int = 5, host: str = "10.0.0.9") -> None:
        self.connection_id = connection_id
        self.peer = (host, 40_000)
        self.remote_address = f"{host}:40000"
        self.certificate_subject: str | None = None
        self.audited: dict[str, str] = {}
        self.closed = False


class Server:
    """Handlers with a clock to turn by hand."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.now_ms = 1_000_000
        self.folder = folder
        self.config = NamesrvConfig(
            kv_config_path=folder / "kvConfig.json",
            config_store_path=folder / "namesrv.properties",
            **settings,
        )
        self.routes = RouteTable()
        self.key_values = KeyValues(self.config.kv_config_path)
        self.handlers = NameServerHandlers(
            self.config, self.routes, self.key_values, lambda: self.now_ms
        )

    async def ask(
        self,
        code: int,
        body: bytes = b"",
        *,
        version: int = 409,
        connection: FakeConnection | None = None,
        **fields: object,
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, fields, body=body)
        command.version = version
        wire = RemotingCommand.decode(command.encode()[4:])
        answer = await self.handlers.handle(wire, connection or FakeConnection())
        assert answer is not None
        return RemotingCommand.decode(answer.encode()[4:])

    async def register(self, *topics: str, compressed: bool = False, **fields: object):
        body = registration(*topics, compressed=compressed)
        given = REGISTER | {"bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF, "compressed": compressed}
        return await self.ask(RequestCode.REGISTER_BROKER, body, **(given | fields))


REGISTER = {
    "brokerName": "broker-a",
    "brokerAddr": ADDRESS,
    "clusterName": "C",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": 0,
}


def registration(*topics: str, compressed: bool = False, counter: int = 1) -> bytes:
    table = TopicConfigTable(
        data_version=DataVersion(counter=counter, timestamp=7),
        topic_config_table={t: TopicConfig(topic_name=t, topic_sys_flag=1) for t in topics},
    )
    return encode_registration(
        RegisterBody(topic_config_serialize_wrapper=table), compressed=compressed
    )


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def wrapper(table: bytes) -> bytes:
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":%s}}' % table


# -- registration -------------------------------------------------------------------------------
@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registration_makes_a_route(server: Server, compressed: bool) -> None:
    answer = await server.register("T", compressed=compressed)
    assert (answer.code, answer.body, answer.ext_fields) == (0, b"", {})
    queues = server.routes.topics["T"]["broker-a"]
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (16, 16, 6)
    # The compressed form has no place for the system flag.
    assert queues.topic_sys_flag == (0 if compressed else 1)
    assert server.routes.live[ADDRESS].last_update_ms == server.now_ms
    assert server.routes.live[ADDRESS].connection == 5


async def test_a_body_that_fails_its_checksum_is_refused(server: Server) -> None:
    answer = await server.register("T", bodyCrc32=1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert server.routes.live == {}


async def test_a_body_without_a_checksum_is_taken(server: Server) -> None:
    assert (await server.register("T", bodyCrc32=0)).code == 0
    assert (await server.register("T", bodyCrc32=None)).code == 0


async def test_a_registration_without_a_body_has_no_topics(server: Server) -> None:
    assert (await server.ask(RequestCode.REGISTER_BROKER, **REGISTER)).code == 0
    assert server.routes.live[ADDRESS].data_version == DataVersion(counter=0, timestamp=0)


async def test_a_broker_before_3_0_11_sends_only_its_topics(server: Server) -> None:
    table = TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T")})
    answer = await server.ask(
        RequestCode.REGISTER_BROKER, encode_body(table), version=36, **REGISTER
    )
    assert answer.code == 0
    assert "T" in server.routes.topics


async def test_a_registration_with_bare_keys_and_members_of_5_x_is_read(server: Server) -> None:
    body = (
        b'{"filterServerList":null,"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"stateVersion":0,"timestamp":9},"topicConfigTable":{T:{"topicName":"T","perm":6,'
        b'"attributes":{},"readQueueNums":"8","writeQueueNums":8}}}}'
    )
    assert (await server.ask(RequestCode.REGISTER_BROKER, body, **REGISTER)).code == 0
    assert server.routes.topics["T"]["broker-a"].read_queue_nums == 8


@pytest.mark.parametrize(
    ("body", "compressed", "remark"),
    [
        (b"{", False, "the body is no RegisterBody"),
        (b"[]", False, "the body is no RegisterBody"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":4}}}', False, "topicConfigT"),
        (b"not zlib", True, "the compressed registration is corrupt"),
        (zlib.compress(b""), True, "ends before its data version"),
        (zlib.compress(b"\xff\xff\xff\xff"), True, "gives -1 as length of its data version"),
        (zlib.compress(b"\0\0\0\x05{}   "), True, "ends before its topics"),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\1\0\0\0\3a b"), True, "a topic 'a b'"),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\1\0\0\0\x09a b"), True, "in the middle of its topic"),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\0\0\0\0\1["), True, "filter servers"),
        (zlib.compress(b"\0\0\0\x02{}\x7f\0\0\0"), True, "gives 2130706432 as length of its top"),
        (wrapper(b'{"T":{"topicName":"%s"}}' % (b"x" * 256)), False, "has 256 bytes; at most 255"),
        (wrapper(b'{"T":{"topicName":""}}'), False, "a topic without a name"),
        (b"[" * 1000, False, "the body is no RegisterBody"),
        (b'{"a":' + b"[" * 1000, False, "nested deeper than 64"),
        (b"{" + b'"a":1,' * 100 + b'"b":2}', False, "more than 64 members"),
        (b'{"a":"' + b"x" * 70_000 + b'"}', False, "a text is longer than 65536"),
        (b'{"filterServerList":[' + b'"f",' * 64 + b'"f"]}', False, "are 65; at most 64"),
    ],
)
async def test_a_malformed_registration_is_code_1_with_the_reason(
    server: Server, body: bytes, compressed: bool, remark: str
) -> None:
    fields = REGISTER | {"compressed": compressed}
    answer = await server.ask(RequestCode.REGISTER_BROKER, body, **fields)
    assert answer.code == 1
    assert answer.remark is not None
    assert remark in answer.remark
    assert server.routes.live == {}


@pytest.mark.parametrize("name", list(REGISTER))
async def test_a_missing_header_field_is_code_1_and_named(server: Server, name: str) -> None:
    fields = {key: value for key, value in REGISTER.items() if key != name}
    answer = await server.ask(RequestCode.REGISTER_BROKER, **fields)
    assert (answer.code, answer.remark) == (1, f"the custom field <{name}> is null")


async def test_a_header_field_of_the_wrong_type_is_code_1_and_named(server: Server) -> None:
    answer = await server.ask(RequestCode.REGISTER_BROKER, **(REGISTER | {"brokerId": "zero"}))
    assert answer.code == 1
    assert answer.remark is not None
    assert "<brokerId>" in answer.remark


async def test_a_slave_is_told_of_its_master(server: Server) -> None:
    await server.register("T")
    answer = await server.register(brokerId=1, brokerAddr="10.0.0.2:10911")
    assert answer.ext_fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": ADDRESS}


async def test_a_registration_is_answered_with_the_ordered_topics(server: Server) -> None:
    await server.ask(
        RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"
    )
    answer = await server.register("T")
    assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}


async def test_an_unregistration_takes_the_route_away(server: Server) -> None:
    await server.register("T")
    fields = {key: REGISTER[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    assert (await server.ask(RequestCode.UNREGISTER_BROKER, **fields)).code == 0
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 17


async def test_a_broker_asks_whether_it_must_register(server: Server) -> None:
    fields = {key: REGISTER[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    code = RequestCode.QUERY_DATA_VERSION
    unknown = await server.ask(code, b'{"counter":1,"timestamp":7}', **fields)
    assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")
    await server.register("T")
    server.now_ms += 1000
    same = await server.ask(code, b'{"counter":1,"timestamp":7}', **fields)
    assert same.ext_fields == {"changed": "false"}
    assert same.body == b'{"counter":1,"timestamp":7}'
    assert server.routes.live[ADDRESS].last_update_ms == server.now_ms
    other = await server.ask(code, b'{"counter":2,"timestamp":7}', **fields)
    assert other.ext_fields == {"changed": "true"}
    assert (await server.ask(code, b"?", **fields)).code == 1


async def test_a_claim_on_a_live_brokers_place_is_refused_loudly(server: Server, caplog) -> None:
    await server.register("T")
    elsewhere = FakeConnection(6, "10.0.0.6")
    answer = await server.register("T", connection=elsewhere, brokerAddr="10.0.0.6:10911")
    assert answer.code == 1
    assert answer.ext_fields == {"conflictsWith": ADDRESS}
    for told in (answer.remark, caplog.text):
        assert told is not None
        assert "10.0.0.6:10911" in told
        assert ADDRESS in told
    [line] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "registration refused" in line.message
    caplog.clear()
    again = await server.register("T")
    assert again.code == 0
    assert "10.0.0.6:10911" in again.ext_fields["challengedBy"]
    assert "10.0.0.6:10911, which comes from 10.0.0.6, which is refused" in caplog.text
    assert (await server.register("T")).ext_fields == {}


async def test_only_the_registering_connection_unregisters_a_broker(server: Server, caplog) -> None:
    await server.register("T")
    fields = {key: REGISTER[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    code = RequestCode.UNREGISTER_BROKER
    answer = await server.ask(code, connection=FakeConnection(6, "10.0.0.6"), **fields)
    assert answer.code == 1
    assert "10.0.0.6:40000 may not unregister" in caplog.text
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0


async def test_a_broker_that_asks_on_another_connection_has_to_register_there(
    server: Server,
) -> None:
    await server.register("T")
    fields = {key: REGISTER[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    version = b'{"counter":1,"timestamp":7}'
    code, other = RequestCode.QUERY_DATA_VERSION, FakeConnection(6)
    server.now_ms += 1000
    answer = await server.ask(code, version, connection=other, **fields)
    assert answer.ext_fields == {"changed": "true"}
    assert server.routes.live[ADDRESS].last_update_ms == server.now_ms - 1000
    too_long = await server.ask(code, version + b" " * 4096, **fields)
    assert too_long.code == 1


FIVE = (
    "78da8550df4fc230106e7cf71ff0c5651a8d09ea060e706f6c7440dc0f5ceb7431e682a404021bd80d8d21feefb6"
    "181ea0017bd76b72f77dd7bb0f21d45ce9c3f9322f19d76da3a217e5a06409e3c5649eaf13e5246322992d74db6c"
    "dc5bb59a51af1a0dc3fa41081d8b5b8983472029011ab74202dd96ef018dfa3d573385d535d20b3b3e06daea682b"
    "c9b974583e1c67033ea5a2af661ad5bbbfa0424fa8f32c4a5a535843a95a3cfb80e2bb801827bd04831f75a0cd46"
    "83e5ac7467cb422cb426aa6dcf08963362420f0e7a45dc2e6e3fc99444c18b389ad994ae826fb67f1633f5fdf4b0"
    "0e9bf1bfc68ccd40caccf7406fb7258efaffab7c11791ec1148228c16dc0090ee91ee4f98e66665dba2af7e93b9f"
    "4f19bf1e4d3ed9ba950ab1372b913474c189a3071c438003473cbb6c53611fbdbe89887e01ed28b695"
)
"""What a 5.3.3 broker with ``compressedRegister`` and ``enableSlaveActingMaster`` sent."""

FIVE_FIELDS = {
    "heartbeatTimeoutMillis": "10000",
    "brokerId": "0",
    "bodyCrc32": "2105769318",
    "clusterName": "DefaultCluster",
    "brokerAddr": "127.0.0.1:24411",
    "enableActingMaster": "true",
    "haServerAddr": "127.0.0.1:24412",
    "compressed": "false",
    "brokerName": "broker-five",
}


async def test_a_5_3_broker_registers_asks_and_leaves(server: Server) -> None:
    body = bytes.fromhex(FIVE)
    answer = await server.ask(RequestCode.REGISTER_BROKER, body, version=479, **FIVE_FIELDS)
    assert (answer.code, answer.remark) == (0, None)
    assert len(server.routes.topics) == 13
    queues = server.routes.topics["rmq_sys_REVIVE_LOG_DefaultCluster"]["broker-five"]
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (8, 8, 6)
    names = ("brokerName", "brokerAddr", "clusterName", "brokerId")
    fields = {key: FIVE_FIELDS[key] for key in names}
    version = b'{"counter":0,"stateVersion":0,"timestamp":1795330620705}'
    same = await server.ask(RequestCode.QUERY_DATA_VERSION, version, version=479, **fields)
    assert same.ext_fields == {"changed": "false"}
    assert (await server.ask(RequestCode.UNREGISTER_BROKER, version=479, **fields)).code == 0
    assert server.routes.topics == {}


class TurnOfOthers:
    """Counts the turns that others have while something is awaited."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> TurnOfOthers:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registration_of_many_topics_lets_others_have_their_turns(
    server: Server, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_step_is_a_turn(monkeypatch)
    topics = [f"T{number}" for number in range(3_000)]
    async with TurnOfOthers() as others:
        assert (await server.register(*topics, compressed=compressed)).code == 0
    # Twice through all pieces: once to look, once to take.
    assert others.count >= 2 * 3_000 // 64
    assert len(server.routes.topics) == 3_000
    async with TurnOfOthers() as others:
        listed = await server.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert json.loads(listed.body)["topicList"] == topics
    assert others.count >= 3_000 // 512


async def test_registrations_of_one_connection_are_taken_in_their_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_step_is_a_turn(monkeypatch)
    connection = FakeConnection()
    large = registration(*(f"T{n}" for n in range(2_000)), counter=1)
    small = registration("T0", "New", counter=2)
    code = RequestCode.REGISTER_BROKER
    answers = await asyncio.gather(
        server.ask(code, large, connection=connection, **REGISTER),
        server.ask(code, small, connection=connection, **REGISTER),
    )
    assert [answer.code for answer in answers] == [0, 0]
    assert server.routes.data_version(ADDRESS) == DataVersion(counter=2, timestamp=7)
    assert list(server.routes.topics)[-1] == "New"


async def test_a_small_registration_does_not_wait_for_the_end_of_a_large_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_step_is_a_turn(monkeypatch)
    large = asyncio.ensure_future(
        server.register(*(f"T{n}" for n in range(5_000)), connection=FakeConnection(7))
    )
    await asyncio.sleep(0)
    fields = {"brokerName": "broker-b", "brokerAddr": "10.0.0.8:10911"}
    assert (await server.register("U", connection=FakeConnection(8), **fields)).code == 0
    assert not large.done()
    assert (await large).code == 0


async def test_a_connection_that_closes_meanwhile_registers_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_step_is_a_turn(monkeypatch)
    connection = FakeConnection()
    under_way = asyncio.ensure_future(
        server.register(*(f"T{n}" for n in range(2_000)), connection=connection)
    )
    await asyncio.sleep(0)
    connection.closed = True
    server.handlers.connection_closed(connection.connection_id)
    await under_way
    assert (server.routes.live, server.routes.topics) == ({}, {})


async def test_a_registration_beyond_the_room_is_code_1_and_the_broker_stays(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr("kerolox.namesrv.memory_limiter.ENTRIES_MAX", 4)
    answer = await server.register("A", "B", "C", "D")
    assert answer.code == 1
    assert answer.remark is not None
    assert "no space for another one; delete topics" in answer.remark
    assert "not taken as a whole" in caplog.text
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="A")).code == 0


# -- routes -------------------------------------------------------------------------------------
async def test_a_client_before_4_9_4_gets_bare_keys_and_both_names_of_the_flag(
    server: Server,
) -> None:
    await server.register("T")
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", version=400)
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
        b'[{"brokerName":"broker-a","perm":6,"readQueueNums":16,"topicSynFlag":1,'
        b'"topicSysFlag":1,"writeQueueNums":16}]}'
    )


@pytest.mark.parametrize(
    ("version", "fields"), [(401, {}), (300, {"acceptStandardJsonOnly": True})]
)
async def test_newer_clients_and_those_that_ask_for_it_get_standard_json(
    server: Server, version: int, fields: dict[str, object]
) -> None:
    await server.register("T")
    answer = await server.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", version=version, **fields
    )
    assert json.loads(answer.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": ADDRESS},
                "brokerName": "broker-a",
                "cluster": "C",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 16,
                "topicSysFlag": 1,
                "writeQueueNums": 16,
            }
        ],
    }


async def test_a_topic_without_a_route_is_code_17(server: Server) -> None:
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == 17
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: T")


@pytest.mark.parametrize("setting", [{"order_message_enable": True}, {"cluster_test": True}, {}])
async def test_order_settings_are_in_routes_only_when_enabled(
    tmp_path: Path, setting: dict[str, bool]
) -> None:
    server = Server(tmp_path, **setting)
    await server.key_values.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    await server.register("T")
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    route = fastjson.members_of(fastjson.loads(answer.body))
    assert route.get("orderTopicConf") == ("broker-a:4" if setting else None)


async def test_cluster_info_has_all_brokers_and_clusters_with_bare_keys(server: Server) -> None:
    await server.register("T")
    await server.register(brokerId=1, brokerAddr="10.0.0.2:10911")
    answer = await server.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert answer.body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}},'
        b'"clusterAddrTable":{"C":["broker-a"]}}'
    )


async def test_large_answers_are_made_one_at_a_time_and_in_turns(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        await server.register(
            "T",
            brokerName=f"b{number}",
            brokerAddr=f"10.0.0.1:{number}",
            connection=FakeConnection(number // 50),
        )
    for number in range(3_000):
        server.key_values._table.setdefault("ORDER_TOPIC_CONFIG", {})[f"T{number}"] = "b:1"
    each_step_is_a_turn(monkeypatch)
    asked = [
        (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}),
    ]
    made = 0
    most = 0

    class Counted(asyncio.Lock):
        async def __aenter__(self) -> None:
            nonlocal made, most
            await super().__aenter__()
            made += 1
            most = max(most, made)

        async def __aexit__(self, *args: object) -> None:
            nonlocal made
            made -= 1
            await super().__aexit__(*args)

    monkeypatch.setattr(server.handlers, "_list_lock", Counted())
    monkeypatch.setattr(server.handlers, "_route_lock", server.handlers._list_lock)
    async with TurnOfOthers() as others:
        answers = await asyncio.gather(*(server.ask(c, **f) for c, f in asked for _ in range(5)))
    assert [answer.code for answer in answers] == [0] * 15
    assert most == 1
    assert others.count >= 5 * (100 + 2 * 100) + 3_000 // 256
    bodies = [fastjson.loads(answer.body) for answer in answers[::5]]
    assert len(bodies[0]["brokerAddrTable"]) == len(bodies[1]["queueDatas"]) == 100
    assert len(bodies[2]["table"]) == 3_000


async def test_the_order_of_topics_that_registrations_get_is_never_an_old_one(
    server: Server,
) -> None:
    code, item = RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    for value in ("b:1", "b:2"):
        await server.ask(code, **item, value=value)
        for _ in range(2):
            assert json.loads((await server.register("T")).body) == {"table": {"T": value}}
    await server.ask(RequestCode.DELETE_KV_CONFIG, **item)
    assert json.loads((await server.register("T")).body) == {"table": {}}


async def test_topic_lists(server: Server) -> None:
    await server.register("T", "U")
    lists = {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: b'{"topicList":["T","U"]}',
        RequestCode.GET_UNIT_TOPIC_LIST: b'{"topicList":["T","U"]}',
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: b'{"topicList":[]}',
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: b'{"topicList":[]}',
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: (
            b'{"brokerAddr":"10.0.0.1:10911","topicList":["C","broker-a"]}'
        ),
    }
    for code, body in lists.items():
        assert (await server.ask(code)).body == body
    of_cluster = await server.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C")
    assert of_cluster.body == b'{"topicList":["T","U"]}'
    unknown = await server.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="D")
    assert (unknown.code, unknown.body) == (0, b'{"topicList":[]}')


async def test_a_topic_is_deleted_with_and_without_a_cluster(server: Server) -> None:
    await server.register("T", "U")
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert (await server.ask(code, topic="T", clusterName="other")).code == 0
    assert "T" in server.routes.topics
    assert (await server.ask(code, topic="T", clusterName="C")).code == 0
    assert (await server.ask(code, topic="U")).code == 0
    assert server.routes.topics == {}


async def test_write_permission_is_wiped_and_given_back(server: Server) -> None:
    await server.register("T", "U")
    wiped = await server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext_fields == {"wipeTopicCount": "2"}
    assert server.routes.topics["T"]["broker-a"].perm == 4
    added = await server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext_fields == {"addTopicCount": "2"}
    assert server.routes.topics["T"]["broker-a"].perm == 6


# -- key-values and settings --------------------------------------------------------------------
async def test_key_values_are_put_read_listed_and_deleted(server: Server) -> None:
    item = {"namespace": "N", "key": "k"}
    missing = await server.ask(RequestCode.GET_KV_CONFIG, **item)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: N Key: k")
    assert (await server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")).code == 22
    assert (await server.ask(RequestCode.PUT_KV_CONFIG, **item, value="v")).code == 0
    assert (await server.ask(RequestCode.GET_KV_CONFIG, **item)).ext_fields == {"value": "v"}
    listed = await server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")
    assert listed.body == b'{"table":{"k":"v"}}'
    stored = server.config.kv_config_path
    assert stored.read_text() == '{"configTable":{"N":{"k":"v"}}}'
    assert (await server.ask(RequestCode.DELETE_KV_CONFIG, **item)).code == 0
    assert (await server.ask(RequestCode.DELETE_KV_CONFIG, **item)).code == 0
    assert (await server.ask(RequestCode.GET_KV_CONFIG, **item)).code == 22
    assert (await server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")).code == 0


async def test_a_key_value_that_can_not_be_written_is_code_1(server: Server, caplog) -> None:
    server.config.kv_config_path.mkdir()
    answer = await server.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("can't be written")


async def test_settings_are_read_as_properties(server: Server) -> None:
    answer = await server.ask(RequestCode.GET_NAMESRV_CONFIG)
    settings = parse_properties(answer.body.decode())
    assert settings["listenPort"] == "9876"
    assert settings["orderMessageEnable"] == "false"
    assert settings["kvConfigPath"] == str(server.folder / "kvConfig.json")


async def test_a_setting_is_changed_at_once_and_written(server: Server) -> None:
    server.config.config_store_path.write_text("serverWorkerThreads=9\norderMessageEnable=false\n")
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    assert (await server.ask(code, b"orderMessageEnable=true\n")).code == 0
    assert server.handlers.config.order_message_enable
    written = parse_properties(server.config.config_store_path.read_text())
    assert written["orderMessageEnable"] == "true"
    assert written["serverWorkerThreads"] == "9"
    assert (await server.ask(code)).code == 0


@pytest.mark.parametrize(
    "key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"]
)
async def test_settings_on_the_black_list_stay_as_they_are(server: Server, key: str) -> None:
    answer = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, f"{key}=x\n".encode())
    assert answer.code == 16
    assert str(answer.remark).startswith("Can not update config in black list. ")
    assert key in str(answer.remark)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"orderMessageEnabled=true", "did you mean 'orderMessageEnable'"),
        (b"orderMessageEnable=yes", "'yes' is neither true nor false"),
        (b"a=\\u12", "four hex digits"),
    ],
)
async def test_a_wrong_setting_is_code_1_and_changes_nothing(
    server: Server, body: bytes, remark: str
) -> None:
    answer = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body)
    assert answer.code == 1
    assert answer.remark is not None
    assert remark in answer.remark
    assert not server.config.config_store_path.exists()


async def test_a_code_that_name_servers_do_not_know_is_code_3_and_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for code in (RequestCode.SEND_MESSAGE, RequestCode.HEART_BEAT, 99_999):
        command = RemotingCommand.request(code)
        answer = await server.handlers.handle(command, FakeConnection())
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert str(int(code)) in (answer.remark or "")
        assert f"name server: request code {int(code)} of " in caplog.text
