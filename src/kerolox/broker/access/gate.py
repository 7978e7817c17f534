"""The gate before all handlers: ``aclEnable``.

:class:`~kerolox.security.access.check.AccessControl` decides; here a refusal becomes an error, is
counted, and has its audit line, with who, from where and what, never with a signature or a secret.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from kerolox.broker.config import BrokerConfig
from kerolox.clock import now_ms
from kerolox.errors import ACL_EXCEPTION, AccessDeniedError
from kerolox.kernel.feed import ConnectionAccess
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.tables import AccessTables
from kerolox.kernel.values import AccountRules
from kerolox.protocol.codes import GRPC
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import ACCESS_KEY_FIELD, RETRY_PREFIX, SIGNATURE_FIELD
from kerolox.remoting.audit import Audit
from kerolox.remoting.server import ServerConnection
from kerolox.remoting.time_slices import TimeSlices
from kerolox.security.access.accounts import Account, Accounts, Permission
from kerolox.security.access.check import AccessControl, Refusal
from kerolox.security.access.needs import Need
from kerolox.security.credentials import Credentials, Signer
from kerolox.security.slave_proof import proof_refusal
from kerolox.security.time_signature import (
    TimeSignatureError,
    is_signed_by,
    parse_authorization,
)
from kerolox.text import printable


class FastAccess:
    """Keeps the kernel's rules those of the accounts in force, so that what is allowed is fast.

    The kernel gets all accounts, and of white lists the addresses whose first request came: that
    one is slow. So a connection costs nothing at its begin.
    """

    def __init__(self, store: AccessTables) -> None:
        """Nobody is let in before :meth:`replace`."""
        self._store = store
        self._connections: dict[int, ConnectionAccess] = {}
        self._white: set[int] = set()
        """Connections that the global white list has, as far as the kernel knows."""
        self._white_keys: dict[int, set[str]] = {}
        """The accounts whose white lists have a connection, as far as the kernel knows."""
        store.set_accounts([])

    def replace(self, accounts: Accounts) -> None:
        """Have other accounts be in force. Held pulls come again, and are checked anew."""
        for connection_id in self._white | self._white_keys.keys():
            self._connections[connection_id].set_white(False, ())
        self._white.clear()
        self._white_keys.clear()
        self._store.set_accounts(
            [_rules(each) for each in accounts.by_key.values() if _is_text(each)]
        )

    @property
    def connection_count(self) -> int:
        """Connections that are open and have a fast path."""
        return len(self._connections)

    def opened(self, connection_id: int, connection: ConnectionAccess) -> None:
        """A connection has a fast path."""
        self._connections[connection_id] = connection

    def closed(self, connection_id: int) -> None:
        """A connection is gone, whether or not it had a fast path."""
        self._connections.pop(connection_id, None)
        self._white.discard(connection_id)
        self._white_keys.pop(connection_id, None)

    def note_white(self, connection_id: int, access_key: str | None) -> None:
        """A white list has the address of a connection: that of an account, or the global one."""
        connection = self._connections.get(connection_id)
        if connection is None or connection_id in self._white:
            return
        keys = self._white_keys.get(connection_id, set())
        if access_key is None:
            self._white.add(connection_id)
        elif access_key not in keys:
            keys.add(access_key)
            self._white_keys[connection_id] = keys
        else:
            return
        connection.set_white(access_key is None, tuple(keys))


def _rules(account: Account) -> AccountRules:
    return AccountRules(
        account.access_key,
        account.secret_key,
        account.may_everything,
        int(account.default_topic),
        int(account.default_group),
        account.resources,
    )


def _is_text(account: Account) -> bool:
    """Whether the kernel can have it; requests of any other account are slow."""
    try:
        "".join((account.access_key, account.secret_key, *account.resources)).encode()
    except UnicodeEncodeError:
        return False
    return True


class AccountSigner(Protocol):
    """Signs requests of one account."""

    def sign(self, command: RemotingCommand) -> None:
        """Add account and signature."""


class Unproven:
    """Names an account that was not proved, so that each request is denied for that reason."""

    def __init__(self, access_key: str) -> None:
        self._fields = {ACCESS_KEY_FIELD: access_key, SIGNATURE_FIELD: ""}

    def sign(self, command: RemotingCommand) -> None:
        """See :class:`AccountSigner`."""
        command.ext_fields.update(self._fields)


SHORT_BODY_BYTES_MAX = 16 << 10
"""What a body up to this long needs is examined in one time slice."""


class AccessGate:
    """Lets requests in, or not. Without ``aclEnable`` it lets all in."""

    def __init__(self, config: BrokerConfig, audit: Audit, store: StoreKernel) -> None:
        """Without accounts, so that nobody is let in, before :meth:`use`."""
        self.is_on = config.acl_enable
        self.fast_path = FastAccess(store) if self.is_on else None
        """None: nothing is checked."""
        self.denied: Counter[str] = Counter()
        """Requests that were refused, by the kind of their refusal."""
        self.last_denied_by_grpc: tuple[int, str] | None = None
        """When a call of a client by gRPC was denied last, and whose it was."""
        self._audit = audit
        self._control = AccessControl(Accounts(), is_strict=config.acl_strict)
        self._signers: dict[str, Signer] = {}

    def use(self, accounts: Accounts) -> None:
        """Have other accounts be in force with the next request, whatever the connection. Held
        pulls are checked anew before they deliver anything."""
        self._control.replace(accounts)
        self._signers.clear()
        if self.fast_path is not None:
            self.fast_path.replace(accounts)

    def admit(self, command: RemotingCommand, connection: ServerConnection) -> str:
        """Check a request, or what waited since it was admitted, before it tells anything. The
        access key of the account that signed it; empty: nobody had to. AccessDeniedError: it may
        not be done.
        """
        if not self.is_on:
            return ""
        refusal = self._control.refusal(command, connection.peer[0])
        return self._decided(refusal, command, connection)

    async def admit_in_slices(self, command: RemotingCommand, connection: ServerConnection) -> str:
        """As :meth:`admit`, for a request of any size: others are served before it is decided, and
        before its handler begins."""
        if not self.is_on or len(command.body) <= SHORT_BODY_BYTES_MAX:
            return self.admit(command, connection)
        slices = TimeSlices()
        steps = self._control.refusal_in_steps(command, connection.peer[0])
        while True:
            try:
                next(steps)
            except StopIteration as end:
                account = self._decided(end.value, command, connection)
                break
            await slices.checkpoint()
        await asyncio.sleep(0)
        return account

    def signer_of(self, authorization: str, date_time: str, host: str) -> AccountSigner | None:
        """What signs the requests that a gRPC call makes here: the account that the call proved, so
        that they are admitted or denied as all others. None: nothing is to be signed: there is
        no access control, or the call names no account.
        """
        if not self.is_on or self._control.is_white(host):
            return None
        try:
            access_key, signature = parse_authorization(authorization)
        except TimeSignatureError:
            return None
        if not access_key:
            return None
        account = self._control.accounts.by_key.get(access_key)
        if account is None or not is_signed_by(account.secret_key, date_time, signature):
            return Unproven(access_key)
        signer = self._signers.get(access_key)
        if signer is None:
            signer = Signer(Credentials(access_key, account.secret_key))
            self._signers[access_key] = signer
        return signer

    def _decided(
        self, refusal: Refusal | None, command: RemotingCommand, connection: ServerConnection
    ) -> str:
        if refusal is not None:
            raise self._denied(refusal, command, connection)
        host = connection.peer[0]
        is_white = self._control.is_white(host)
        access_key = "" if is_white else command.ext_fields[ACCESS_KEY_FIELD]
        if self.fast_path is not None:
            if is_white:
                self.fast_path.note_white(connection.connection_id, None)
            elif self._control.is_white_for(access_key, host):
                self.fast_path.note_white(connection.connection_id, access_key)
        return access_key

    def check_write(
        self, topic: str, command: RemotingCommand, connection: ServerConnection
    ) -> None:
        """To be called by a handler whose request writes to a topic that it does not name itself.
        AccessDeniedError: ``aclStrict``, and the account may not publish to it.
        """
        if self._control.is_strict:
            self._check_any([Need(topic, Permission.PUB)], command, connection)

    def check_shown(
        self, topic: str, command: RemotingCommand, connection: ServerConnection
    ) -> None:
        """To be called before an answer tells of a topic's queues (``Permission.ANY``).
        AccessDeniedError: the account may neither publish to it nor read it.
        """
        needs = [Need(topic, Permission.PUB), Need(topic, Permission.SUB)]
        self._check_any(needs, command, connection)

    def check_read(
        self, topic: str, group: str, command: RemotingCommand, connection: ServerConnection
    ) -> None:
        """To be called before an answer tells a member what it reads. AccessDeniedError: the
        account may not read the topic, or not in that group.
        """
        for resource in (topic, RETRY_PREFIX + group):
            self._check_any([Need(resource, Permission.SUB)], command, connection)

    def _check_any(
        self, needs: list[Need], command: RemotingCommand, connection: ServerConnection
    ) -> None:
        """One of these is enough; the first one's refusal counts."""
        if not self.is_on:
            return
        host = connection.peer[0]
        refusals = [self._control.refusal_of(command, host, (need,)) for need in needs]
        if all(refusals) and (first := refusals[0]) is not None:
            raise self._denied(first, command, connection)

    def refuse_slave(self, proof: bytes, nonce: str) -> str:
        """Why a slave's answer to a number proves no administrator; empty: it does."""
        return proof_refusal(proof, nonce, self._control.accounts)

    def _denied(
        self, refusal: Refusal, command: RemotingCommand, connection: ServerConnection
    ) -> AccessDeniedError:
        """Every refusal passes here, once: count it, tell it, make its answer."""
        self.denied[refusal.reason.value] += 1
        proven = refusal.access_key if refusal.reason.is_of_known else ""
        self._audit.denied(command, connection, refusal.text, account=proven)
        if connection.protocol_type == GRPC:
            whose = refusal.access_key or "no account"
            text = f"{whose} at {connection.remote_address}: {refusal.text}"
            self.last_denied_by_grpc = now_ms(), printable(text)
        return AccessDeniedError(f"{ACL_EXCEPTION}: {refusal.text}")
