"""Whether another broker became the master of this name, with a newer epoch; or an older one has
its place.

Name servers say who has the place, and that broker says its epoch. A name server of RocketMQ gives
the place to whoever registers last, so a master looks before it registers. One that does not answer
says nothing: a master whose name servers are all silent goes on with what it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import NamedTuple

from kerolox.errors import KeroloxError
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError, decode_body, encode_body
from kerolox.protocol.codes import MASTER_ID, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.roles import RoleAction, RoleChange, RoleStatus
from kerolox.remoting.client import RemotingClient

_log = logging.getLogger(__name__)

ASK_SECONDS_MAX = 1.0
"""How long an answer may take; a start waits for it."""

ANSWER_BYTES_MAX = 1 << 20
"""Of a name server of RocketMQ, whose answers are no ordinary JSON: some 5,000 brokers."""


class OtherMaster(NamedTuple):
    """A master of the same name with a newer epoch."""

    status: RoleStatus
    free_id: int
    """An id above 0 for a slave of it: the one that it had itself, or else the lowest that no
    broker of the name has. A slave that is away for a while has one, too, which nobody tells."""


async def newer_master(
    client: RemotingClient,
    name_servers: Iterable[str],
    broker_name: str,
    epoch: int,
    own_address: str,
    also: Iterable[str] = (),
) -> OtherMaster | None:
    """The master of a name that has the highest epoch, if that is above ``epoch``, of the broker
    which asks. ``name_servers`` are asked for the name's addresses; ``also``: further ones that may
    be a master's.
    """
    tables = await asyncio.gather(
        *(addresses_of(client, each, broker_name) for each in name_servers)
    )
    masters = set(also) | {table[MASTER_ID] for table in tables if MASTER_ID in table}
    masters.discard(own_address)
    found = await asyncio.gather(*(status_of(client, address) for address in masters))
    newer = [
        each
        for each in found
        if each is not None
        and each.is_master
        and each.broker_name == broker_name
        and each.epoch > epoch
    ]
    if not newer:
        return None
    newest = max(newer, key=lambda each: each.epoch)
    taken = {
        broker_id
        for table in tables
        for broker_id, address in table.items()
        if address != newest.address
    }
    if newest.former_id > MASTER_ID and newest.former_id not in taken:
        return OtherMaster(newest, newest.former_id)
    free = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return OtherMaster(newest, free)


async def notify_older(client: RemotingClient, address: str, own: RoleStatus) -> bool:
    """Have the broker at an address, which has the place of a name, look here if it is an older
    master of it; whether it heard of it.

    A name server that was restarted gives the place of a name to whoever comes first, and keeps it
    for that one.
    """
    status = await status_of(client, address)
    place = own.broker_name, own.broker_cluster_name
    if status is None or (status.broker_name, status.broker_cluster_name) != place:
        return False
    if not status.is_master or status.epoch >= own.epoch:
        return False
    _log.warning(
        "%s has this broker's place, and its epoch is %d, and here %d: it is told of that",
        address,
        status.epoch,
        own.epoch,
    )
    change = RoleChange(
        action=RoleAction.FOLLOW,
        epoch=own.epoch,
        master_address=own.address,
        master_ha_address=own.ha_address,
    )
    # It is told again with the next registration that is refused.
    with contextlib.suppress(KeroloxError):
        await _ask(client, address, RequestCode.CHANGE_BROKER_ROLE, encode_body(change))
        return True
    return False


async def status_of(client: RemotingClient, address: str) -> RoleStatus | None:
    """What a broker says that it is; None: it does not answer, or is not one of Kerolox."""
    try:
        return decode_body(await _ask(client, address, RequestCode.GET_BROKER_ROLE), RoleStatus)
    except (KeroloxError, BodyError):
        return None


async def addresses_of(
    client: RemotingClient, name_server: str, broker_name: str
) -> dict[int, str]:
    """Address by broker id, as a name server has them; empty: it does not answer."""
    try:
        data = await _ask(client, name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = fastjson.members_of(fastjson.loads(data, lenient_bytes_max=ANSWER_BYTES_MAX)).get(
            "brokerAddrTable"
        )
        named = fastjson.members_of(brokers).get(broker_name)
        addresses = fastjson.members_of(fastjson.members_of(named).get("brokerAddrs"))
        return {int(str(number)): str(address) for number, address in addresses.items()}
    except (KeroloxError, fastjson.FastjsonError, ValueError, TypeError):
        return {}


async def _ask(client: RemotingClient, address: str, code: RequestCode, body: bytes = b"") -> bytes:
    request = RemotingCommand.request(code, body=body)
    response = await client.invoke(address, request, timeout_seconds=ASK_SECONDS_MAX)
    response.raise_for_code(address)
    return response.body
