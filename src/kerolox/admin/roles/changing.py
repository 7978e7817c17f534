"""Promotion and demotion, as operators ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.admin.answers import read_object
from kerolox.admin.asking import answers_of
from kerolox.admin.cluster import ClusterRequests
from kerolox.admin.roles.listing import not_listed_at
from kerolox.admin.roles.loss import check_furthest, what_may_be_lost
from kerolox.admin.roles.steps import PlannedChange, notify_slaves
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.clock import now_ms
from kerolox.errors import (
    BrokerError,
    ClientError,
    RemoteProtocolError,
)
from kerolox.protocol.bodies import BodyError, decode_body, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.roles import ASYNC_MASTER, RoleAction, RoleChange, RoleStatus

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

STEP_SECONDS = 10.0
"""How long one broker may take for one step: it writes a file, and registers."""

SILENT_SECONDS = 2.0
"""How long a broker that may be gone is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRole:
    """The role of a broker (code 31038)."""

    address: str
    broker_name: str
    cluster: str
    broker_id: int
    """0 for a master."""
    role: str
    """``ASYNC_MASTER``, ``SYNC_MASTER`` or ``SLAVE``."""
    epoch: int
    """Number of the last promotion under this name that it has heard of."""
    log_begin: int
    log_end: int
    is_following: bool
    """A slave: its master sends, and what it sends fits."""
    master: str
    """A slave: where its master is; empty: not known."""
    slaves: int
    """A master: how many slaves are connected."""
    is_paused: bool
    """A master: it takes no messages, since roles are being changed."""
    newer_epoch: int
    """A master: it takes no messages, since there is one of this epoch; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """The effect of a promotion on a slave and its master."""

    broker: str
    """The slave's ``host:port``."""
    broker_name: str
    master: str = ""
    """Which is there and changes places with it; empty: it is gone."""
    lost: str = ""
    """What may be lost, in words; empty: nothing that was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """A broker that became the master."""

    master: str
    broker_name: str
    epoch: int
    role: str
    log_end: int
    former_master: str = ""
    """Which is its slave now; empty: it was gone."""
    not_told: dict[str, str] = field(default_factory=dict)
    """Slaves that could not be notified of it → why; name servers tell them."""
    not_listed_at: dict[str, str] = field(default_factory=dict)
    """Name servers that do not list it as the master yet → what they say; clients that ask these
    do not find it."""


@checked()
class RoleRequests(ClusterRequests):
    """Asks about roles of brokers, and changes them."""

    async def broker_role(self, broker: str) -> BrokerRole:
        """What a broker of Kerolox is, and how far its log reaches (code 31038).

        Args:
            broker: ``host:port``.

        Raises:
            RequestCodeNotSupportedError: it is no broker of Kerolox, or an old one.
            BrokerError: it refused.
            RemotingError: it does not answer, or with something else.
        """
        status = await _Asked(self.access).status(broker)
        return BrokerRole(
            address=status.address,
            broker_name=status.broker_name,
            cluster=status.broker_cluster_name,
            broker_id=status.broker_id,
            role=status.broker_role,
            epoch=status.epoch,
            log_begin=status.log_begin,
            log_end=status.log_end,
            is_following=status.is_following,
            master=status.master_address,
            slaves=status.slaves,
            is_paused=status.is_paused,
            newer_epoch=status.newer_epoch,
        )

    async def plan_promotion(self, broker: str) -> PromotionPlan:
        """What :meth:`promote_broker` would do; nothing is changed.

        Args:
            broker: ``host:port`` of the slave.

        Raises:
            ClientError: it may not be done.
            BrokerError, RemotingError: the slave does not say what it is.
        """
        asked = _Asked(self.access)
        status = await _slave(asked, broker)
        found = await _found(self, asked, status)
        if found.master is not None:
            return PromotionPlan(
                broker=broker, broker_name=status.broker_name, master=found.master.address
            )
        return PromotionPlan(
            broker=broker, broker_name=status.broker_name, lost=_loss(status, found)
        )

    async def promote_broker(
        self,
        broker: str,
        *,
        accept_loss: bool = False,
        role: str = "",
        timeout_seconds: float = 60.0,
        on_step: Callable[[str], None] | None = None,
    ) -> RoleChanged:
        """Make a slave the master of its name (code 31039).

        While its master is there, both change places, and nothing is lost: clients wait a moment.
        When the master is gone, the slave takes its place, which may lose what was not on a slave.

        Args:
            broker: ``host:port`` of the slave.
            accept_loss: go on where messages that were acknowledged may be lost.
            role: ``ASYNC_MASTER`` or ``SYNC_MASTER``; empty: what its master is or was, as far as
                it is known, else ``ASYNC_MASTER``. Not with a master that is there.
            timeout_seconds: how long the slave may take to come near its master's end.
            on_step: called with the name of each step before it.

        Raises:
            ClientError: it may not be done, or a step failed: the text says which, and who is the
                master.
            BrokerError, RemotingError: the slave does not say what it is.
        """
        asked = _Asked(self.access)
        status = await _slave(asked, broker)
        report = on_step or (lambda step: None)
        found = await _found(self, asked, status)
        master = found.master
        if master is not None:
            if role not in ("", master.broker_role):
                raise ClientError(f"its master is {master.broker_role}; it becomes the same")
            others = [each for each in found.statuses if each != master.address]
            done = await PlannedChange(
                asked, master, status, others, timeout_seconds=timeout_seconds, on_step=report
            ).run()
            return await _changed(self.access, done.master, master.address, done.not_told)
        lost = _loss(status, found)
        if lost and not accept_loss:
            raise ClientError(f"messages may be lost: {lost}; say so to go on (--accept-loss)")
        change = RoleChange(
            action=RoleAction.PROMOTE,
            epoch=_epoch_of_emergency([status, *found.statuses.values()]),
            broker_role=role or status.master_role or status.remembered_role or ASYNC_MASTER,
        )
        report(f"{broker} becomes the master")
        promoted = await asked.change(broker, change)
        report("all slaves follow it")
        not_told = await notify_slaves(asked, promoted, found.statuses)
        return await _changed(self.access, promoted, "", not_told)

    async def demote_broker(
        self,
        broker: str,
        *,
        to: str = "",
        without_master: bool = False,
        timeout_seconds: float = 60.0,
        on_step: Callable[[str], None] | None = None,
    ) -> RoleChanged | None:
        """Make a master the slave of another broker (code 31039).

        Args:
            broker: ``host:port`` of the master.
            to: ``host:port`` of the slave that takes its place; empty: the only one there is. Where
                there is a newer master under the name, it becomes the slave of that one.
            without_master: nobody takes its place.
            timeout_seconds: how long the slave may take to come near the end of the log.
            on_step: called with the name of each step before it.

        Returns:
            Who became the master; None: nobody did.

        Raises:
            ClientError: it may not be done, or a step failed: the text says which, and who is the
                master.
            BrokerError, RemotingError: it does not say what it is.
        """
        asked = _Asked(self.access)
        status, found, newer = await _demoted(self, asked, broker)
        if newer is None and not without_master:
            return await self.promote_broker(
                to or _only_slave(broker, found),
                timeout_seconds=timeout_seconds,
                on_step=on_step,
            )
        await asked.change(broker, _demotion(status, newer, found))
        return None


def _epoch_of_emergency(known: list[RoleStatus]) -> int:
    """Above all that are known. A slave that was promoted before this one, and is gone since, may
    have told nobody of its epoch: the later promotion is to have the higher one."""
    epochs = [epoch for each in known for epoch in (each.epoch, each.newer_epoch)]
    return max(max(epochs) + 1, now_ms())


async def plan_demotion(
    admin: RoleRequests, broker: str, *, to: str = "", without_master: bool = False
) -> PromotionPlan | None:
    """What :meth:`demote_broker` would do; nothing is changed. Arguments and errors: see there.

    Returns:
        The promotion of the slave that takes its place; None: nobody does, or a newer master did.
    """
    asked = _Asked(admin.access)
    _, found, newer = await _demoted(admin, asked, broker)
    if newer is None and not without_master:
        return await admin.plan_promotion(to or _only_slave(broker, found))
    return None


async def _demoted(
    admin: RoleRequests, asked: _Asked, broker: str
) -> tuple[RoleStatus, _Found, RoleStatus | None]:
    """What a master is that becomes a slave, the others of its name, and a newer master."""
    status = await asked.status(broker)
    if not status.is_master:
        raise ClientError(f"{broker} is a slave already, with id {status.broker_id}")
    found = await _found(admin, asked, status)
    newer = found.master
    if newer is not None and newer.epoch <= status.epoch:
        raise ClientError(
            f"{newer.address} is a master too, and not a newer one (epoch {newer.epoch}, here "
            f"{status.epoch}); demote that one"
        )
    return status, found, newer


async def _slave(asked: _Asked, broker: str) -> RoleStatus:
    """What a broker is that is to become the master.

    Raises:
        ClientError: it is the master.
    """
    status = await asked.status(broker)
    if status.is_master and not status.newer_epoch:
        raise ClientError(f"{broker} is the master of {status.broker_name} already")
    return status


def _loss(status: RoleStatus, found: _Found) -> str:
    """What may be lost where the master is gone. Raises ClientError where it may not be."""
    _check_gone(status, found)
    check_furthest(status, found.log_ends)
    return what_may_be_lost(status, found.log_ends)


def _only_slave(broker: str, found: _Found) -> str:
    slaves = [each for each in found.statuses.values() if each.is_following]
    if len(slaves) != 1:
        raise ClientError(
            f"{len(slaves)} slaves follow {broker}; say who takes its place (--to), or that "
            "nobody does (--without-master)"
        )
    return slaves[0].address


def _demotion(status: RoleStatus, newer: RoleStatus | None, found: _Found) -> RoleChange:
    """A master becomes the slave of a newer one, or of nobody."""
    free = next(n for n in range(1, len(found.ids) + 2) if n not in found.ids)
    return RoleChange(
        action=RoleAction.DEMOTE,
        epoch=newer.epoch if newer is not None else status.epoch + 1,
        broker_id=free,
        master_address=newer.address if newer is not None else "",
        master_ha_address=newer.ha_address if newer is not None else "",
        is_forced=True,
    )


@dataclass(slots=True)
class _Found:
    """The other brokers of a name."""

    registered_master: str = ""
    """The address that name servers have for id 0; empty: none."""
    ids: set[int] = field(default_factory=set)
    """Ids of all, above 0."""
    statuses: dict[str, RoleStatus] = field(default_factory=dict)
    """What those of Kerolox say."""
    master: RoleStatus | None = None
    """The one of these that is a master, the newest where there are several."""
    foreign: set[str] = field(default_factory=set)
    """Those that answer and are no brokers of Kerolox."""
    log_ends: dict[str, int] = field(default_factory=dict)
    """Where the logs of slaves end."""


class _Asked:
    """See ``Brokers``."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def status(self, address: str, tail_from: int = -1) -> RoleStatus:
        return await self.asked(address, tail_from, STEP_SECONDS)

    async def asked(self, address: str, tail_from: int, seconds: float) -> RoleStatus:
        response = await self._access.ask(
            address,
            RequestCode.GET_BROKER_ROLE,
            {"tailFrom": tail_from},
            timeout_seconds=seconds,
        )
        return _read(response.body, address)

    async def change(self, address: str, change: RoleChange) -> RoleStatus:
        response = await self._access.ask(
            address,
            RequestCode.CHANGE_BROKER_ROLE,
            body=encode_body(change),
            timeout_seconds=STEP_SECONDS,
        )
        return _read(response.body, address)


