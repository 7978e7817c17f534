"""The decision of access control: may this request of this address be done?

Order and texts are those of ``PlainPermissionManager.validate``. What a request may cost before its
signature is known to be right is bounded: header fields are (``serialize.FIELDS_MAX``), a body is
hashed once or twice, and nothing of it is read. Nothing is remembered of those that are refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Generator, Iterable
from enum import Enum
from itertools import chain
from typing import NamedTuple

from kerolox.message import java_hash
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import (
    ACCESS_KEY_FIELD,
    RETRY_PREFIX,
    SIGNATURE_FIELD,
    TRACE_TOPIC,
    UNIQUE_KEY_QUERY_FIELD,
)
from kerolox.security.access.accounts import Account, Accounts, Permission, allows, is_group
from kerolox.security.access.needs import Need, Rule, rules
from kerolox.security.signatures import UNSIGNED_BY_OLDER, SecretKey, SignedOrder
from kerolox.text import printable

WHITE_HOSTS_MAX = 4_096
"""Addresses of which is remembered whether the global white list has them."""

JAVA_ORDER_NEEDS_MAX, JAVA_ORDER_CHARACTERS_MAX = 64, 4_096
"""Of so many needs, with so long names, the one that a refusal names is RocketMQ's."""


NEEDS_PER_STEP = 256
"""Needs that are examined in one step, well within a time slice."""


class Reason(Enum):
    """Kinds of refusals."""

    NO_ACCOUNT = "no account"
    UNKNOWN_ACCOUNT = "unknown account"
    SIGNATURE = "wrong signature"
    ADMIN = "needs an administrator"
    PERMISSION = "no permission"
    MALFORMED = "malformed"

    @property
    def is_of_known(self) -> bool:
        """Who asked has proven to be the account."""
        return self in (Reason.ADMIN, Reason.PERMISSION, Reason.MALFORMED)


class Refusal(NamedTuple):
    """Why a request is not done."""

    reason: Reason
    text: str
    """As ``AclException`` has it; names that are long or not printable are cut and escaped."""
    access_key: str = ""
    """Who asked, or says so; printable. See ``Reason.is_of_known``."""


