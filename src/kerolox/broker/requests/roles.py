"""Roles: GET_BROKER_ROLE (31038), CHANGE_BROKER_ROLE (31039); see
:mod:`kerolox.protocol.extensions.roles`."""

from __future__ import annotations

from kerolox.broker.context import Context
from kerolox.broker.errors import system_error
from kerolox.broker.roles.state import RoleError
from kerolox.protocol.bodies import decode_request, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.roles import RoleChange, RoleStatus
from kerolox.protocol.headers import EmptyHeader, RoleHeader
from kerolox.remoting.router import Reply, Request, Router

router: Router[Context] = Router()


@router.on(RequestCode.GET_BROKER_ROLE, RoleHeader.decode)
async def broker_role(broker: Context, header: RoleHeader, request: Request) -> Reply:
    """What this broker is, and how far its log reaches."""
    return Reply(body=encode_body(broker.roles.status(header.tail_from)))


@router.on(RequestCode.CHANGE_BROKER_ROLE, EmptyHeader.decode, changes=True)
async def change_role(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """One step of a change of roles; the answer says what the broker is then."""
    change = decode_request(request.body, RoleChange)
    before = _shown(broker.roles.status())
    try:
        status = await broker.roles.change(change)
    except RoleError as error:
        raise system_error(f"{change.action} is refused: {error}") from None
    broker.audit.changed(request, "role", change.action, before, _shown(status))
    return Reply(body=encode_body(status))


def _shown(status: RoleStatus) -> dict[str, object]:
    """What the audit line tells."""
    return {
        "role": status.broker_role,
        "brokerId": status.broker_id,
        "epoch": status.epoch,
        "paused": status.is_paused,
        "master": status.master_address,
        "logEnd": status.log_end,
    }
