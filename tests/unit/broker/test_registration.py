"""What a broker tells its name servers, how often, and over what connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.broker.services import registration
from kerolox.message import MessageId
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.registration import RegisterBody
from kerolox.remoting.server import RemotingServer, ServerConnection
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.registration import decode_registration

if TYPE_CHECKING:
    import pytest

    from kerolox.protocol.command import RemotingCommand


class NameServerEar:
    """Hears registrations; answers all with code 0."""

    def __init__(self) -> None:
        self.server = RemotingServer(self._handle, host="127.0.0.1", port=0)
        self.heard: list[RemotingCommand] = []
        self.connections: set[ServerConnection] = set()

        self.answers = asyncio.Event()
        """Set: registrations are answered at once."""
        self.answers.set()

    async def _handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        if command.code == RequestCode.BROKER_HEARTBEAT:
            await self.answers.wait()
        if command.code == RequestCode.REGISTER_BROKER:
            self.heard.append(command)
            self.connections.add(connection)
            await self.answers.wait()
        return command.response()

    async def __aenter__(self) -> NameServerEar:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    def topics(self) -> dict[str, Any]:
        """The topics of the last registration."""
        body = fastjson.loads(self.heard[-1].body)
        table: dict[str, Any] = body["topicConfigSerializeWrapper"]["topicConfigTable"]
        return table


async def test_every_30_seconds_all_topics_go_to_all_name_servers_on_one_connection(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    assert BrokerConfig.load(None).register_name_server_period == 30_000
    monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MIN", 0.01)
    async with NameServerEar() as one, NameServerEar() as two:
        addresses = f"127.0.0.1:{one.server.port};127.0.0.1:{two.server.port}"
        config = small_config(tmp_path, namesrv_addr=addresses, register_name_server_period=10)
        async with Broker(config) as broker, peer_of(broker) as peer:
            await peer.create_topic("T", 3)
            for ear in (one, two):
                heard = len(ear.heard)
                await until(lambda ear=ear, heard=heard: len(ear.heard) >= heard + 3)
                assert len(ear.connections) == 1
                fields = ear.heard[-1].ext_fields
                assert fields["brokerAddr"] == broker.address
                assert (fields["brokerName"], fields["brokerId"]) == ("broker-t", "0")
                assert ear.topics()["T"]["writeQueueNums"] == 3
                assert set(ear.topics()) == set(broker.parts.tables.topics.names)


async def test_a_topic_that_a_send_makes_is_registered_at_once_everywhere(tmp_path):
    async with NameServerEar() as one, NameServerEar() as two:
        addresses = f"127.0.0.1:{one.server.port};127.0.0.1:{two.server.port}"
        config = small_config(tmp_path, namesrv_addr=addresses)
        async with Broker(config) as broker, peer_of(broker) as peer:
            before = len(one.heard)
            assert (await peer.send("Auto")).code == 0
            # A machine under load may ask for another one of those meanwhile.
            assert len(one.heard) > before
            for ear in (one, two):
                assert ear.topics()["Auto"]["writeQueueNums"] == 4


async def test_a_groups_topics_have_a_route_once_the_client_has_its_answer(tmp_path):
    """Its members are looked for by the route of its retry topic, its dead letters by theirs."""
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker, peer_of(broker) as peer:
            await peer.heartbeat("member", "group")
            assert "%RETRY%group" in ear.topics()
            sent = await peer.send("T")
            offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
            fields = {"offset": offset, "group": "group", "delayLevel": -1}
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
            assert "%DLQ%group" in ear.topics()


async def test_a_change_is_registered_without_a_rest_before(tmp_path, monkeypatch):
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker, peer_of(broker) as peer:
            slept: list[float] = []
            sleep = asyncio.sleep

            async def noted(seconds: float) -> None:
                # Everything that waits sleeps by this function while it is in its place.
                if asyncio.current_task() is broker.parts.peers.registration._task:
                    slept.append(seconds)
                await sleep(seconds)

            monkeypatch.setattr("kerolox.broker.services.registration.asyncio.sleep", noted)
            await peer.heartbeat("member", "group")
            assert "%RETRY%group" in ear.topics()
            assert slept == []


async def test_a_name_server_that_answers_no_heartbeat_gets_a_new_connection(
    tmp_path,
):
    """A connection that a cut of the network left goes on seconds later than a new one."""
    async with NameServerEar() as ear:
        config = small_config(
            tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}", send_heartbeat_timeout_millis=20
        )
        async with Broker(config) as broker:
            registration = broker.parts.peers.registration
            await registration.heartbeat()
            assert len(ear.connections) == 1
            ear.answers.clear()
            await registration.heartbeat()
            await until(lambda: len(ear.connections) == 2)
            ear.answers.set()


async def test_changes_during_a_registration_are_the_next_one_together(tmp_path):
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker:
            before = len(ear.heard)
            ear.answers.clear()
            for name in ["A", "B", "C", "D"]:
                broker.parts.tables.topics.put(TopicConfig(topic_name=name))
                await until(lambda: len(ear.heard) == before + 1)
            assert "A" in ear.topics()
            assert "B" not in ear.topics()
            ear.answers.set()
            await until(lambda: len(ear.heard) == before + 2)
            assert {"A", "B", "C", "D"} <= ear.topics().keys()


def put_topics(broker: Broker, prefix: str, count: int) -> set[str]:
    """So many topics more; the names of them."""
    names = {f"{prefix}{number}" for number in range(count)}
    for name in names:
        broker.parts.tables.topics.put(TopicConfig(topic_name=name))
    return names


async def test_a_change_of_a_large_table_is_registered_alone(tmp_path):
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker:
            many = put_topics(broker, "many", registration.ON_THE_SPOT_TOPICS_MAX + 1)
            await until(lambda: many <= ear.topics().keys())
            versions = []
            for name in ("A", "B"):
                put_topics(broker, name, 1)
                await until(lambda name=name: ear.topics().keys() == {f"{name}0"})
                body = decode_registration(ear.heard[-1].body, compressed=False)
                versions.append(body.topic_config_serialize_wrapper.data_version)
                assert versions[-1] == broker.parts.tables.topics.version
            assert versions[0] != versions[1]


async def test_a_large_table_goes_whole_at_each_period(tmp_path, monkeypatch):
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker:
            many = put_topics(broker, "many", registration.ON_THE_SPOT_TOPICS_MAX + 1)
            await until(lambda: many <= ear.topics().keys())
            monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MIN", 0.01)
            monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MAX", 0.01)
            one = put_topics(broker, "one", 1)
            await until(lambda: ear.topics().keys() == one)
            await until(lambda: ear.topics().keys() >= many | one)


async def test_a_new_connection_hears_of_a_large_table_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("kerolox.broker.services.registration.RETRY_SECONDS_MIN", 60.0)
    async with NameServerEar() as ear:
        config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{ear.server.port}")
        async with Broker(config) as broker:
            many = put_topics(broker, "many", registration.ON_THE_SPOT_TOPICS_MAX + 1)
            await until(lambda: many <= ear.topics().keys())
            registers = broker.parts.peers.registration
            registers._client.disconnect(config.name_servers[0])
            one = put_topics(broker, "one", 1)
            await until(lambda: ear.topics().keys() >= many | one)
            assert len(ear.connections) == 2


async def test_who_makes_no_topic_waits_for_no_registration(tmp_path, monkeypatch):
    async with Broker(small_config(tmp_path)) as broker, peer_of(broker) as peer:
        asked = 0

        async def now(*, timeout_seconds: float) -> None:
            nonlocal asked
            asked += 1

        monkeypatch.setattr(broker.parts.peers.registration, "now", now)
        sent = await peer.send("T")
        offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
        fields = {"offset": offset, "group": "group", "delayLevel": -1}
        for expected in (1 + 2, 1 + 2):
            await peer.heartbeat("member", "group")
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
            assert asked == expected


async def test_other_name_servers_are_told_at_once_and_the_former_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MIN", 0.01)
    async with NameServerEar() as one, NameServerEar() as two:
        config = small_config(
            tmp_path,
            namesrv_addr=f"127.0.0.1:{one.server.port}",
            register_name_server_period=10,
            update_namesrv_addr_enable=True,
        )
        async with Broker(config) as broker, peer_of(broker) as peer:
            body = f"namesrvAddr=127.0.0.1:{two.server.port}\n".encode()
            answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            assert answer.code == 0
            assert set(two.topics()) == set(broker.parts.tables.topics.names)
            told = len(one.heard)
            await until(lambda: len(two.heard) >= 3)
            assert len(one.heard) == told


async def test_a_broker_without_name_servers_can_be_given_some(tmp_path):
    config = small_config(tmp_path, update_namesrv_addr_enable=True)
    async with NameServerEar() as ear, Broker(config) as broker:
        async with peer_of(broker) as peer:
            body = f"namesrvAddr=127.0.0.1:{ear.server.port}\n".encode()
            await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert set(ear.topics()) == set(broker.parts.tables.topics.names)


async def test_a_name_server_that_was_restarted_hears_of_the_broker_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("kerolox.broker.services.registration.RETRY_SECONDS_MIN", 0.05)
    async with NameServerEar() as one, NameServerEar() as two:
        addresses = f"127.0.0.1:{one.server.port};127.0.0.1:{two.server.port}"
        async with Broker(small_config(tmp_path, namesrv_addr=addresses)) as broker:
            port, before = two.server.port, len(two.heard)
            await two.server.stop()
            two.server = RemotingServer(two._handle, host="127.0.0.1", port=port)
            await two.server.start()
            await until(
                lambda: len(two.heard) > before and not broker.parts.peers.registration.failing
            )
            assert set(two.topics()) == set(broker.parts.tables.topics.names)


async def test_two_brokers_of_one_name_are_told_and_the_first_stays(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MIN", 0.02)
    monkeypatch.setattr("kerolox.broker.services.registration.RETRY_SECONDS_MIN", 0.02)
    monkeypatch.setattr("kerolox.broker.services.registration.LOG_SECONDS", 0.0)
    namesrv_config = NamesrvConfig(
        listen_port=0,
        listen_host="127.0.0.1",
        kv_config_path=tmp_path / "kvConfig.json",
        config_store_path=tmp_path / "namesrv.properties",
    )

    def told(level: str, *parts: str) -> int:
        lines = [r.message for r in caplog.records if r.levelname == level]
        return sum(all(part in line for part in parts) for line in lines)

    async with NameServer(namesrv_config) as server:
        address = f"127.0.0.1:{server.port}"
        settings = {"namesrv_addr": address, "register_name_server_period": 20}
        first = Broker(small_config(tmp_path / "1", **settings))
        async with first, Broker(small_config(tmp_path / "2", **settings)) as second:
            assert server.routes.brokers["broker-t"].addresses == {0: first.address}
            both = (first.address, second.address)
            # The loser says so at each round, with what to do; the name server and the winner too.
            loser = f"name server {address} refuses this broker"
            await until(lambda: told("ERROR", loser, "another brokerName", *both) >= 3)
            await until(lambda: told("WARNING", "registration refused", *both) >= 3)
            winner = f"name server {address}: another broker claims this one's place"
            await until(lambda: told("WARNING", winner, second.address) >= 1)
            assert list(second.parts.peers.registration.refusals) == [address]
            assert first.parts.peers.registration.refusals == {}
            await first.stop()
            await until(lambda: server.routes.live.keys() == {second.address})
            await until(lambda: not second.parts.peers.registration.refusals)


async def test_the_lines_about_refusals_are_limited_in_time(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("kerolox.broker.services.registration.PERIOD_SECONDS_MIN", 0.01)
    monkeypatch.setattr("kerolox.broker.services.registration.RETRY_SECONDS_MIN", 0.01)
    heard = 0

    async def refuse(command: RemotingCommand, _connection: ServerConnection) -> RemotingCommand:
        nonlocal heard
        heard += 1
        return command.response(1, "no\x1b[2J\nroom")

    server = RemotingServer(refuse, host="127.0.0.1", port=0)
    await server.start()
    config = small_config(
        tmp_path, namesrv_addr=f"127.0.0.1:{server.port}", register_name_server_period=10
    )
    async with Broker(config):
        await until(lambda: heard >= 5)
    await server.stop()
    [line] = [r.message for r in caplog.records if "refuses this broker" in r.message]
    assert "no\\x1b[2J\\nroom" in line


def test_a_registration_that_no_frame_might_hold_is_compressed(monkeypatch):
    topics = {f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(1_000)}
    body = RegisterBody(topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=topics))
    plain, is_compressed = registration._encoded(body, False)
    assert (plain[:1], is_compressed) == (b"{", False)
    monkeypatch.setattr(registration, "UNCOMPRESSED_BYTES_MAX", len(plain) - 1)
    data, is_compressed = registration._encoded(body, False)
    assert is_compressed
    assert len(data) < len(plain) // 10
    assert decode_registration(data, compressed=True) == body
