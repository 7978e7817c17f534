"""The master is gone, and a slave takes its place; and the old one comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.admin.roles import listing
from kerolox.broker.roles import roles
from kerolox.broker.roles.state import RoleError
from kerolox.broker.services import registration
from kerolox.client import Producer
from kerolox.errors import ClientError
from kerolox.message import Message
from kerolox.protocol.bodies import TopicConfig, encode_body
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.roles import RoleAction, RoleChange
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import log_of, quick_retries, until_equal

from .cluster import NAME, Cluster, cluster_of, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def fill(cluster: Cluster, count: int = 40) -> None:
    async with Producer("PG", cluster.address) as producer:
        await asyncio.gather(*(producer.send(Message("T", b"%d" % n)) for n in range(count)))


async def filled_and_left(cluster: Cluster) -> None:
    """Messages, which the slave has; and the master is gone."""
    await fill(cluster)
    await until_equal(cluster["a"], cluster["b"])
    await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
    await cluster.lose_master("a")


async def test_after_a_sync_master_nothing_is_lost_and_no_flag_is_needed(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await filled_and_left(cluster)
        changed = await cluster.admin.promote_broker(cluster.at("b"))
        assert (changed.role, changed.former_master) == ("SYNC_MASTER", "")
        assert cluster.route == {0: cluster.at("b")}
        assert changed.not_listed_at == {}
        queues = cluster["b"].parts.store.queues()
        assert sum(each.max_offset for each in queues if each.topic == "T") == 40
        async with peer_of(cluster["b"]) as peer:
            assert (await peer.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_promoted_slave_has_flushed_what_its_master_had(
    tmp_path: Path, kernel: str
) -> None:
    rarely = {"flush_interval_commit_log": 60_000}
    async with pair_of(tmp_path, kernel, "SYNC_MASTER", **rarely) as cluster:
        await filled_and_left(cluster)
        store = cluster["b"].parts.store
        assert store.flushed_offset < store.max_physical_offset
        await cluster.admin.promote_broker(cluster.at("b"))
        assert store.flushed_offset == store.max_physical_offset


async def test_after_an_async_master_the_command_says_what_may_be_lost(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await filled_and_left(cluster)
        end = cluster["b"].parts.store.max_physical_offset
        with pytest.raises(ClientError, match=f"ends at {end}; its master was ASYNC_MASTER"):
            await cluster.admin.promote_broker(cluster.at("b"))
        assert not cluster["b"].parts.writing.gate.writable
        changed = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert (changed.role, changed.log_end) == ("ASYNC_MASTER", end)
        await fill(cluster)


async def test_a_slave_with_less_than_another_is_not_promoted(tmp_path: Path, kernel: str) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await cluster.start_slave("c", 2)
        await cluster.until_following("c")
        await fill(cluster)
        await until_equal(cluster["a"], cluster["b"])
        await until_equal(cluster["a"], cluster["c"])
        for name in ("b", "c"):
            await cluster[name].parts.peers.replication.tables.take_from(cluster.at("a"))
        await cluster.stop("c")
        await fill(cluster, 1)
        await until_equal(cluster["a"], cluster["b"])
        await cluster.lose_master("a")
        # Of the two slaves that the master had one is missing.
        with pytest.raises(ClientError, match="1 can't be asked"):
            await cluster.admin.promote_broker(cluster.at("b"))
        c = await cluster.start_slave("c", 2)
        for accept_loss in (False, True):
            with pytest.raises(ClientError, match=f"{cluster.at('b')} has more of the log"):
                await cluster.admin.promote_broker(cluster.at("c"), accept_loss=accept_loss)
        changed = await cluster.admin.promote_broker(cluster.at("b"))
        assert changed.not_told == {}
        await until_equal(cluster["b"], c)
        assert cluster.route == {0: cluster.at("b"), 2: cluster.at("c")}


async def test_a_master_that_is_registered_and_silent_may_be_there(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        # It hangs: its connection is open, and nobody answers.
        await cluster["a"].parts.peers.registration.now(timeout_seconds=5)
        await cluster["a"]._ports.close()
        with pytest.raises(ClientError, match="is registered as the master and does not answer"):
            await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert (await cluster.admin.broker_role(cluster.at("b"))).role == "SLAVE"


async def test_a_promotion_says_which_name_server_does_not_list_it_yet(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LISTED_SECONDS", 0.5)
    async with pair_of(tmp_path, kernel) as cluster, RemotingClient() as lost:
        await filled_and_left(cluster)
        # The slave's machine failed, and its old connection looks alive to the name server.
        fields = {
            "brokerName": NAME,
            "brokerAddr": cluster.at("b"),
            "clusterName": cluster["b"].config.broker_cluster_name,
            "haServerAddr": cluster.at("b"),
            "brokerId": 1,
        }
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, fields)
        assert (await lost.invoke(cluster.address, request)).code == ResponseCode.SUCCESS
        changed = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert changed.not_listed_at == {cluster.address: "it lists no master"}


async def test_an_old_master_that_comes_back_starts_as_a_slave(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await filled_and_left(cluster)
        changed = await cluster.admin.promote_broker(cluster.at("b"))
        await fill(cluster)
        back = await cluster.start("a", broker_role="SYNC_MASTER")
        role = await cluster.admin.broker_role(cluster.at("a"))
        assert (role.role, role.broker_id, role.epoch) == ("SLAVE", 1, changed.epoch)
        assert "it starts as a slave of that one" in caplog.text
        await until_equal(cluster["b"], back)
        assert cluster.route == {0: cluster.at("b"), 1: cluster.at("a")}
        # It stays one, whoever is there.
        await cluster.stop("a")
        await cluster.stop("b")
        await cluster.start("a", broker_role="SYNC_MASTER")
        assert (await cluster.admin.broker_role(cluster.at("a"))).role == "SLAVE"


async def test_a_slave_that_stops_is_not_promoted(tmp_path: Path, kernel: str) -> None:
    """Name servers would not hear of it, and the old master could have its place again."""
    change = RoleChange(action=RoleAction.PROMOTE, epoch=1, broker_role="ASYNC_MASTER")
    async with pair_of(tmp_path, kernel) as cluster:
        slave = cluster["b"]
        stopping = asyncio.ensure_future(cluster.stop("b"))
        await asyncio.sleep(0)
        with pytest.raises(RoleError, match="the broker is stopping"):
            await slave.parts.roles.change(change)
        await stopping


async def test_a_slave_that_took_its_tables_from_a_slave_can_be_promoted(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await filled_and_left(cluster)
        await cluster.start_slave("a", broker_id=2)
        tables = cluster["b"].parts.peers.replication.tables
        await tables.take_from(cluster.at("a"))
        assert tables.status.broker_role == "SLAVE"
        changed = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert changed.role == "ASYNC_MASTER"


async def test_an_old_master_takes_no_id_of_a_slave_that_is_away(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await cluster.start_slave("c", broker_id=2)
        await cluster.until_following("c")
        await fill(cluster)
        await until_equal(cluster["a"], cluster["c"])
        await cluster["c"].parts.peers.replication.tables.take_from(cluster.at("a"))
        for name in "ab":
            await cluster.stop(name)
        await until(lambda: set(cluster.route) == {2})
        await cluster.until_left("c")
        await cluster.admin.promote_broker(cluster.at("c"), accept_loss=True)
        await cluster.start("a", broker_role="ASYNC_MASTER")
        role = await cluster.admin.broker_role(cluster.at("a"))
        assert (role.role, role.broker_id) == ("SLAVE", 2)
        await cluster.start_slave("b")
        await cluster.until_following("b")
        assert cluster.route == {n: cluster.at(name) for n, name in enumerate("cba")}


async def test_a_slave_that_starts_without_its_master_is_promoted_to_the_role_of_that(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await filled_and_left(cluster)
        await cluster.stop("b")
        await cluster.start_slave("b")
        status = cluster["b"].parts.roles.status()
        assert (status.master_role, status.remembered_role) == ("", "SYNC_MASTER")
        # What its master was meanwhile it can't know.
        with pytest.raises(ClientError, match="may be lost"):
            await cluster.admin.promote_broker(cluster.at("b"))
        changed = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert changed.role == "SYNC_MASTER"


async def test_an_old_master_that_comes_back_is_promoted_to_the_role_that_it_had(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await filled_and_left(cluster)
        await cluster.admin.promote_broker(cluster.at("b"))
        await cluster.start("a", broker_role="SYNC_MASTER")
        await cluster.lose_master("b")
        changed = await cluster.admin.promote_broker(cluster.at("a"), accept_loss=True)
        assert changed.role == "SYNC_MASTER"


async def test_of_two_slaves_that_were_promoted_unseen_the_later_is_the_master(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await cluster.start_slave("c", broker_id=2)
        await cluster.until_following("c")
        await fill(cluster)
        await until_equal(cluster["a"], cluster["c"])
        for name in "ac":
            await cluster.stop(name)
        await until(lambda: set(cluster.route) == {1})
        await cluster.until_left("b")
        first = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        await cluster.stop("b")
        await cluster.start_slave("c", broker_id=2)
        second = await cluster.admin.promote_broker(cluster.at("c"), accept_loss=True)
        assert second.epoch > first.epoch
        await cluster.start_slave("b")
        await cluster.until_following("b")
        assert cluster.route[0] == cluster.at("c")


async def test_an_old_master_that_was_cut_off_becomes_a_slave_while_it_runs(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "POLL_SECONDS", 0.0)
    async with pair_of(tmp_path, kernel) as cluster:
        await fill(cluster)
        await until_equal(cluster["a"], cluster["b"])
        routes = cluster.namesrv.routes
        live = routes.live[cluster.at("a")]
        routes.unregister(
            address=live.address,
            broker_name=NAME,
            broker_id=0,
            connection=live.connection,
            now_ms=live.last_update_ms,
        )
        change = RoleChange(action=RoleAction.PROMOTE, epoch=1, broker_role="ASYNC_MASTER")
        async with peer_of(cluster["b"]) as peer:
            answer = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, body=encode_body(change))
            assert answer.code == ResponseCode.SUCCESS
        # What it takes from here on the new master has not.
        async with peer_of(cluster["a"]) as peer:
            assert (await peer.send("T", b"aside")).code == ResponseCode.SUCCESS
        await fill(cluster)
        await cluster["a"].parts.peers.registration.now(timeout_seconds=5)
        await until(lambda: cluster.route == {0: cluster.at("b"), 1: cluster.at("a")})
        role = await cluster.admin.broker_role(cluster.at("a"))
        assert (role.role, role.broker_id, role.epoch) == ("SLAVE", 1, 1)
        old, new = cluster["a"], cluster["b"]
        # It starts again in its process, to cut its log.
        await until(lambda: old._is_started and log_of(old) == log_of(new))
        assert list((tmp_path / "a" / "store" / "commitlog-cut").iterdir())


async def test_an_old_master_that_has_the_place_is_told_by_the_newer_one(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No registration comes by itself: one that is refused is enough.
    for name in ("RETRY_SECONDS_MIN", "PERIOD_SECONDS_MIN", "PERIOD_SECONDS_MAX"):
        monkeypatch.setattr(registration, name, 3_600.0)
    async with pair_of(tmp_path, kernel, "SYNC_MASTER") as cluster:
        await filled_and_left(cluster)
        changed = await cluster.admin.promote_broker(cluster.at("b"))
        new = cluster["b"].parts.peers.registration
        # As a name server that was restarted, to which the old master comes first.
        routes = cluster.namesrv.routes
        live = routes.live[cluster.at("b")]
        routes.unregister(
            address=live.address,
            broker_name=NAME,
            broker_id=0,
            connection=live.connection,
            now_ms=live.last_update_ms,
        )
        assert NAME not in routes.brokers
        await cluster.start("a", broker_role="SYNC_MASTER")
        assert cluster.route == {0: cluster.at("a")}
        await new.now(timeout_seconds=60)
        await until(lambda: cluster.route == {1: cluster.at("a")})
        await new.now(timeout_seconds=60)
        assert cluster.route == {0: cluster.at("b"), 1: cluster.at("a")}
        role = await cluster.admin.broker_role(cluster.at("a"))
        assert (role.role, role.broker_id, role.epoch) == ("SLAVE", 1, changed.epoch)
        await until_equal(cluster["b"], cluster["a"])


async def test_a_master_takes_no_messages_while_a_newer_one_was_there_and_is_gone(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await filled_and_left(cluster)
        await cluster.start_slave("c", 2)
        newer = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        await cluster.stop("b")
        back = await cluster.start("a")
        await until(lambda: back.parts.roles.status().newer_epoch == newer.epoch)
        async with peer_of(back) as peer:
            assert (await peer.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert 0 not in cluster.route
        with pytest.raises(ClientError, match=f"what the master of epoch {newer.epoch} took"):
            await cluster.admin.promote_broker(cluster.at("a"))
        changed = await cluster.admin.promote_broker(cluster.at("a"), accept_loss=True)
        assert changed.epoch > newer.epoch
        assert cluster.route == {0: cluster.at("a"), 2: cluster.at("c")}
        await fill(cluster)


async def test_a_demotion_without_anybody_in_its_place_needs_to_be_said(
    tmp_path: Path, kernel: str
) -> None:
    async with cluster_of(tmp_path, kernel) as cluster:
        await cluster.start("a")
        with pytest.raises(ClientError, match="0 slaves follow"):
            await cluster.admin.demote_broker(cluster.at("a"))
        assert await cluster.admin.demote_broker(cluster.at("a"), without_master=True) is None
        role = await cluster.admin.broker_role(cluster.at("a"))
        assert (role.role, role.broker_id) == ("SLAVE", 1)
        with pytest.raises(ClientError, match="is a slave already"):
            await cluster.admin.demote_broker(cluster.at("a"))


async def test_a_new_master_has_no_offset_behind_a_queue_and_every_topic_with_messages(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
        async with peer_of(cluster["a"]) as peer:
            await peer.create_topic("new", queues=12)
            for queue_id in (0, 9):
                await peer.send("new", b"x", queue_id=queue_id)
        await until_equal(cluster["a"], cluster["b"])
        slave = cluster["b"].parts
        assert slave.tables.topics.get("new") is None
        slave.tables.offsets.put_all({"new@G": {0: 1, 9: 7}})
        slave.writing.schedule.set_offsets({1: 5})
        await cluster.lose_master("a")
        await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        made = slave.tables.topics.get("new")
        assert isinstance(made, TopicConfig)
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (10, 10, 6)
        assert slave.tables.offsets.of_topic("G", "new") == {0: 1, 9: 1}
        assert slave.writing.schedule.offsets == {1: 0}
        assert log_of(cluster["b"])


async def test_a_new_master_has_the_topics_that_open_halves_and_delayed_messages_are_for(
    tmp_path: Path, kernel: str
) -> None:
    half = {"f": 4, "properties": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u"}
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            # The topics of halves and of delays are there before the table is taken.
            await peer.create_topic("old")
            await peer.send("old", **half)
            await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
            for topic in ("halves", "delays", "empty"):
                await peer.create_topic(topic, queues=12)
            prepared = await peer.send("halves", queue_id=1, **half)
            delayed = await peer.send("delays", queue_id=9, properties="DELAY\x011")
            assert (prepared.code, delayed.code) == (ResponseCode.SUCCESS,) * 2
        await until_equal(cluster["a"], cluster["b"])
        slave = cluster["b"].parts
        await cluster.lose_master("a")
        await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        queues = {
            topic: found and found.write_queue_nums
            for topic in ("halves", "delays", "empty")
            for found in [slave.tables.topics.get(topic)]
        }
        assert queues == {"halves": 8, "delays": 10, "empty": None}
        assert "halves" in cluster.namesrv.routes.topics
        async with peer_of(cluster["b"]) as peer:
            fields = {
                "producerGroup": "PG",
                "tranStateTableOffset": prepared.ext_fields["queueOffset"],
                "commitLogOffset": int(prepared.ext_fields["msgId"][16:], 16),
                "commitOrRollback": MessageSysFlag.TRANSACTION_COMMIT,
                "fromTransactionCheck": False,
                "msgId": "u",
                "transactionId": "u",
            }
            ended = await peer.ask(RequestCode.END_TRANSACTION, fields)
            assert ended.code == ResponseCode.SUCCESS
            found = await peer.pull("halves", 1)
            assert found.code == ResponseCode.SUCCESS


async def test_a_new_master_has_the_queues_that_its_master_had_added_last(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            for topic in ("sends", "delays", "narrow"):
                await peer.create_topic(topic, queues=4)
            await peer.send("narrow", queue_id=3)
            await peer.create_topic("narrow", queues=2)
            await until_equal(cluster["a"], cluster["b"])
            await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
            for topic in ("sends", "delays"):
                await peer.create_topic(topic, queues=16)
            sent = await peer.send("sends", queue_id=12)
            delayed = await peer.send("delays", queue_id=9, properties="DELAY\x011")
            assert (sent.code, delayed.code) == (ResponseCode.SUCCESS,) * 2
        await until_equal(cluster["a"], cluster["b"])
        slave = cluster["b"].parts
        await cluster.lose_master("a")
        await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        queues = {
            topic: found and found.read_queue_nums
            for topic in ("sends", "delays", "narrow")
            for found in [slave.tables.topics.get(topic)]
        }
        assert queues == {"sends": 13, "delays": 10, "narrow": 2}


async def test_a_planned_promotion_leaves_no_topic_behind_that_its_master_made_meanwhile(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster, peer_of(cluster["a"]) as peer:

        def make(step: str) -> None:
            if "reaches the end" in step:
                # As a send makes one that came just before the pause.
                cluster["a"].parts.tables.topics.create_for_group("late", 5)

        await cluster.admin.promote_broker(cluster.at("b"), on_step=make)
        made = cluster["b"].parts.tables.topics.get("late")
        assert made is not None
        assert made.write_queue_nums == 5
        assert (await peer.send("late", queue_id=4)).code == ResponseCode.SUCCESS
