"""What the kernel knows of access control, so that what is allowed stays on the fast path.

The kernel gets all accounts. The gate tells it which addresses a white list has when their first
request comes. So the first request of a connection from a white list is slow, those that follow are
fast. So a connection costs nothing at its begin, and other accounts cost nothing for each
connection but for those that white lists had.
"""

from __future__ import annotations

from kerolox.kernel import AccessTables, AccountRules, ConnectionAccess
from kerolox.security.access.accounts import Account, Accounts


class FastAccess:
    """Keeps the kernel's rules those of the accounts in force."""

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
