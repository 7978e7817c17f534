"""The answers of the slow path, one module per family of requests.

A new request code is a function in one of these modules, under ``@router.on(code, decode)``. When
operators change something by it, it has ``changes=True`` and reports that to ``broker.audit``.
"""

from __future__ import annotations

from kerolox.broker.context import Context
from kerolox.broker.requests import (
    accounts,
    admin,
    client,
    monitor,
    pop,
    pop_acks,
    popped,
    pull,
    query,
    reply,
    roles,
    send,
    timer,
    transaction,
)
from kerolox.remoting.router import Router

ROUTER: Router[Context] = Router()

for _module in (
    *(send, reply, transaction, timer, pull, pop, pop_acks, query, client),
    *(admin, accounts, monitor, roles, popped),
):
    ROUTER.include(_module.router)