def _read(body: bytes, address: str) -> RoleStatus:
    try:
        return decode_body(body, RoleStatus)
    except BodyError as error:
        raise RemoteProtocolError(f"the role of {address} can't be read: {error}") from None


async def _found(admin: RoleRequests, asked: _Asked, status: RoleStatus) -> _Found:
    """All others of a broker's name, as name servers and the broker know them."""
    info = await admin.cluster_info()
    named = info.brokers.get(status.broker_name)
    addresses = {} if named is None else dict(named.addresses)
    found = _Found(
        registered_master=addresses.get(MASTER_ID, ""),
        ids={number for number in addresses if number > MASTER_ID},
    )
    others = ({*addresses.values(), status.master_address}) - {status.address, ""}
    if found.registered_master == status.address:
        found.registered_master = ""
    statuses, failed = await answers_of(
        sorted(others), lambda address: asked.asked(address, -1, SILENT_SECONDS)
    )
    found.statuses = {
        address: each
        for address, each in statuses.items()
        if each.broker_name == status.broker_name
    }
    masters = [each for each in found.statuses.values() if each.is_master]
    found.master = max(masters, key=lambda each: each.epoch, default=None)
    found.foreign = {a for a, error in failed.items() if isinstance(error, BrokerError)}
    found.log_ends = {a: each.log_end for a, each in found.statuses.items() if not each.is_master}
    for address in found.foreign - {found.registered_master, status.master_address}:
        found.log_ends[address] = await _log_end(admin.access, address)
    return found


