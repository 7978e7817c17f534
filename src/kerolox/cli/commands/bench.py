"""``kerolox bench``: a load of one's own, its rate and its latency."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import cluster_option, name_server_option
from kerolox.cli.connecting import on_cluster, security
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import clear_status, has_status, output_option, print_line, show_status
from kerolox.cli.rows import Column, is_text, show_row

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kerolox.admin import Admin
    from kerolox.bench import Tally

EXIT_FAILURES = 1
BAR_CHARACTERS = 40
PROGRESS_SECONDS = 0.5

_SIZE = re.compile(r"([0-9]{1,9})\s*(B|KiB|MiB)?", re.IGNORECASE)
_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20}


class SizeType(click.ParamType[int]):
    """Bytes: ``512``, ``1KiB``, ``1MiB``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value))
        if found is None:
            self.fail("write a size such as 512, 1KiB or 1MiB", param, ctx)
        return int(found[1]) * _UNITS[(found[2] or "B").lower()]


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure a cluster with a load of your own.

    Clients are used as programs use them. Without a topic one is made and deleted at the end. Exit
    code: 0 all messages came through, 1 some failed.

    \b
    kerolox bench send --seconds 10 --size 1KiB --concurrency 64
    kerolox bench roundtrip Orders --rate 200 --seconds 30
    kerolox bench consume --count 100000 -o '{messagesPerSecond} {p99Ms}'
    """


def _load_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(
        (
            click.argument("topic", required=False, default="", shell_complete=completing.topics),
            click.option("--count", type=click.IntRange(min=1), help="End after so many messages."),
            click.option(
                "--seconds",
                type=click.FloatRange(min=0, min_open=True),
                help="End after so long; 10 where no count is given.",
            ),
            click.option(
                "--concurrency",
                type=click.IntRange(1, 10_000),
                default=64,
                show_default=True,
                help="Most sends, or calls of a listener, at the same time.",
            ),
            click.option(
                "--size",
                type=SizeType(),
                default=1024,
                show_default="1KiB",
                metavar="SIZE",
                help="Size of each body, as 512, 1KiB or 1MiB.",
            ),
            click.option(
                "--queues",
                type=click.IntRange(1, 1024),
                default=8,
                show_default=True,
                help="Queues of a topic that is made, on each broker.",
            ),
            cluster_option("Where a topic is made; else in the only one."),
            output_option,
            name_server_option,
        )
    ):
        command = option(command)
    return command


_rate_option = click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Messages a second; a latency then counts from when its send was due. Default: no limit.",
)


@bench.command("send")
@_load_options
@_rate_option
def send_command(**given: object) -> int:
    """Send, and wait for each answer."""
    return _run("send", given)


@bench.command("consume")
@_load_options
def consume_command(**given: object) -> int:
    """Consume what TOPIC has, from its beginning, as a group of its own.

    Without a topic one is filled first, with --count messages (100,000). The latency is the age of
    messages when a listener gets them.
    """
    return _run("consume", given)


@bench.command("roundtrip")
@_load_options
@_rate_option
def roundtrip_command(**given: object) -> int:
    """Send, and wait until each message has come to a listener."""
    return _run("roundtrip", given)


def _run(kind: str, given: dict[str, object]) -> int:
    from kerolox.bench import Kind, Load
    from kerolox.bench.running import Clients, run_load

    output, name_server = str(given.pop("output")), str(given.pop("name_server"))
    wanted = {name: value for name, value in given.items() if value is not None}
    kind_of = Kind(kind)
    if "count" not in wanted and "seconds" not in wanted:
        wanted["seconds"] = 10.0 if kind_of is not Kind.CONSUME else 3600.0
    load = Load(kind=kind_of, **wanted)  # type: ignore[arg-type]
    credentials, tls = security()
    clients = Clients(name_server, credentials, tls)

    import asyncio

    async def work(admin: Admin) -> Tally:
        async with contextlib.AsyncExitStack() as stack:

            def shown(tally: Tally) -> None:
                if has_status():
                    showing = asyncio.ensure_future(_progress(tally))
                    stack.push_async_callback(_stop, showing)

            return await run_load(admin, clients, load, on_start=shown)

    tally = on_cluster(name_server, work, many=True)
    _show(tally, output)
    return EXIT_FAILURES if tally.errors else 0


async def _progress(tally: Tally) -> None:
    """A line on the terminal that is written again and again."""
    import asyncio

    messages, seconds = 0, 0.0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        rate = (tally.messages - messages) / max(tally.seconds - seconds, 1e-9)
        messages, seconds = tally.messages, tally.seconds
        failed = f"  {tally.errors.total():,} failed" if tally.errors else ""
        line = (
            f"{seconds:6.1f} s  {messages:,} messages  {rate:,.0f}/s"
            f"  p99 {tally.times.percentile_ms(0.99):.2f} ms{failed}"
        )
        show_status(line)


async def _stop(showing: asyncio.Task[None]) -> None:
    import asyncio

    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)
    clear_status()


def _show(tally: Tally, output: str) -> None:
    times = tally.times
    row: dict[str, object] = {
        "kind": tally.load.kind.value,
        "topic": tally.load.topic,
        "size": tally.load.size,
        "concurrency": tally.load.concurrency,
        "messages": tally.messages,
        "bytes": tally.size,
        "seconds": round(tally.seconds, 3),
        "messagesPerSecond": round(tally.messages_per_second, 1),
        "megabytesPerSecond": round(tally.megabytes_per_second, 3),
        "meanMs": round(times.mean_ms, 3),
        "p50Ms": round(times.percentile_ms(0.5), 3),
        "p90Ms": round(times.percentile_ms(0.9), 3),
        "p99Ms": round(times.percentile_ms(0.99), 3),
        "p999Ms": round(times.percentile_ms(0.999), 3),
        "maxMs": round(times.longest_ms, 3),
        "histogram": [{"untilMs": end, "count": count} for end, count in times.doublings()],
        "failed": tally.errors.total(),
        "errors": dict(tally.errors),
    }
    if not is_text(output):
        show_row(row, [Column(name, name) for name in row], output)
        return
    print_line(f"{tally.messages:,} messages, {tally.size:,} bytes in {tally.seconds:.2f} s")
    print_line(
        f"{tally.messages_per_second:,.0f} messages/s  {tally.megabytes_per_second:,.2f} MB/s"
    )
    if times.count:
        print_line(
            f"{_TIMES[tally.load.kind.value]}: mean {times.mean_ms:.2f} ms  p50 {row['p50Ms']:.2f}"
            f"  p90 {row['p90Ms']:.2f}  p99 {row['p99Ms']:.2f}  p99.9 {row['p999Ms']:.2f}"
            f"  max {times.longest_ms:.2f}"
        )
        _show_bars(list(times.doublings()))
    for name, count in tally.errors.most_common():
        print_line(f"{count:,} failed: {name}")


_TIMES = {
    "send": "until the answer",
    "consume": "age at delivery",
    "roundtrip": "until delivered",
}


def _show_bars(rows: list[tuple[float, int]]) -> None:
    most = max(count for _, count in rows)
    for end, count in rows:
        bar = "█" * max(round(count / most * BAR_CHARACTERS), 1)
        print_line(f"  ≤ {end:12,.3f} ms  {count:>12,}  {bar}")
