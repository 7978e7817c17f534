"""Controllers: who leads, who is master of each broker name, settings, members (RIP-44).

Methods take the addresses of controllers, any of them: what the leader alone answers is asked of
the one that they name. They work with controllers of RocketMQ 5, too, but for changes of members.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.addresses import split_address
from kerolox.admin.answers import read_properties
from kerolox.admin.asking import all_answers, answers_of, do_on_each
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.clock import now_ms
from kerolox.errors import (
    BrokerError,
    ClientError,
    ConnectError,
    RemoteProtocolError,
)
from kerolox.properties import format_properties
from kerolox.protocol.bodies import BodyError, decode_body, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.controller import (
    BrokerReplicasInfo,
    ChangeControllersHeader,
    CleanBrokerDataHeader,
    ControllerStateHeader,
    ElectMasterHeader,
    MasterHeader,
)
from kerolox.protocol.headers import HeaderFieldError
from kerolox.text import split_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kerolox.protocol.command import RemotingCommand

MEMBERS_MAX = 64
"""Controllers of one group that an answer may name."""

ELECTION_SECONDS_MAX = 5.0
"""How long an election may take; most take one or two."""

POLL_SECONDS = 0.2
"""Between two questions of who is elected."""

AGAIN_MAX = 3
"""How often the leader is looked for: it may be another one when it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """One controller, as it answers (``getControllerMetaData``, code 1005). What RocketMQ's does
    not tell is 0, empty or None."""

    address: str
    group: str
    node_id: str
    role: str
    """``leader``, ``follower``, ``candidate``, ``pre-candidate``, or ``failed``: see ``fault``."""
    leader_id: str
    leader_address: str
    """Empty: it knows none."""
    members: dict[str, str]
    """Address by id."""
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    learns: bool = False
    """It began with an empty folder, and has not caught up yet."""
    put_back: tuple[str, ...] = ()
    """Of the leader: those whose folders are older copies."""
    behind: tuple[str, ...] = ()
    """Of the leader: broker names of which a broker knows a newer epoch."""
    fault: str = ""
    version: str = ""
    clock_difference_ms: int | None = None
    """Its clock less ours, give or take the time of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOfSet:
    """One broker of a set."""

    broker_id: int
    address: str
    is_alive: bool
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStateSetInfo:
    """The brokers of a name (``getSyncStateSet``, code 1006)."""

    broker_name: str
    master_id: int | None
    """None: there is no master now."""
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int
    replicas: tuple[ReplicaOfSet, ...] = field(default_factory=tuple)

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Ids of those that have all that was acknowledged."""
        return tuple(each.broker_id for each in self.replicas if each.is_in_sync)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedMaster:
    """How an election ended (``electMaster``, code 1002)."""

    broker_name: str
    master_id: int
    master_address: str
    master_epoch: int


