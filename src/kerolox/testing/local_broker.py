"""A name server and a broker in a thread of this process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from kerolox.addresses import join_address
from kerolox.admin import Access, Admin
from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.client import Credentials, PullConsumer, PullConsumerSettings, PullStatus
from kerolox.client.sync._portal import Portal
from kerolox.config import refuse_unknown, setting_keys
from kerolox.errors import ConfigError, KeroloxError, TopicRouteNotFoundError
from kerolox.message import MessageExt
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.remoting.client import RemotingClient
from kerolox.testing.clock import Clock

HOST = "127.0.0.1"
WHERE = "the settings of LocalBroker"

SMALL_FILES: Mapping[str, object] = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 20_000 * 20,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
    # A full disk of a developer's machine is no reason to refuse what a test sends.
    "disk_space_warning_level_ratio": 1.0,
    "disk_space_clean_forcibly_ratio": 1.0,
}
"""What differs from the defaults of a broker: files that are made in no time."""

CLOCK_SECONDS = 0.01
"""How often the store hears of the time after the clock was turned."""

POLL_SECONDS = 0.02
"""How often the store is examined while messages are waited for."""

HEARTBEAT_SECONDS_MAX = 5.0
"""How long producers of open transactions are waited for."""

READER_GROUP = "kerolox-testing"
"""The group of what reads messages for tests."""

MESSAGES_MAX = 1_000_000
"""Most messages that :meth:`LocalBroker.messages` gives."""


class LocalBroker:
    """A name server and a broker of this process alone, on free ports, in a temporary folder.

    Everything is real but the place: requests, files, long polls, delays. It runs in a thread of
    its own, so blocking and asyncio clients of any thread may use it, those of other processes
    too. Its methods block for a moment; they may be called in an event loop, except for
    :meth:`messages` with a ``count`` that clients of that loop have yet to send.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        kernel: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            settings: of the broker, by their names in ``broker.conf``, such as
                ``{"enablePropertyFilter": "true"}``. Files are small unless these say otherwise.
                Those of TLS (``tls.server.mode`` ...) hold for the name server as well.
            folder: where it stores; stays when the broker is closed. None: a temporary one.
            kernel: native or python; None: the native one when it is installed.
            credentials: an account for what the methods of this class ask, where the settings
                demand one (``aclEnable``); it has to be an administrator's.

        Raises:
            ConfigError: a setting is unknown or wrong.
        """
        self.clock: Clock = Clock()
        """The broker's time; :meth:`advance` turns it."""
        self._given = dict(settings or {})
        refuse_unknown(self._given, setting_keys(BrokerConfig), WHERE)
        self._config("", tempfile.gettempdir())
        self._folder = folder
        self._kept = folder is not None
        self._kernel = kernel
        self._credentials = credentials
        self._portal = Portal("LocalBroker")
        self._running: _Running | None = None
        self._missed: set[str] = set()
        """Producer groups that were waited for in vain."""

    def __repr__(self) -> str:
        where = f"at {self._running.name_server}" if self._running else "not running"
        return f"<LocalBroker {where}>"

    # -- life ---------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def start(self) -> None:
        """Start both servers; when this returns clients can use them. Idempotent.

        Raises:
            ConfigError, StoreError: as the servers themselves.
        """
        if self._running is not None:
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kerolox-test-"))
        try:
            self._running = self._portal.open(self._open)
        except BaseException:
            self._remove()
            raise

    def close(self) -> None:
        """Stop both servers and remove the temporary folder; bounded. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            self._portal.shut(running.stack.aclose)
        self._remove()

    def restart(self) -> None:
        """Stop the broker as SIGTERM does and start it again on its port and its files, while the
        name server and the clients stay."""
        self._portal.run(self._restart(self._up))

    def _remove(self) -> None:
        if not self._kept and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # -- what tests ask for ---------------------------------------------------------------------
    @property
    def name_server(self) -> str:
        """The name server's ``host:port``: what clients are given.

        Raises:
            KeroloxError: it does not run.
        """
        return self._up.name_server

    @property
    def address(self) -> str:
        """The broker's ``host:port``."""
        return self._up.broker.address

    def advance(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Turn the broker's clock ahead. What becomes due is done when this returns: delayed
        messages, and those for a moment, are delivered, what was popped comes again when its time
        is over, producers are asked about open transactions (halves that are older than
        ``transactionTimeOut``, 6 s), files older than ``fileReservedTime`` are deleted.

        Connected clients stay: they count as alive all the time, and so do locks of queues.

        Raises:
            ConfigError: the time is negative.
        """
        turned_ms = round(((days * 24 + hours) * 3600 + minutes * 60 + seconds) * 1000)
        if turned_ms < 0:
            raise ConfigError(f"the clock can't be turned back ({turned_ms} ms)")
        self._portal.run(self._advance(self._up, turned_ms))

    def create_topic(self, name: str = "", *, queues: int = 4) -> str:
        """Create a topic; its name, a new one when none is given.

        Raises:
            MessageRejectedError: the name is illegal.
            TopicExistsError: it is there.
        """
        topic = name or f"topic-{uuid.uuid4().hex[:12]}"
        self._portal.run(Admin.on(self._up.access).create_topic(topic, queues=queues))
        return topic

    def messages(
        self, topic: str, *, count: int = 0, timeout_seconds: float = 5.0
    ) -> list[MessageExt]:
        """All messages of a topic, in the order in which they were stored.

        Args:
            topic: its name; one that is not there has no messages.
            count: wait until there are so many at least.
            timeout_seconds: wait no longer.

        Raises:
            KeroloxError: there are fewer than ``count`` in time.
        """
        return self._portal.run(self._messages(self._up, topic, count, timeout_seconds))

    @property
    def _up(self) -> _Running:
        if self._running is None:
            raise KeroloxError("the LocalBroker does not run; use it in a with statement")
        return self._running

    # -- in the loop of its thread ----------------------------------------------------------------
    def _config(self, name_server: str, folder: Path | str, port: int = 0) -> BrokerConfig:
        config = BrokerConfig.load(
            None,
            broker_name="broker-test",
            listen_host=HOST,
            broker_ip1=HOST,
            broker_ip2=HOST,
            listen_port=port,
            # A port that the system gave has none, so a restart on it would take one more.
            vip_port_enable=False,
            namesrv_addr=name_server,
            store_path_root_dir=Path(folder) / "store",
            # Nobody else can be on the port of the name server.
            tls_client_auth_server=False,
            **SMALL_FILES,
        )
        return config.changed(self._given, WHERE)

    async def _open(self) -> _Running:
        assert self._folder is not None
        async with AsyncExitStack() as stack:
            (self._folder / "namesrv").mkdir(parents=True, exist_ok=True)
            names = NamesrvConfig.load(
                None,
                listen_port=0,
                listen_host=HOST,
                kv_config_path=self._folder / "namesrv" / "kvConfig.json",
                config_store_path=self._folder / "namesrv" / "namesrv.properties",
                **self._config("", self._folder).tls_overrides(),
            )
            servers = await stack.enter_async_context(NameServer(names))
            address = join_address(HOST, servers.port)
            broker = await self._started(self._config(address, self._folder))
            tls = broker.config.tls_to_name_servers()
            remoting = RemotingClient(credentials=self._credentials, tls=tls)
            settings = PullConsumerSettings(credentials=self._credentials, tls=tls)
            reader = PullConsumer(READER_GROUP, address, settings=settings)
            running = _Running(address, broker, Access(remoting, (address,)), reader)
            stack.push_async_callback(running.stop_broker)
            await stack.enter_async_context(remoting)
            await stack.enter_async_context(running.reader)
            running.stack = stack.pop_all()
        return running

    async def _started(self, config: BrokerConfig) -> Broker:
        broker = Broker(config, kernel=self._kernel, clock_ms=self.clock)
        await broker.start()
        broker.parts.background.repeat(CLOCK_SECONDS, _TellTime(self.clock, broker))
        return broker

    async def _restart(self, up: _Running) -> None:
        config, port = up.broker.config, up.broker.port
        await up.stop_broker()
        up.broker = await self._started(self._config(config.namesrv_addr, self._root(), port))

    def _root(self) -> Path:
        assert self._folder is not None
        return self._folder

    async def _advance(self, up: _Running, turned_ms: int) -> None:
        self.clock.ahead_ms += turned_ms
        parts = up.broker.parts
        parts.tables.clients.turned(turned_ms)
        parts.tables.locks.turned(turned_ms)
        await _TellTime(self.clock, up.broker)()
        await parts.writing.schedule.deliver_due()
        await parts.writing.timer.turn()
        await parts.popping.revival.run()
        await self._has_heartbeats(up)
        await parts.writing.transactions.check()
        parts.writing.cleaner.retention.delete_manually()
        await parts.writing.cleaner.clean()

    async def _has_heartbeats(self, up: _Running) -> None:
        """Producers introduce themselves a second after their start; wait for those that are to be
        asked about transactions, once for each group."""
        parts = up.broker.parts
        groups = parts.writing.transactions.open_groups() - self._missed
        deadline = asyncio.get_running_loop().time() + HEARTBEAT_SECONDS_MAX
        while not all(parts.tables.clients.producers(group) for group in groups):
            if asyncio.get_running_loop().time() > deadline:
                self._missed |= groups
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _messages(
        self, up: _Running, topic: str, count: int, timeout_seconds: float
    ) -> list[MessageExt]:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            found = await _stored(up.reader, topic)
            if len(found) >= count:
                return found
            if asyncio.get_running_loop().time() > deadline:
                raise KeroloxError(
                    f"topic {topic!r} has {len(found)} messages after {timeout_seconds} s,"
                    f" not {count}"
                )
            await asyncio.sleep(POLL_SECONDS)


class _TellTime:
    """Has a broker's store see the clock as it is turned."""

    def __init__(self, clock: Clock, broker: Broker) -> None:
        self._clock = clock
        self._broker = broker

    async def __call__(self) -> None:
        if self._clock.ahead_ms:
            self._broker.parts.store.set_clock(self._clock())


class _Running:
    """The servers while they run."""

    stack: AsyncExitStack
    """Ends them."""

    def __init__(
        self, name_server: str, broker: Broker, access: Access, reader: PullConsumer
    ) -> None:
        self.name_server = name_server
        self.broker = broker
        self.access = access
        self.reader = reader

    async def stop_broker(self) -> None:
        """Stop the broker that runs now."""
        await self.broker.stop()


async def _stored(reader: PullConsumer, topic: str) -> list[MessageExt]:
    try:
        queues = await reader.queues(topic)
    except TopicRouteNotFoundError:
        return []
    found: list[MessageExt] = []
    for queue in queues:
        offset = await reader.min_offset(queue)
        while len(found) < MESSAGES_MAX:
            result = await reader.pull(queue, offset)
            if result.status is not PullStatus.FOUND:
                break
            found += result.messages
            offset = result.next_offset
    return sorted(found, key=lambda message: message.commit_log_offset)
