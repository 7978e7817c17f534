"""What a controller and its operators ask a broker: NOTIFY_BROKER_ROLE_CHANGED (1008),
GET_BROKER_EPOCH_CACHE (1007)."""

from __future__ import annotations

from kerolox.broker.context import Context
from kerolox.broker.errors import system_error
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import MASTER_ID, RequestCode
from kerolox.protocol.controller import EpochEntry, EpochEntryCache
from kerolox.protocol.headers import EmptyHeader
from kerolox.remoting.router import Reply, Request, Router

router: Router[Context] = Router()

_NO_CONTROLLER = "this broker has no controller (enableControllerMode)"


@router.on(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, EmptyHeader.decode)
async def role_changed(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """The controller is asked what has changed; what the notice says does not count."""
    if broker.controlled is None:
        raise system_error(_NO_CONTROLLER)
    broker.controlled.notified()
    return Reply()


@router.on(RequestCode.GET_BROKER_EPOCH_CACHE, EmptyHeader.decode)
async def epoch_cache(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Which master wrote which part of the log. The id is that of a route: 0 of a master."""
    if broker.controlled is None:
        raise system_error(_NO_CONTROLLER)
    table, config, role = broker.controlled.epochs, broker.config, broker.role.current
    entries = [
        EpochEntry(epoch=epoch, start_offset=start)
        if (end := table.end_at(start)) is None
        else EpochEntry(epoch=epoch, start_offset=start, end_offset=end)
        for epoch, start in table.starts
    ]
    body = EpochEntryCache(
        broker_id=MASTER_ID if role.is_sync_master else broker.controlled.broker_id,
        broker_name=config.broker_name,
        cluster_name=config.broker_cluster_name,
        epoch_list=entries,
        max_offset=broker.store.max_physical_offset,
    )
    return Reply(body=encode_body(body))
