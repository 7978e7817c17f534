"""One broker of several, as a process of its own: ``python -m`` this module, with a
:class:`~kerolox.cli.commands.several.channel.Task` at stdin.

It ends as any server does, by SIGTERM, and when the one that started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.cli.commands import starting
from kerolox.cli.commands.several.channel import LINE_BYTES_MAX, Report, Task
from kerolox.cli.process import running as process
from kerolox.cli.process.loop import run
from kerolox.errors import KeroloxError

EXIT_ERROR = 1


def main() -> int:
    """Run the broker; the exit status."""
    gc.disable()
    channel = socket.socket(fileno=os.dup(0))
    # The number stays taken, and whatever else reads stdin finds its end.
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    with channel, channel.makefile("rb") as lines:
        if not (line := lines.readline(LINE_BYTES_MAX)):
            return EXIT_ERROR
        task = Task.decoded(line)
        try:
            _serve(task, channel)
        except (KeroloxError, OSError) as error:
            with contextlib.suppress(OSError):
                channel.sendall(Report(error=str(error)).encoded())
            return EXIT_ERROR
    return 0


def _serve(task: Task, channel: socket.socket) -> None:
    log_file = Path(task.log_file) if task.log_file else None
    level = task.log_level or "info"
    process.prepare_server(level, log_file, task.log_format, who=task.name)
    path = Path(task.config_file) if task.config_file else None
    config = BrokerConfig.load_for_start(path, **task.overrides)
    if config.log_level:
        config.use_log_level()
    run(process.serve(_started(config, task, channel), None))


@asynccontextmanager
async def _started(
    config: BrokerConfig, task: Task, channel: socket.socket
) -> AsyncIterator[process.Started]:
    channel.setblocking(False)
    watching = asyncio.ensure_future(_stop_when_alone(channel))
    try:
        server = Broker(config, may_lack_grpc=task.may_lack_grpc)
        async with process.running(server):
            await starting.wait_until_registered(server)
            starting.collect_from_now_on()
            report = Report(
                address=server.address,
                listen_addresses=list(server.listen_addresses),
                port=server.port,
                metrics_port=server.metrics_port,
                lines=starting.broker_lines(server, config),
            )
            with contextlib.suppress(OSError):  # _stop_when_alone finds out
                await asyncio.get_running_loop().sock_sendall(channel, report.encoded())
            yield process.Started({"broker": server.address}, (server,))
    finally:
        watching.cancel()


async def _stop_when_alone(channel: socket.socket) -> None:
    """A broker whose name server is gone with its parent would serve nobody."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while await loop.sock_recv(channel, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
