"""Requests for the settings of a server, which all roles answer alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from kerolox.dynamic_config import DynamicConfig
from kerolox.properties import format_properties
from kerolox.remoting.audit import Audit
from kerolox.remoting.router import Reply, Request


def show_settings(settings: DynamicConfig[Any]) -> Reply:
    """All of them, as ``key=value`` lines."""
    return Reply(body=format_properties(settings.shown()).encode())


async def change_settings(settings: DynamicConfig[Any], audit: Audit, request: Request) -> Reply:
    """Change those in the body of a request, ``key=value`` lines. The remark of the success says
    what is not in force yet. Errors: those of :meth:`DynamicConfig.change`."""
    if not request.body:
        return Reply()
    asker = f"request of {request.connection.remote_address}"
    on_change = partial(audit.changed, request, "settings")
    remark = await settings.change(request.body, asker, on_change)
    return Reply(remark=remark or None)
