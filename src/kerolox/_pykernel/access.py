"""Access control of the fast path: which requests are certainly allowed.

What is not is slow, so nothing here says why. The order is that of
``PlainPermissionManager.validate``, as far as it matters to a yes or no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hmac import compare_digest

from kerolox._pykernel.headers import (
    PullFields,
    SendFields,
    SendFieldsV1,
    SendHeader,
    SendV2Header,
    signed_fields,
)
from kerolox.kernel.values import AccountRules
from kerolox.protocol.names import RETRY_PREFIX, TRACE_TOPIC
from kerolox.security.access.accounts import Permission, allows, group_resource, is_group
from kerolox.security.signatures import SecretKey, SignedOrder


class Account:
    """One account, ready to check signatures."""

    __slots__ = ("_rules", "_secret")

    def __init__(self, rules: AccountRules) -> None:
        self._rules = rules
        self._secret = SecretKey(rules.secret_key)

    def may(self, resource: str, need: Permission) -> bool:
        """Whether it may do something with a topic, or with a group's retry topic."""
        rules = self._rules
        default = rules.default_group if is_group(resource) else rules.default_topic
        return rules.may_everything or allows(
            Permission(rules.resources.get(resource, default)), need
        )

    def may_send(self, topic: str, header: SendHeader) -> bool:
        """Whether it may send to a topic."""
        if topic.startswith(RETRY_PREFIX) and not self._rules.may_everything:
            # A consumer sends back to its own group. RocketMQ asks for the group that the request
            # names and not for the topic; this is where both are the same.
            return (
                isinstance(header, SendV2Header)
                and topic == RETRY_PREFIX + header.extFields.a
                and self.may(topic, Permission.SUB)
            )
        return topic == TRACE_TOPIC or self.may(topic, Permission.PUB)

    def may_pull(self, topic: str, group: str) -> bool:
        """Whether it may read a topic as a member of a group."""
        return self.may(topic, Permission.SUB) and self.may(group_resource(group), Permission.SUB)

    def has_signed(self, text: bytes, body: bytes, signature: str) -> bool:
        """Whether a request has the right signature."""
        return compare_digest(self._secret.signature(text, body).encode(), signature.encode())


_order = SignedOrder()

Accounts = dict[str, Account]


def accounts_of(rules: Iterable[AccountRules]) -> Accounts:
    """The accounts of these rules; of two with the same key the last one."""
    return {each.access_key: Account(each) for each in rules}


class PeerAccess:
    """What access control knows of a connection's peer."""

    __slots__ = ("_is_white", "_white_keys")

    def __init__(self) -> None:
        self._is_white = False
        self._white_keys: frozenset[str] = frozenset()

    def set_white(self, is_white: bool, access_keys: Iterable[str]) -> bool:
        """See ``ConnectionAccess``. True: a list had the address and has it no more."""
        old_white, old_keys = self._is_white, self._white_keys
        self._is_white, self._white_keys = is_white, frozenset(access_keys)
        return (old_white and not is_white) or not old_keys <= self._white_keys

    def may_send(
        self, accounts: Accounts, header: SendHeader, encoded: tuple[int, bytes], body: bytes
    ) -> bool:
        """Whether a send is allowed for certain. ``encoded``: serialize type and header."""
        fields = header.extFields
        return self._may(
            accounts, fields, encoded, body, lambda account: account.may_send(fields.b, header)
        )

    def may_pull(self, accounts: Accounts, fields: PullFields, encoded: tuple[int, bytes]) -> bool:
        """Whether a pull is allowed for certain."""
        return self._may(
            accounts,
            fields,
            encoded,
            b"",
            lambda account: account.may_pull(fields.topic, fields.consumerGroup),
        )

    def _may(
        self,
        accounts: Accounts,
        fields: SendFields | SendFieldsV1 | PullFields,
        encoded: tuple[int, bytes],
        body: bytes,
        has_permission: Callable[[Account], bool],
    ) -> bool:
        if self._is_white:
            return True
        account = accounts.get(fields.AccessKey)
        signed = signed_fields(*encoded) if account is not None else None
        if account is None or signed is None:
            return False
        return fields.AccessKey in self._white_keys or (
            has_permission(account)
            and account.has_signed(_order.text(signed, remember=True), body, fields.Signature)
        )
