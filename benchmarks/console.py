"""Claim: pages of the console are painted within half a second with 1,000 topics and 500 groups.

A cluster gets so many topics and groups, each group with offsets of one topic, and a group with
dead letters. Chromium then opens each page several times, with an empty cache and answers too old
to be kept, and says when it painted first (``first-contentful-paint``). Topics ordered by what they
hold are opened first of all, by a console that has just started and knows of none.

    python benchmarks/console.py [--topics 1000] [--groups 500] [--letters 100000] [--passes 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.console.site import PASSWORD, users_file
from tests.support.browser import opened_page, running_browser
from tests.support.servers.command import Server
from tests.support.servers.up import Up

from kerolox.admin import Admin
from kerolox.client import Producer
from kerolox.console.cache import KEPT_SECONDS
from kerolox.message import Message, MessageQueue

PAGES = (
    *("/", "/topics", "/topics?page=10", "/topic?name=Topic-0007", "/groups", "/groups?sort=lag"),
    *("/group?name=group-0007", "/messages?topic=Topic-0007", "/brokers", "/dead-letters"),
    *("/dead-letter?group=gives-up", "/topics?sort=messages", "/transactions", "/delayed"),
)
FIRST_PAGE = "/topics?sort=messages"
FIRST = f"{FIRST_PAGE} (first)"
FLOOR_MS = 500
BATCH = 1_000
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
AT_ONCE = 16


async def fill(name_server: str, topics: int, groups: int, letters: int) -> None:
    """Make the topics, the groups and the dead letters."""
    room = asyncio.Semaphore(AT_ONCE)
    async with Admin(name_server) as admin:
        [broker] = (await admin.cluster_info()).nodes()

        async def make(number: int) -> None:
            async with room:
                name = f"Topic-{number:04}"
                await admin.create_topic(name, queues=4)
                await admin.send_message(Message(name, b'{"number": 1}'), queue_id=0)
                if number < groups:
                    queue = MessageQueue(name, broker.broker_name, 0)
                    await admin.update_group(f"group-{number:04}")
                    await admin.set_offset(f"group-{number:04}", queue, 0)

        await asyncio.gather(*map(make, range(topics)))
        for name in ("%DLQ%gives-up", "%RETRY%gives-up"):
            await admin.create_topic(name, queues=1)
        queue = MessageQueue("%DLQ%gives-up", broker.broker_name, 0)
        async with Producer("fills", name_server) as producer:
            for _ in range(0, letters, BATCH):
                batch = [Message(queue.topic, b'{"number": 1}') for _ in range(BATCH)]
                await producer.send_batch(batch, queue=queue)


def paints(base: str, passes: int) -> dict[str, list[float]]:
    """Milliseconds to the first paint of each page."""
    found: dict[str, list[float]] = {path: [] for path in (FIRST, *PAGES)}
    with running_browser() as browser, opened_page(browser) as page:
        page.goto(f"{base}/login")
        page.get_by_label("Name").fill("viewer")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Log out").wait_for()
        session = page.context.new_cdp_session(page)
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})

        def painted(path: str) -> float:
            page.goto(f"{base}{path}")
            while (when := page.evaluate(PAINT)) is None:
                page.wait_for_timeout(20)
            return float(when)

        found[FIRST].append(painted(FIRST_PAGE))
        for _ in range(passes):
            for path in PAGES:
                page.wait_for_timeout(KEPT_SECONDS * 1000 + 100)
                found[path].append(painted(path))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as name:
        folder = Path(name)
        with Up(folder / "up") as up:
            asyncio.run(fill(up.namesrv, chosen.topics, chosen.groups, chosen.letters))
            arguments = ["--users", users_file(folder), "--history", folder / "history"]
            arguments += ["--port", 0, "-n", up.namesrv]
            with Server(folder / "console", "console", *arguments) as server:
                found = paints(f"http://{server.addresses['console']}", chosen.passes)
    for path, times in found.items():
        print(f"{path:28} median {statistics.median(times):6.0f} ms, at most {max(times):6.0f} ms")
    return int(max(map(statistics.median, found.values())) > FLOOR_MS)


if __name__ == "__main__":
    sys.exit(main())
