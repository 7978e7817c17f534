"""Access control of brokers: accounts and white lists, never a secret."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin.asking import answers_of
from kerolox.console.visit import Visit

__all__ = ["show"]


async def show(visit: Visit) -> Response:
    """What each broker tells. RocketMQ 4.9.8 and Kerolox tell their version only."""
    masters = await visit.console.cluster.masters()
    found, silent = await answers_of(masters, lambda name: visit.admin.acl_config(masters[name]))
    versions, failed = await answers_of(
        masters, lambda name: visit.admin.acl_versions(broker=masters[name])
    )
    return visit.page(
        "acl.html",
        found=found,
        silent={name: str(error) for name, error in silent.items()},
        versions={name: each for name, each in versions.items() if each},
        failed={name: str(error) for name, error in failed.items()},
    )
