"""The one buffer that all connections of an event loop read into."""

from __future__ import annotations

import asyncio

from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.remoting.connection import READ_BUFFER_BYTES, read_buffer_of
from kerolox.remoting.server import RemotingServer, ServerConnection

CODE, RELAYED = 100, 101


def test_each_loop_has_a_buffer_of_its_own_as_long_as_it_is_there() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        assert read_buffer_of(first) is read_buffer_of(first)
        assert read_buffer_of(first) is not read_buffer_of(second)
        assert len(read_buffer_of(first)) == READ_BUFFER_BYTES
    finally:
        first.close()
        second.close()


async def test_servers_and_clients_of_a_loop_share_it_and_mix_nothing_up() -> None:
    sizes = [1, 10_000, 300_000, 3]
    client = RemotingClient()

    async def echo(
        command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        return command.response(body=command.body)

    async def relay(
        command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        request = RemotingCommand.request(CODE, body=command.body)
        answer = await client.invoke(f"127.0.0.1:{behind.port}", request, timeout_seconds=30)
        return command.response(body=answer.body)

    behind = RemotingServer(echo, host="127.0.0.1", port=0)
    before = RemotingServer(relay, host="127.0.0.1", port=0)
    await behind.start()
    await before.start()
    try:
        async with client:

            async def ask(number: int) -> None:
                body = bytes([number % 251]) * sizes[number % len(sizes)]
                request = RemotingCommand.request(RELAYED, body=body)
                answer = await client.invoke(
                    f"127.0.0.1:{before.port}", request, timeout_seconds=30
                )
                assert answer.body == body

            await asyncio.gather(*(ask(number) for number in range(100)))
    finally:
        await before.stop()
        await behind.stop()
