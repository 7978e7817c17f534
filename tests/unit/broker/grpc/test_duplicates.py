"""A client of RocketMQ 5 that sends again what was stored: it hears of the first one's place.

Such a client keeps its message's id over its tries, and the id is the ``UNIQ_KEY``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.servers.up import free_port
from tests.unit.broker.grpc.test_fast_sends import request

from kerolox.broker.broker import Broker
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.grpc import messages as pb

KINDS: dict[str, dict[str, Any]] = {
    "NORMAL": {},
    "FIFO": {"message_type": pb.FIFO, "message_group": "g"},
    "DELAY": {
        "message_type": pb.DELAY,
        "delivery_timestamp": {"seconds": int(time.time()) + 3_600},
    },
}


@asynccontextmanager
async def served(folder: Path, kernel: str, **attributes: str) -> AsyncIterator[GrpcPeer]:
    """A client of a broker whose topic T has two queues and a window."""
    config = small_config(folder, grpc_server_port=free_port())
    async with Broker(config, kernel=kernel) as broker:
        attributes = {"dedup.window.ms": "60000", **attributes}
        broker.parts.tables.topics.put(
            TopicConfig(
                topic_name="T", read_queue_nums=2, write_queue_nums=2, attributes=attributes
            )
        )
        async with grpc_peer(config.grpc_server_port) as peer:
            yield peer


async def sent(peer: GrpcPeer, made: Any) -> Any:
    [answer] = await peer.call("SendMessage", made).messages()
    [entry] = answer.entries
    assert answer.status.code == entry.status.code == pb.OK, answer
    return entry


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_try_is_answered_with_the_place_of_the_first(
    tmp_path: Path, kernel: str, kind: str
) -> None:
    async with served(tmp_path, kernel) as peer:
        await sent(peer, request(message_id="another", **KINDS[kind]))
        for name in ("a", "b"):
            first = await sent(peer, request(message_id=name, **KINDS[kind]))
            assert not first.status.message.startswith("duplicate")
            again = await sent(peer, request(message_id=name, delivery_attempt=1, **KINDS[kind]))
            assert (again.message_id, again.offset) == (first.message_id, first.offset)
            assert again.recall_handle == first.recall_handle
            assert again.status.message.startswith("duplicate")


async def test_where_keys_count_the_id_is_that_of_the_message_that_is_there(
    tmp_path: Path, kernel: str
) -> None:
    async with served(tmp_path, kernel, **{"dedup.key": "KEYS"}) as peer:
        first = await sent(peer, request(message_id="a"))
        again = await sent(peer, request(message_id="b"))
        assert (again.message_id, again.offset) == ("a", first.offset)


async def test_of_several_messages_of_a_call_those_that_are_known_are_not_stored(
    tmp_path: Path, kernel: str
) -> None:
    async with served(tmp_path, kernel) as peer:
        first = await sent(peer, request(message_id="a", message_type=pb.FIFO, message_group="g"))
        both = pb.SendMessageRequest(
            messages=[
                request(message_id=each, message_type=pb.FIFO, message_group="g").messages[0]
                for each in ("b", "a")
            ]
        )
        [answer] = await peer.call("SendMessage", both).messages()
        assert answer.status.code == pb.OK
        assert [each.offset for each in answer.entries] == [first.offset + 1, first.offset]