@checked()
class ControllerRequests(ClusterRequests):
    """Asks controllers, and changes what they keep."""

    async def controller_state(self, address: str) -> ControllerState:
        """How a controller sees itself and its group (code 1005).

        Raises:
            BrokerError, RemotingError: it did not answer so.
        """
        begin = now_ms()
        response = await self.access.ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        middle = (begin + now_ms()) // 2
        try:
            told = ControllerStateHeader.decode(response.ext_fields)
        except HeaderFieldError as error:
            raise RemoteProtocolError(f"{address}: {error}") from None
        members = _members_of(told.peers or "", address)
        known = [node for node, each in members.items() if each == address]
        return ControllerState(
            address=address,
            group=told.group or "",
            node_id=told.node_id or (known[0] if known else ""),
            role=told.role or ("leader" if told.is_leader else "follower"),
            leader_id=told.controller_leader_id or "",
            leader_address=told.controller_leader_address or "",
            members=members,
            term=told.term or 0,
            commit_index=told.commit_index or 0,
            applied_index=told.applied_index or 0,
            learns=bool(told.learns),
            put_back=tuple(filter(None, (told.put_back or "").split(";"))),
            behind=tuple(filter(None, (told.behind or "").split(";"))),
            fault=told.fault or "",
            version=told.version or "",
            clock_difference_ms=None if told.clock is None else told.clock - middle,
        )

    async def controller_states(
        self, controllers: str | Iterable[str]
    ) -> dict[str, ControllerState | str]:
        """All controllers of a group, those given and those that they name: how each sees itself,
        or why it does not answer, by address.

        Args:
            controllers: ``host:port`` of at least one, several joined by ``;`` or in a list.
        """
        states: dict[str, ControllerState | str] = {}
        wanted = list(_addresses_of(controllers))
        while wanted:
            found, failed = await answers_of(wanted, self.controller_state)
            states |= found
            states |= {address: str(error) for address, error in failed.items()}
            named = [a for state in found.values() for a in state.members.values()]
            wanted = [each for each in dict.fromkeys(named) if each not in states]
        return states

    async def sync_state_sets(
        self, controllers: str | Iterable[str], broker_names: Iterable[str] = ()
    ) -> dict[str, SyncStateSetInfo]:
        """The brokers of each name: the master, its epoch, who is in sync and alive
        (``getSyncStateSet``, code 1006). Names that nobody knows are left out.

        Args:
            controllers: as of :meth:`controller_states`.
            broker_names: whose; none: all, of Kerolox's controllers alone.

        Raises:
            ConnectError: no controller answers, or none leads.
            BrokerError: the leader refused.
        """
        names = list(broker_names)
        response = await self._ask_leader(
            controllers,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            body=encode_body(names) if names else b"",
        )
        if not response.body:
            if not names:
                raise ClientError("these controllers tell no names; give those of the brokers")
            return {}
        try:
            table = decode_body(response.body, BrokerReplicasInfo).replicas_info_table
        except BodyError as error:
            raise RemoteProtocolError(f"the sync state sets: {error}") from None
        sets: dict[str, SyncStateSetInfo] = {}
        for name, info in sorted(table.items()):
            replicas = [(each, True) for each in info.in_sync_replicas]
            replicas += [(each, False) for each in info.not_in_sync_replicas]
            sets[name] = SyncStateSetInfo(
                broker_name=name,
                master_id=info.master_broker_id,
                master_address=info.master_address or "",
                master_epoch=info.master_epoch,
                sync_state_set_epoch=info.sync_state_set_epoch,
                replicas=tuple(
                    ReplicaOfSet(
                        broker_id=each.broker_id,
                        address=each.broker_address,
                        is_alive=bool(each.alive),
                        is_in_sync=is_in_sync,
                    )
                    for each, is_in_sync in sorted(replicas, key=lambda pair: pair[0].broker_id)
                ),
            )
        return sets

    async def elect_master(
        self,
        controllers: str | Iterable[str],
        broker_name: str,
        broker_id: int,
        *,
        cluster: str = "",
    ) -> ElectedMaster:
        """Have a broker become the master of its name (``electMaster``, code 1002). It has to be
        alive, and in sync unless ``enableElectUncleanMaster``.

        Args:
            controllers: as of :meth:`controller_states`.
            broker_name: the name.
            broker_id: the id that the controller gave it.
            cluster: its cluster; RocketMQ's controllers want it.

        Raises:
            ConnectError: no controller answers, or none leads.
            BrokerError: it is not elected; the text says why.
        """
        header = ElectMasterHeader(
            cluster_name=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=now_ms(),
        )
        response = await self._ask_leader(
            controllers, RequestCode.CONTROLLER_ELECT_MASTER, header.encode()
        )
        try:
            elected = MasterHeader.decode(response.ext_fields)
        except HeaderFieldError as error:
            raise RemoteProtocolError(f"the election of {broker_name}: {error}") from None
        return ElectedMaster(
            broker_name=broker_name,
            master_id=elected.master_broker_id or 0,
            master_address=elected.master_address or "",
            master_epoch=elected.master_epoch or 0,
        )

    async def clean_broker_metadata(
        self,
        controllers: str | Iterable[str],
        broker_name: str,
        broker_ids: Iterable[int] = (),
        *,
        cluster: str = "",
        even_if_alive: bool = False,
    ) -> None:
        """Have controllers forget brokers (``cleanBrokerMetadata``, code 1011).

        Args:
            controllers: as of :meth:`controller_states`.
            broker_name: the name.
            broker_ids: which of its brokers; none: all.
            cluster: its cluster; RocketMQ's controllers want it.
            even_if_alive: those too that send heartbeats.

        Raises:
            ConnectError: no controller answers, or none leads.
            BrokerError: nothing is forgotten; the text says why.
        """
        header = CleanBrokerDataHeader(
            cluster_name=cluster or None,
            broker_name=broker_name,
            broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
            is_clean_living_broker=even_if_alive,
            invoke_time=now_ms(),
        )
        await self._ask_leader(controllers, RequestCode.CLEAN_BROKER_DATA, header.encode())

    async def controller_settings(
        self, controllers: str | Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """The settings of each of these controllers, by address (``getControllerConfig``, code
        1010).

        Raises:
            BrokerError, RemotingError: of the first that did not answer.
        """

        async def ask(address: str) -> dict[str, str]:
            response = await self.access.ask(address, RequestCode.GET_CONTROLLER_CONFIG)
            return read_properties(response, "the settings", address)

        return await all_answers(_addresses_of(controllers), ask)

    async def update_controller_settings(
        self, controllers: str | Iterable[str], settings: Mapping[str, str]
    ) -> list[str]:
        """Change settings of each of these controllers (``updateControllerConfig``, code 1009);
        their addresses.

        Raises:
            ClientError: some took it and some did not: the text says who.
            NoPermissionError: a setting that may not be changed (``configBlackList``).
            BrokerError, RemotingError: none took it.
        """
        body = format_properties(settings).encode()
        code = RequestCode.UPDATE_CONTROLLER_CONFIG
        return await do_on_each(
            _addresses_of(controllers),
            lambda address: self.access.ask(address, code, body=body),
            "settings could not be changed",
        )

    async def add_controller(
        self, controllers: str | Iterable[str], node_id: str, address: str
    ) -> None:
        """Have a group take a controller in, or know another address of one (31043, a code of
        ours). It begins with an empty folder, and its settings name it and all others.

        Args:
            controllers: as of :meth:`controller_states`.
            node_id: its ``controllerDLegerSelfId``.
            address: where it is, ``host:port``.

        Raises:
            ConnectError: no controller answers, or none leads.
            BrokerError: it is not taken in; the text says why.
        """
        await self._change_members(controllers, node_id, address)

    async def remove_controller(self, controllers: str | Iterable[str], node_id: str) -> None:
        """Have a group do without a controller from now on (31043). Stop it then.

        Args:
            controllers: as of :meth:`controller_states`.
            node_id: its ``controllerDLegerSelfId``.

        Raises:
            ConnectError: no controller answers, or none leads.
            BrokerError: it is not taken out; the text says why.
        """
        await self._change_members(controllers, node_id, "")

    async def _change_members(
        self, controllers: str | Iterable[str], node_id: str, address: str
    ) -> None:
        leader = await self._leader(controllers)
        header = ChangeControllersHeader(group=leader.group, node_id=node_id, address=address)
        await self._ask_leader(controllers, RequestCode.CHANGE_CONTROLLERS, header.encode())

    async def _leader(self, controllers: str | Iterable[str]) -> ControllerState:
        """Who leads. While some answer it waits for the end of an election, which the request
        before may have caused: the leader itself is taken out of a group, too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ELECTION_SECONDS_MAX
        while True:
            states = await self.controller_states(controllers)
            answering = [each for each in states.values() if isinstance(each, ControllerState)]
            for state in answering:
                if state.role == "leader":
                    return state
            if not answering or loop.time() >= deadline:
                reasons = [each for each in states.values() if isinstance(each, str)]
                raise ConnectError("; ".join(["no controller leads now", *reasons]))
            await asyncio.sleep(POLL_SECONDS)

    async def _ask_leader(
        self,
        controllers: str | Iterable[str],
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
    ) -> RemotingCommand:
        addresses = _addresses_of(controllers)
        # Of one it is most often the leader, and its answer saves a question.
        address = addresses[0] if len(addresses) == 1 else ""
        for _ in range(AGAIN_MAX):
            address = address or (await self._leader(controllers)).address
            try:
                return await self.access.ask(address, code, fields, body=body)
            except BrokerError as error:
                if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    raise
            address = ""
        raise ConnectError("no controller leads now: they are electing another leader; try again")


def controllers_named(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The controllers that a broker's settings name; none where it has none."""
    if settings.get("enableControllerMode") != "true":
        return ()
    return split_list(settings.get("controllerAddr", ""))


def _addresses_of(controllers: str | Iterable[str]) -> tuple[str, ...]:
    given = controllers.split(";") if isinstance(controllers, str) else controllers
    addresses = tuple(dict.fromkeys(each.strip() for each in given if each.strip()))
    if not addresses:
        raise ClientError("no controller is given; write host:port, joined by ';'")
    for each in addresses:
        try:
            split_address(each)
        except ValueError as error:
            raise ClientError(f"controllers: {error}") from None
    return addresses


def _members_of(peers: str, address: str) -> dict[str, str]:
    """``id:host:port;`` of each, as a controller tells them. One of RocketMQ that agrees by jRaft
    tells ``host:port;``, so that the address is the id.
    """
    members: dict[str, str] = {}
    for peer in filter(None, peers.split(";")):
        node_id, where = _id_and_address(peer, address)
        members[node_id] = where
        if len(members) > MEMBERS_MAX:
            raise RemoteProtocolError(f"{address} names more than {MEMBERS_MAX} controllers")
    return members


def _id_and_address(peer: str, teller: str) -> tuple[str, str]:
    node_id, _, where = peer.partition(":")
    for found in ((node_id, where), (peer, peer)):
        with contextlib.suppress(ValueError):
            split_address(found[1])
            return found
    raise RemoteProtocolError(f"{teller} names a controller {peer!r}")
