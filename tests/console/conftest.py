from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.message import Message
from tests.console.site import running_console
from tests.support.eventually import until
from tests.support.servers.clusters import cluster, java_cluster, our_cluster

if TYPE_CHECKING:
    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster

__all__ = ["cluster", "java_cluster", "our_cluster"]


@pytest_asyncio.fixture
async def console(our_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Console]:
    """With actions, of our broker."""
    async with running_console(tmp_path, our_cluster.name_server) as running:
        yield running


@pytest_asyncio.fixture
async def site(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Console]:
    """A console with actions, of either cluster."""
    async with running_console(tmp_path, cluster.name_server) as running:
        yield running


@pytest_asyncio.fixture
async def topic(site: Console) -> str:
    """A topic with ten messages in two queues."""
    name = f"T{uuid.uuid4().hex[:12]}"
    await site.admin.create_topic(name, queues=2)

    async def is_known() -> bool:
        return name in await site.admin.list_topics()

    await until(is_known)
    for number in range(10):
        await site.admin.send_message(
            Message(
                name,
                json.dumps({"number": number}).encode(),
                tags="even" if number % 2 == 0 else "odd",
                keys=f"key-{number}",
                properties={"number": str(number)},
            ),
            queue_id=number % 2,
        )

    async def are_shown() -> bool:
        # Java's shows messages a moment after it has acknowledged them.
        queues = (await site.admin.describe_topic(name)).queues
        return sum(each.max_offset for each in queues) == 10

    await until(are_shown, what="all ten messages")
    return name


@pytest_asyncio.fixture
async def topic_of_console(console: Console) -> str:
    """A topic of our broker with one message."""
    name = f"T{uuid.uuid4().hex[:12]}"
    await console.admin.create_topic(name, queues=1)

    async def is_known() -> bool:
        return name in await console.admin.list_topics()

    await until(is_known)
    console.expire()  # it may have kept the list of topics of a test before
    await console.admin.send_message(Message(name, b'{"amount": 5}'))
    return name


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group("console"))
    item.add_marker(pytest.mark.timeout(600))
