"""The answers of the slow path, one module per family of requests.

A new request code is a function in one of these modules, under ``@router.on(code, decode)``. When
operators change something by it, it has ``changes=True`` and reports that to ``broker.audit``.
"""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.broker.context import Context
from kerolox.broker.requests import client, pull, send
from kerolox.remoting.router import Router


def _rest() -> Iterable[Router[Context]]:
    from kerolox.broker.requests import (
        accounts,
        admin,
        controller,
        monitor,
        pop,
        pop_acks,
        popped,
        query,
        reply,
        roles,
        timer,
        transaction,
    )

    modules = (reply, transaction, timer, pop, pop_acks, query, admin, accounts, monitor, roles)
    return (each.router for each in (*modules, popped, controller))


ROUTER: Router[Context] = Router(_rest)

for _module in (send, pull, client):
    ROUTER.include(_module.router)
