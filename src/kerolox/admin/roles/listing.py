"""Whether name servers list a new master: until they do, clients do not find it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.admin.asking import answers_of
from kerolox.admin.cluster import cluster_info_from
from kerolox.client.core.routes import MASTER_ID

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access
    from kerolox.protocol.extensions.roles import RoleStatus

LISTED_SECONDS = 5.0
"""How long name servers may take to list a master that has registered."""

POLL_SECONDS = 0.1


async def not_listed_at(access: Access, master: RoleStatus) -> dict[str, str]:
    """Name servers that do not list a broker as the master of its name → what they have instead,
    or why they do not say. They get ``LISTED_SECONDS``.

    One that holds the broker for alive on another connection refuses it: its machine failed less
    than 90 s ago. The broker registers again and again, and is listed then.
    """

    async def listed(name_server: str) -> str:
        info = await cluster_info_from(access, name_server)
        named = info.brokers.get(master.broker_name)
        return "" if named is None else named.addresses.get(MASTER_ID, "")

    found: dict[str, str] = {}
    try:
        async with asyncio.timeout(LISTED_SECONDS):
            while True:
                answers, failed = await answers_of(access.name_servers, listed)
                found = {
                    name_server: f"it lists {address or 'no master'}"
                    for name_server, address in answers.items()
                    if address != master.address
                }
                silent = {name_server: str(error) for name_server, error in failed.items()}
                if not found:
                    return silent
                found |= silent
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return found or dict.fromkeys(access.name_servers, "it does not answer")
