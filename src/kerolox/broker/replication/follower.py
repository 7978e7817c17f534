"""A slave that follows its master: the connection to ``haListenPort`` (``HAClient``)."""

from __future__ import annotations

import asyncio
import logging

from kerolox.addresses import split_address
from kerolox.broker.config import BrokerConfig
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.sockets import (
    check_seconds,
    read_some,
    replication_settings,
    steady_ms,
)
from kerolox.broker.replication.wire import READ_BYTES, ReplicationError
from kerolox.kernel import ReplicatedLog

CONNECT_SECONDS_MAX = 3.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 5.0
TELL_SECONDS = 60.0
"""Time between two lines that say the same."""

_log = logging.getLogger(__name__)


class Follower:
    """Keeps the log of a slave equal to its master's.

    Attributes:
        is_following: the master sends, and what it sends fits.
    """

    def __init__(self, config: BrokerConfig, store: ReplicatedLog) -> None:
        """Nothing is opened before :meth:`run`."""
        self._config = config
        self._store = store
        self._settings = replication_settings(config)
        self._address = config.ha_master_address
        self._changed = asyncio.Event()
        self._told = ("", 0.0)
        self.is_following = False

    def set_master(self, address: str) -> None:
        """What a name server says of the master's ``haServerAddr``; haMasterAddress is stronger."""
        if not self._config.ha_master_address and address and address != self._address:
            _log.info("the master sends its log at %s", address)
            self._address = address
            self._changed.set()

    async def run(self) -> None:
        """Follow the master, and connect again whenever the connection ends, until cancelled."""
        pause = RETRY_SECONDS_MIN
        while True:
            self._changed.clear()
            began = steady_ms()
            if self._address:
                try:
                    await self._follow(self._address)
                except (ReplicationError, OSError, TimeoutError, ValueError) as error:
                    self._tell(str(error) or f"no answer within {CONNECT_SECONDS_MAX:g} s")
                finally:
                    self.is_following = False
            is_fresh = steady_ms() - began > RETRY_SECONDS_MAX * 1_000
            pause = RETRY_SECONDS_MIN if is_fresh else min(pause * 2, RETRY_SECONDS_MAX)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _follow(self, address: str) -> None:
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
        try:
            file_size = self._config.mapped_file_size_commit_log
            link = MasterLink(self._store, file_size, self._settings, steady_ms())
            writer.write(link.start())
            while address == self._address:
                data = await read_some(reader, READ_BYTES, check_seconds(self._settings))
                now = steady_ms()
                if data == b"":
                    raise ReplicationError("the master closed the connection")
                if data:
                    report = link.received(data, now)
                    if not self.is_following:
                        self.is_following = True
                        self._told = ("", 0.0)
                        _log.info("master %s sends its log", address)
                else:
                    report = b""
                if report := report or link.tick(now):
                    writer.write(report)
                    await writer.drain()
        finally:
            writer.transport.abort()

    def _tell(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if text != self._told[0] or now - self._told[1] >= TELL_SECONDS:
            self._told = (text, now)
            _log.error(
                "master %s: its log does not come, it is tried again: %s", self._address, text
            )
