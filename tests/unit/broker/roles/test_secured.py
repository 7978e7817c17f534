"""Accounts and TLS on every port, the one for slaves too, while master and slave change places."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.admin import Access, Admin
from kerolox.client import (
    Credentials,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    TlsSettings,
)
from kerolox.errors import ClientError
from kerolox.message import Message, MessageQueue
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.remoting.client import RemotingClient
from tests.support.eventually import until
from tests.support.servers.tls import Authority
from tests.unit.broker.replication.pairs import log_of, quick_retries

from .cluster import NAME, Cluster

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

OPERATOR = Credentials("operator", "operator-secret")
WORKER = Credentials("worker-account", "worker-secret")
ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: worker-account
    secretKey: worker-secret
    admin: false
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""


async def test_accounts_and_tls_hold_while_roles_change_and_clients_see_no_error(
    tmp_path: Path, kernel: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.files("127.0.0.1")
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    account = tmp_path / "account.yml"
    account.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    of_servers = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": str(certificate),
        "tls_server_key_path": str(key),
    }
    of_brokers = {
        **of_servers,
        "tls_client_trust_cert_path": str(authority.ca),
        "ha_tls_mode": "enforcing",
        "acl_enable": True,
        "ha_acl_enable": True,
        "acl_file": str(tmp_path / "plain_acl.yml"),
        "namesrv_credentials_file": str(account),
    }
    tls = TlsSettings(ca=authority.ca)
    names = NamesrvConfig.load(
        None, listen_port=0, kv_config_path=tmp_path / "kv.json", **of_servers
    )
    async with (
        NameServer(names) as namesrv,
        RemotingClient(credentials=OPERATOR, tls=tls) as client,
        RemotingClient(credentials=WORKER, tls=tls) as other,
    ):
        admin = Admin.on(Access(client, (f"127.0.0.1:{namesrv.port}",)))
        cluster = Cluster(namesrv, admin, {}, tmp_path, kernel, {})
        try:
            await cluster.start("a", broker_role="SYNC_MASTER", **of_brokers)
            await cluster.start_slave("b", **of_brokers)
            await cluster.until_following("b")
            with pytest.raises(ClientError, match="Need admin permission"):
                await Admin.on(Access(other, admin.access.name_servers)).promote_broker(
                    cluster.at("b")
                )
            await change_places(cluster, tls)
            await until(lambda: log_of(cluster["a"]) == log_of(cluster["b"]) != b"")
        finally:
            await asyncio.gather(*(each.stop() for each in cluster.brokers.values()))


async def change_places(cluster: Cluster, tls: TlsSettings) -> None:
    """Three times, while a worker sends; then it finds each of its messages once."""
    of_worker = {"credentials": WORKER, "tls": tls}
    sent: list[bytes] = []
    is_over = False

    async def send(producer: Producer) -> None:
        while not is_over:
            sent.append(b"%d" % len(sent))
            await producer.send(Message("T", sent[-1]))

    async with Producer("PG", cluster.address, settings=ProducerSettings(**of_worker)) as producer:
        senders = [asyncio.create_task(send(producer)) for _ in range(4)]
        for new, old in (("b", "a"), ("a", "b"), ("b", "a")):
            before = len(sent)
            await until(lambda before=before: len(sent) > before + 50)
            changed = await cluster.admin.promote_broker(cluster.at(new))
            assert changed.not_told == {}
            await cluster.until_following(old)
        is_over = True
        await asyncio.gather(*senders)
    found = []
    settings = PullConsumerSettings(**of_worker)
    async with PullConsumer("lookers", cluster.address, settings=settings) as consumer:
        for number in range(4):
            queue = MessageQueue("T", NAME, number)
            result = await consumer.pull(queue, 0)
            while result.messages:
                found += [each.body for each in result.messages]
                result = await consumer.pull(queue, result.next_offset)
    assert sorted(found) == sorted(sent)