class AccessControl:
    """Decides by the accounts in force. Does no I/O and waits for nothing."""

    def __init__(self, accounts: Accounts, *, is_strict: bool) -> None:
        """Args:
        accounts: those in force.
        is_strict: need what RocketMQ 4.9.8 does not (:data:`.needs.STRICT`).
        """
        self._rules = rules(is_strict=is_strict)
        self.is_strict = is_strict
        self._order = SignedOrder()
        self._order_of_older = SignedOrder(UNSIGNED_BY_OLDER)
        self.replace(accounts)

    @property
    def accounts(self) -> Accounts:
        """The accounts in force."""
        return self._accounts

    def replace(self, accounts: Accounts) -> None:
        """Have other accounts be in force, all at once."""
        self._accounts = accounts
        self._secrets: dict[str, SecretKey] = {}
        self._white_hosts: dict[str, bool] = {}

    # -- the decision ---------------------------------------------------------------------------
    def refusal(self, command: RemotingCommand, host: str) -> Refusal | None:
        """Why a request may not be done; None: it may. ``host``: of the peer, without a port."""
        steps = self.refusal_in_steps(command, host)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                refusal: Refusal | None = end.value
                return refusal

    def refusal_in_steps(
        self, command: RemotingCommand, host: str
    ) -> Generator[None, None, Refusal | None]:
        """As :meth:`refusal`, its answer the generator's value, for requests that may need many
        things. Others may be served between two steps; the account that decides stays the one of
        the first."""
        if self.is_white(host):
            return None
        access_key = command.ext_fields.get(ACCESS_KEY_FIELD)
        if access_key is None:
            return Refusal(Reason.NO_ACCOUNT, "No accessKey is configured")
        account = self._accounts.by_key.get(access_key)
        if account is None:
            shown = printable(access_key)
            return Refusal(Reason.UNKNOWN_ACCOUNT, f"No acl config for {shown}", shown)
        if host in account.white:
            return None
        if not self._is_signed_by(account, command):
            shown = printable(access_key)
            text = f"Check signature failed for accessKey={shown}"
            return Refusal(Reason.SIGNATURE, text, shown)
        rule = self._rules.get(command.code)
        return None if rule is None else (yield from self._unmet(account, command, rule))

    def refusal_of(
        self, command: RemotingCommand, host: str, needs: Iterable[Need]
    ) -> Refusal | None:
        """Why what only a handler knows that a request needs besides may not be done. The request
        was not refused, so its signature is not examined again.
        """
        if self.is_white(host):
            return None
        account = self._accounts.by_key.get(command.ext_fields.get(ACCESS_KEY_FIELD, ""))
        if account is None:
            return self.refusal(command, host)
        if host in account.white or account.may_everything:
            return None
        return _first_refusal(account, list(needs))

    def is_white(self, host: str) -> bool:
        """Whether the global white list has an address: its requests are not checked."""
        known = self._white_hosts.get(host)
        if known is None:
            known = any(host in each for each in self._accounts.white)
            if len(self._white_hosts) >= WHITE_HOSTS_MAX:
                self._white_hosts.clear()
            self._white_hosts[host] = known
        return known

    def is_white_for(self, access_key: str, host: str) -> bool:
        """Whether the white list of an account has an address."""
        account = self._accounts.by_key.get(access_key)
        return account is not None and host in account.white

    def _is_signed_by(self, account: Account, command: RemotingCommand) -> bool:
        fields = command.ext_fields
        given = fields.get(SIGNATURE_FIELD, "").encode("utf-8", "replace")
        secret = self._secrets.get(account.access_key)
        if secret is None:
            secret = self._secrets[account.access_key] = SecretKey(account.secret_key)
        orders = [self._order]
        if command.code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY_FIELD in fields:
            # RocketMQ's broker refuses what its own clients of 4.9 have signed so.
            orders.append(self._order_of_older)
        for order in orders:
            expected = secret.signature(order.text(fields), command.body)
            if hmac.compare_digest(expected.encode(), given):
                order.text(fields, remember=True)
                return True
        return False

    def _unmet(
        self, account: Account, command: RemotingCommand, rule: Rule
    ) -> Generator[None, None, Refusal | None]:
        shown = printable(account.access_key)
        if rule.is_for_admins and not account.is_admin:
            text = (
                f"Need admin permission for request code={command.code}, "
                f"but accessKey={shown} is not"
            )
            return Refusal(Reason.ADMIN, text, shown)
        if account.may_everything:
            return None
        needs: list[Need] = []
        try:
            for need in chain.from_iterable(each(command) for each in rule.needs):
                needs.append(need)
                if len(needs) % NEEDS_PER_STEP == 0:
                    yield
                    refusal = _first_refusal(account, needs)
                    if refusal is not None:
                        return refusal
                    needs.clear()
        except BodyError as error:
            return Refusal(Reason.MALFORMED, str(error), shown)
        return _first_refusal(account, needs)


def _first_refusal(account: Account, needs: list[Need]) -> Refusal | None:
    """The refusal for the first need that is not met, as ``checkPerm`` comes across it."""
    unmet = [each for each in needs if not _is_met(account, each)]
    if not unmet:
        return None
    if len(unmet) > 1 and len(needs) <= JAVA_ORDER_NEEDS_MAX:
        resources = {each.resource for each in needs}
        if sum(map(len, resources)) <= JAVA_ORDER_CHARACTERS_MAX:
            places = _java_places(resources)
            unmet.sort(key=lambda need: places[need.resource])
    resource = unmet[0].resource
    kind, name = "topic", resource
    if is_group(resource):
        kind, name = "group", resource.removeprefix(RETRY_PREFIX)
    text = f"No default permission for {kind}:{printable(name)}"
    return Refusal(Reason.PERMISSION, text, printable(account.access_key))


def _is_met(account: Account, need: Need) -> bool:
    resource, permission = need
    if resource == TRACE_TOPIC and permission == Permission.PUB:
        return True  # any account may leave traces
    owned = account.resources.get(resource)
    if owned is None:
        owned = account.default_group if is_group(resource) else account.default_topic
    return allows(owned, permission)


def _java_places(resources: set[str]) -> dict[str, int]:
    """Where a ``HashMap`` of Java has its keys: it is gone through in the order of these."""
    size = 16
    while len(resources) > size * 3 // 4:
        size *= 2
    places = {}
    for resource in resources:
        code = java_hash(resource) & 0xFFFFFFFF
        places[resource] = (code ^ code >> 16) & (size - 1)
    return places