async def _log_end(access: Access, address: str) -> int:
    """Where the log of a slave ends that is no broker of Kerolox."""
    response = await access.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await read_object(response, "the runtime info", address)
    text = answer.text_table("table").get("commitLogMaxOffset", "")
    if not text.isdecimal():
        raise RemoteProtocolError(f"commitLogMaxOffset of {address} is no number")
    return int(text)


def _check_gone(status: RoleStatus, found: _Found) -> None:
    """No master is there any more.

    Raises:
        ClientError: one may be.
    """
    for address in {found.registered_master, status.master_address} - {""}:
        if address in found.foreign:
            raise ClientError(
                f"{address} is registered as the master and answers, and is no broker of Kerolox "
                "that changes its role; stop it first"
            )
    if found.registered_master and found.registered_master not in found.statuses:
        raise ClientError(
            f"{found.registered_master} is registered as the master and does not answer; it may "
            "take messages of others. Make sure that it is stopped; name servers forget it within "
            "130 s"
        )
    if status.is_following:
        raise ClientError(f"the master of {status.address} is still sending its log")


async def _changed(
    access: Access, master: RoleStatus, former: str, not_told: dict[str, str]
) -> RoleChanged:
    return RoleChanged(
        master=master.address,
        broker_name=master.broker_name,
        epoch=master.epoch,
        role=master.broker_role,
        log_end=master.log_end,
        former_master=former,
        not_told=not_told,
        not_listed_at=await not_listed_at(access, master),
    )
