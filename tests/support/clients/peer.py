"""A real broker in the test's event loop, and a client that speaks to it over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerolox.broker.config import BrokerConfig
from kerolox.protocol.codes import PullSysFlag, RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.remoting.client import RemotingClient
from tests.support.clients.requests import heartbeat_body, pull_fields, send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from kerolox.message import MessageExt
    from kerolox.security.credentials import Credentials

SMALL = {
    "broker_name": "broker-t",
    "broker_ip1": "127.0.0.1",
    "broker_ip2": "127.0.0.1",
    "listen_host": "127.0.0.1",
    "listen_port": 0,
    "namesrv_addr": "",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 2_000,
    "max_message_size": 64 * 1024,
}


def small_config(folder: Path, *, path: Path | None = None, **overrides: Any) -> BrokerConfig:
    """Settings with small files and a free port, beside those of a file."""
    values = {**SMALL, "store_path_root_dir": folder / "store", **overrides}
    return BrokerConfig.load(path, **values)


ASK_SECONDS_MAX = SECONDS_MAX
"""How long a peer waits for an answer; the pulls that are held in tests wait for longer."""


class Peer:
    """One client connection, with a method for each request that tests make often."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address = address
        self.client = client
        self.notices: list[RemotingCommand] = []

    async def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        version: int | None = None,
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, fields, body=body)
        command.serialize_type = serialize_type
        if version is not None:
            command.version = version
        return await self.client.invoke(self.address, command, timeout_seconds=ASK_SECONDS_MAX)

    async def send(
        self,
        topic: str,
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        properties: str = "",
        code: int = RequestCode.SEND_MESSAGE_V2,
        serialize_type: SerializeType = SerializeType.JSON,
        **more: object,
    ) -> RemotingCommand:
        fields = send_fields(**{"b": topic, "e": queue_id, "i": properties, **more})
        return await self.ask(code, fields, body, serialize_type=serialize_type)

    async def pull(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        *,
        group: str = "readers",
        tags: str | None = "*",
        suspend_ms: int = 0,
        sys_flag: int | None = None,
        code: int = RequestCode.PULL_MESSAGE,
        **more: object,
    ) -> RemotingCommand:
        flags = PullSysFlag(0)
        flags |= PullSysFlag.SUBSCRIPTION if tags is not None else PullSysFlag(0)
        flags |= PullSysFlag.SUSPEND if suspend_ms else PullSysFlag(0)
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "sysFlag": int(flags) if sys_flag is None else sys_flag,
            "suspendTimeoutMillis": suspend_ms,
            "subscription": tags,
            **more,
        }
        return await self.ask(code, pull_fields(**fields))

    async def messages(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[MessageExt]:
        return decode_records((await self.pull(topic, queue_id, offset)).body)

    async def create_topic(
        self, topic: str, queues: int = 4, perm: int = 6, **more: object
    ) -> RemotingCommand:
        fields = topic_fields(topic, queues=queues, perm=perm, **more)
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def heartbeat(
        self,
        client_id: str,
        group: str = "readers",
        topics: Mapping[str, str] | None = None,
        *,
        version: int = 1,
        expression_type: str = "TAG",
        model: str = "CLUSTERING",
        consume_type: str = "CONSUME_PASSIVELY",
        codes: list[int] | None = None,
        tags: list[str] | None = None,
        producers: list[str] | None = None,
        mq_version: int | None = None,
    ) -> RemotingCommand:
        body = heartbeat_body(
            client_id,
            group=group,
            topics=topics,
            version=version,
            expression_type=expression_type,
            model=model,
            consume_type=consume_type,
            codes=codes or (),
            tags=tags or (),
            producers=producers or (),
        )
        return await self.ask(RequestCode.HEART_BEAT, body=body, version=mq_version)


@asynccontextmanager
async def peer_at(address: str, credentials: Credentials | None = None) -> AsyncIterator[Peer]:
    """A client of the broker at an address, with a connection of its own."""
    peer: Peer

    async def on_request(command: RemotingCommand, connection: object) -> RemotingCommand | None:
        peer.notices.append(command)
        if command.is_oneway:
            return None
        return command.response(0, "from the client", {"seen": command.code}, body=b"{}")

    async with RemotingClient(on_request=on_request, credentials=credentials) as client:
        peer = Peer(address, client)
        yield peer


@asynccontextmanager
async def peer_of(broker: Broker, credentials: Credentials | None = None) -> AsyncIterator[Peer]:
    """A client with a connection of its own."""
    async with peer_at(f"127.0.0.1:{broker.port}", credentials) as peer:
        yield peer
