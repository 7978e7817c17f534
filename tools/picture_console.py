"""Take the pictures of the console that the documents show, of a shop's cluster that is made up.

    python tools/picture_console.py [--out docs/guides]

The servers, their messages and their state are real. The hour before them in the charts is drawn,
since nobody waits for it. Needs Pillow, which makes the files a third as large.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from tests.console.browsing import console_process, log_in  # noqa: E402
from tests.support.browser import opened_page, running_browser  # noqa: E402
from tests.support.eventually import until  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from kerolox.admin import Admin  # noqa: E402
from kerolox.client import Outcome, Producer, PushConsumer, PushConsumerSettings  # noqa: E402
from kerolox.console.history.sampler import lag_series, rate_series  # noqa: E402
from kerolox.console.history.store import History  # noqa: E402
from kerolox.message import ConsumeFromWhere, Message, MessageQueue  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kerolox.message import MessageExt

FROM_FIRST = PushConsumerSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=0
)
BROKER_NAME = "broker-a"
SENDS_SECONDS = 0.15
TRAFFIC_SECONDS = 25.0
"""Rates of brokers are means of ten seconds."""
COLOURS = 256
LEFT_BEHIND = 80
"""Messages that wait for a group that is paused, and that another has given up."""
PICTURES: tuple[tuple[str, str, bool], ...] = (
    ("overview", "/", False),
    ("group", "/group?name=mailer", True),
    ("messages", "/messages?topic=Orders&from=-5&tags=created", False),
    ("dead-letters", "/dead-letter?group=billing", False),
)
"""File, page, and whether it is in dark colours."""


async def draw_hour(path: Path) -> None:
    """An hour of rates and lag up to now."""
    history = History(path)
    now = int(time.time())
    for minute in range(60, 0, -1):
        wave = math.sin(minute / 9)
        behind = max(0, 20 - abs(minute - 25)) * 30.0  # a stop of some minutes, and the way back
        await history.add(
            now - 60 * minute,
            {
                rate_series("in"): 6.5 + wave,
                rate_series("out"): 6.5 + wave - (2 if 25 < minute < 45 else -1),
                lag_series(): LEFT_BEHIND + behind,
                lag_series("mailer"): 3 + behind,
            },
        )
    await history.close()


async def give_up(_: list[MessageExt]) -> Outcome:
    return Outcome.dead_letter("card expired")


async def take(_: list[MessageExt]) -> None:
    return


async def fill(admin: Admin, name_server: str) -> None:
    """What is there before anybody looks."""
    for topic, queues in (("Orders", 4), ("Payments", 2), ("Shipping", 2)):
        await admin.create_topic(topic, queues=queues)
    async with Producer("shop", name_server) as producer:
        for number in range(LEFT_BEHIND):
            body = {"order": number, "customer": {"name": "Ada"}, "amount": 10 + number}
            message = Message("Payments", json.dumps(body).encode(), keys=f"order-{number}")
            await producer.send(message)
        for hours in range(1, 6):
            later = Message("Shipping", b"remind", keys=f"order-{hours}")
            await producer.send(later, deliver_after=timedelta(hours=hours))
    await admin.update_group("analytics", consume_enable=False)
    for queue in range(2):
        payments = MessageQueue("Payments", BROKER_NAME, queue)
        await admin.set_offset("analytics", payments, 0)
    consumer = PushConsumer("billing", name_server, settings=FROM_FIRST)
    consumer.subscribe("Payments", "*", give_up)

    async def all_are_dead() -> bool:
        queues = await admin.dead_letter_queues("billing")
        return sum(each.messages for each in queues) == LEFT_BEHIND

    async with consumer:
        await until(all_are_dead, what="the dead letters")


@contextlib.asynccontextmanager
async def traffic(name_server: str) -> AsyncIterator[None]:
    """Orders that come and are consumed."""

    async def send() -> None:
        for number in itertools.count():
            body = json.dumps({"order": number, "amount": number % 90 + 10}).encode()
            await producer.send(Message("Orders", body, tags="created", keys=f"order-{number}"))
            await asyncio.sleep(SENDS_SECONDS)

    mailer = PushConsumer("mailer", name_server, settings=FROM_FIRST)
    mailer.subscribe("Orders", "created", take)
    async with Producer("shop", name_server) as producer, mailer:
        task = asyncio.create_task(send())
        try:
            yield
        finally:
            task.cancel()


async def run(out: Path, folder: Path) -> None:
    with Up(folder / "up", settings={"brokerName": BROKER_NAME}) as up:
        await draw_hour(folder / "history")
        async with Admin(up.namesrv) as admin:
            await fill(admin, up.namesrv)
        async with traffic(up.namesrv):
            await asyncio.sleep(TRAFFIC_SECONDS)
            with console_process(folder, up.namesrv) as base:
                await asyncio.to_thread(picture_all, base, out)


def picture_all(base: str, out: Path) -> None:
    with running_browser() as browser:
        for name, page, is_dark in PICTURES:
            picture(browser, base, page, out / f"console-{name}.png", is_dark=is_dark)


def picture(browser: Browser, base: str, address: str, path: Path, *, is_dark: bool) -> None:
    options: dict[str, Any] = {"color_scheme": "dark" if is_dark else "light"}
    with opened_page(browser, **options) as page:
        log_in(page, base, "admin", address)
        if address == "/":  # the first look begins the doctor's check
            page.get_by_text("What to do first").wait_for()
        page.wait_for_load_state("networkidle")
        taken = Image.open(io.BytesIO(page.screenshot()))
        taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "guides")
    with tempfile.TemporaryDirectory(prefix="kerolox-pictures-") as folder:
        (Path(folder) / "up").mkdir()
        asyncio.run(run(parser.parse_args().out, Path(folder)))


if __name__ == "__main__":
    main()
