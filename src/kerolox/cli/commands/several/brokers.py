"""The processes of several brokers: started together, started again when one ends, stopped
together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from kerolox.cli.commands.several import member
from kerolox.cli.commands.several.channel import LINE_BYTES_MAX, Report, Task
from kerolox.cli.process.loop import STOP_SECONDS_MAX
from kerolox.cli.process.notify import VARIABLE
from kerolox.errors import KeroloxError
from kerolox.tasks import end_tasks

RESTART_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""How long a broker that ended waits for its next start: the first time, the second, and so on."""

WELL_SECONDS = 60.0
"""A broker that has answered so long begins with the first of those again."""

STOP_BROKERS_SECONDS_MAX = 2 * STOP_SECONDS_MAX + 1
"""A server's own stop, and then a thread that waits for a disk. After that it is killed."""

_log = logging.getLogger(__name__)


class BrokerProcess:
    """One of them.

    Attributes:
        name: of the broker.
        report: of the one that answers; None: it does not.
        restarts: how often it was started again.
    """

    def __init__(self, task: Task) -> None:
        """Nothing is started."""
        self.name = task.name
        self.report: Report | None = None
        self.restarts = 0
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> Report:
        """Start it and wait until it answers.

        Raises:
            KeroloxError: it ended instead; the text says why.
        """
        ours, its = socket.socketpair()
        with its:
            self._reader, self._writer = await asyncio.open_unix_connection(
                sock=ours, limit=LINE_BYTES_MAX
            )
            self._process = _spawned(its)
        self._writer.write(self._task.encoded())
        line = await self._read_line()
        if not line:
            raise KeroloxError(f"broker {self.name} did not start: it {await self._end()}")
        report = Report.decoded(line)
        if report.error:
            await self._end()
            raise KeroloxError(f"broker {self.name} did not start: {report.error}")
        if not self._task.overrides.get("listen_port"):
            # Its clients know this one. A broker at any free port has no VIP port.
            given = {"listen_port": report.port, "vip_port_enable": False}
            self._task = replace(self._task, overrides={**self._task.overrides, **given})
        self.report = report
        return report

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled."""
        loop = asyncio.get_running_loop()
        tries, since = 0, loop.time()
        reason = ""
        while True:
            if self.report is not None:
                reason = await self._ended()
                if loop.time() - since >= WELL_SECONDS:
                    tries = 0
            pause = RESTART_SECONDS[min(tries, len(RESTART_SECONDS) - 1)]
            _log.error(
                "broker %s %s; it is started again in %g s, the others go on",
                self.name,
                reason,
                pause,
            )
            await asyncio.sleep(pause)
            tries += 1
            self.restarts += 1
            try:
                report = await self.start()
            except KeroloxError as error:
                reason = str(error).removeprefix(f"broker {self.name} ")
            else:
                since = loop.time()
                _log.warning("broker %s answers again at %s", self.name, report.address)

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """End it, in bounded time. Idempotent."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_BROKERS_SECONDS_MAX):
                while self._process is not None and await self._read_line():
                    pass
        except TimeoutError:
            _log.error(
                "broker %s did not stop within %g s and is killed",
                self.name,
                STOP_BROKERS_SECONDS_MAX,
            )
            self.signal(signal.SIGKILL)
        await self._end()

    async def _ended(self) -> str:
        """Wait until it ends; how it did."""
        while await self._read_line():
            pass
        self.report = None
        return await self._end()

    async def _read_line(self) -> bytes:
        """Empty: the process ended, or is about to."""
        assert self._reader is not None
        try:
            return await self._reader.readline()
        except (OSError, ValueError):
            return b""

    async def _end(self) -> str:
        """Take its exit status, and close what was open for it; how it ended."""
        self.report = None
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.close()
        if process is None:
            return ""
        try:
            status = await asyncio.to_thread(process.wait, STOP_BROKERS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            status = await asyncio.to_thread(process.wait)
        if status >= 0:
            return f"ended with status {status}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
        return f"was ended by signal {-status}"


def _spawned(channel: socket.socket) -> subprocess.Popen[bytes]:
    """A process whose stdin is the socket. It takes milliseconds until it is there."""
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", member.__name__],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        env=environment,
        # Ctrl-C of a terminal is for the one that stops all in order.
        start_new_session=True,
    )


class BrokerProcesses:
    """All of them; a role of the command line."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Nothing is started. ``tasks``: of the brokers, in their order."""
        self.members = [BrokerProcess(task) for task in tasks]
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all at once; when this returns, all answer.

        Raises:
            KeroloxError: one did not start; none runs then.
        """
        try:
            starts = [asyncio.ensure_future(each.start()) for each in self.members]
            try:
                await asyncio.gather(*starts)
            finally:
                await end_tasks(*starts)
        except BaseException:
            await self.stop()
            raise
        self._keeping = [asyncio.ensure_future(each.keep()) for each in self.members]

    async def stop(self) -> None:
        """End all at once. Idempotent."""
        await end_tasks(*self._keeping)
        await asyncio.gather(*(each.stop() for each in self.members))

    async def reload_settings(self) -> None:
        """Each reads its settings again, and opens its log anew."""
        for each in self.members:
            if each.report is not None:  # else it reads them anyway
                each.signal(signal.SIGHUP)
