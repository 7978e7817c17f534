"""``/metrics``, ``/health/live`` and ``/health/ready`` of several brokers at one port.

Each of them serves its own at a port of its own. Their series differ in ``node_id``, the broker's
name, so the families of all are put together as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import h11

from kerolox.metrics.families import Families
from kerolox.metrics.http import HttpAnswer, HttpRequest, HttpServer
from kerolox.metrics.text import TextEncoder, content_type_of

ANSWER_SECONDS_MAX = 5.0
"""How long a broker may take. Prometheus waits for 10 s, and has the others' metrics then."""
ANSWER_BYTES_MAX = 256 << 20
READ_BYTES = 256 * 1024

_HEAD = b"# HELP "
_EOF = b"# EOF\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """Where the metrics of a broker are."""

    port: int
    """0: the broker does not answer now."""
    restarts: int
    """How often it was started again."""


Sources = Mapping[str, MetricsSource]
"""By the name of the broker."""


class MergedMetricsServer:
    """Serves the metrics of several brokers."""

    def __init__(self, host: str, cluster: str, sources: Callable[[], Sources]) -> None:
        """Nothing is opened before :meth:`start`. ``host``: where the brokers serve theirs;
        ``cluster``: of all of them; ``sources``: as they are now."""
        self._host, self._cluster, self._sources = host, cluster, sources
        self._merging = asyncio.Lock()
        self._encoder = TextEncoder()
        self._server = HttpServer(
            {"/metrics": self._metrics, "/health/live": self._live, "/health/ready": self._ready}
        )

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        return self._server.port

    async def start(self, hosts: str, port: int) -> None:
        """Listen on addresses, joined by ``;``. ConfigError: the port can't be opened."""
        await self._server.open(hosts, port, "metricsPromExporterPort")

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        await self._server.close()

    async def _metrics(self, request: HttpRequest) -> HttpAnswer:
        content_type, is_open = content_type_of(request.accept)
        # One at a time: what many ask for at once would be many times the memory.
        async with self._merging:
            sources = self._sources()
            answers = await self._asked(sources, "/metrics", request.accept)
            texts = [body for status, body in answers.values() if status == 200]
            families = Families({"cluster": self._cluster, "node_type": "broker"}, len(sources))
            for name, source in sources.items():
                labels = {"node_id": name}
                is_up = answers.get(name, (0, b""))[0] == 200
                up_text = "1 where this broker's process tells its metrics, else 0"
                families.gauge("kerolox_broker_up", up_text, int(is_up), labels)
                families.counter(
                    "kerolox_broker_restarts_total",
                    "How often this broker's process ended and was started again",
                    source.restarts,
                    labels,
                )
            own = b"".join(self._encoder.parts(families, is_open=is_open))
            return HttpAnswer(list(merged([own, *texts])), content_type)

    async def _live(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"live\n")

    async def _ready(self, request: HttpRequest) -> HttpAnswer:
        sources = self._sources()
        answers = await self._asked(sources, "/health/ready", "")
        lines = [b"not ready\n"]
        for name in sources:
            status, body = answers.get(name, (0, b"not ready\nit does not answer\n"))
            if status != 200:
                reasons = body.removeprefix(b"not ready\n").splitlines()
                lines += [b"%b: %b\n" % (name.encode(), reason) for reason in reasons]
        if len(lines) > 1:
            return HttpAnswer(b"".join(lines), status=503)
        return HttpAnswer(b"ready\n")

    async def _asked(
        self, sources: Sources, path: str, accept: str
    ) -> dict[str, tuple[int, bytes]]:
        """Broker → status and body, of those that answer."""
        ports = {name: source.port for name, source in sources.items() if source.port}
        asked = [_get(self._host, port, path, accept) for port in ports.values()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = {}
        for name, answer in zip(ports, answers, strict=True):
            if isinstance(answer, (OSError, TimeoutError, h11.ProtocolError)):
                _log.warning("broker %s does not tell %s: %s", name, path, answer or "too slow")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        return found


def merged(texts: Iterable[bytes]) -> Iterator[bytes]:
    """One text of several, in parts: a family that many have is there once, with the series of
    all."""
    families: dict[bytes, list[bytes]] = {}
    is_open = False
    for text in texts:
        if text.endswith(_EOF):
            text, is_open = text.removesuffix(_EOF), True
        for block in text.removeprefix(_HEAD).split(b"\n" + _HEAD):
            if not block:
                continue
            name = block.partition(b" ")[0]
            if not block.endswith(b"\n"):
                block += b"\n"
            if name in families:
                # Without the two lines about it.
                families[name].append(block.split(b"\n", 2)[2])
            else:
                families[name] = [_HEAD + block]
    for parts in families.values():
        yield from parts
    if is_open:
        yield _EOF


async def _get(host: str, port: int, path: str, accept: str) -> tuple[int, bytes]:
    """Status and body.

    Raises:
        OSError: nobody answers, or too much.
        TimeoutError: too slowly.
        h11.ProtocolError: it is no HTTP.
    """
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            http = h11.Connection(h11.CLIENT)
            headers = [("Host", host), ("Accept", accept), ("Connection", "close")]
            request = h11.Request(method="GET", target=path, headers=headers)
            writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
            return await _answer(http, reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _answer(http: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, size, parts = 0, 0, []
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > ANSWER_BYTES_MAX:
                raise OSError(f"more than {ANSWER_BYTES_MAX} bytes")
        else:  # the end of the message
            return status, b"".join(parts)
