"""The command line on one of the clusters."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.support.servers.command import kerolox

if TYPE_CHECKING:
    import subprocess

    from tests.support.servers.clusters import Cluster


class Shell:
    """Runs commands on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def run(
        self, *arguments: object, code: int | None = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        done = await asyncio.to_thread(
            kerolox, *arguments, "-n", self.cluster.name_server, stdin=stdin
        )
        assert code is None or done.returncode == code, done.stderr
        return done

    async def text(self, *arguments: object) -> str:
        return (await self.run(*arguments)).stdout

    async def json(self, *arguments: object) -> Any:
        return json.loads(await self.text(*arguments, "-o", "json"))
