"""Who may change what a name server knows, and by choice who may ask for it.

RocketMQ's name server does what anybody asks. By settings of our own only some are writers: those
at certain addresses (``writerAddresses``), with an administrator's account (``writerAccounts``), or
with a client certificate (``writerCertificates``). One of these is enough. Writers register and
unregister brokers, change key-values, settings and permissions, and delete topics: whatever has an
audit line. With ``restrictReaders`` all other requests need the same, of the accounts any.

What is not allowed is answered as RocketMQ's access control does it on a broker: code 1, with the
text of an ``AclException``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import ACL_EXCEPTION
from kerolox.namesrv.config import NamesrvConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import ACCESS_KEY_FIELD
from kerolox.remoting.audit import Audit
from kerolox.remoting.server import ServerConnection
from kerolox.security.access.accounts import Accounts
from kerolox.security.access.check import AccessControl
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.security.access.watching import AccountsWatch

ANY_CERTIFICATE = "*"


class Gate:
    """Lets requests in, or not. Without settings it lets all in."""

    def __init__(self, config: NamesrvConfig, audit: Audit) -> None:
        """Reads no file before :meth:`load`; until then nobody has an account."""
        self._addresses = config.writer_address_lists
        self._subjects = config.writer_subjects
        self._restricts_readers = config.restrict_readers
        self._audit = audit
        self._control: AccessControl | None = None
        self.accounts: AccountsWatch | None = None
        """Of whom the accounts are; to be examined again and again."""
        if config.writer_accounts is not None:
            from kerolox.security.access.files import AclFiles, Places
            from kerolox.security.access.watching import AccountsWatch

            self._control = AccessControl(Accounts(), is_strict=True)
            files = AclFiles(Places.of("", str(config.writer_accounts)))
            self.accounts = AccountsWatch(files, self._control.replace)

    @property
    def is_open(self) -> bool:
        """Whether anybody may do anything."""
        return not (self._addresses or self._subjects or self._control)

    def load(self) -> None:
        """Read the accounts; ConfigError says which file can't be read, and why."""
        if self.accounts is not None:
            self.accounts.load()

    def judged(
        self, command: RemotingCommand, connection: ServerConnection, *, changes: bool
    ) -> tuple[RemotingCommand | None, str]:
        """The answer to a request that may not be done, None: it may; and the access key of who
        proved to have an account. ``changes``: the request is one for writers.
        """
        if self.is_open or not (changes or self._restricts_readers):
            return None, ""
        host, subject = connection.peer[0], connection.certificate_subject
        if any(host in each for each in self._addresses):
            return None, ""
        if subject and (ANY_CERTIFICATE in self._subjects or subject in self._subjects):
            return None, ""
        reason, account = self._judged_account(command, host, changes=changes)
        if not reason:
            return None, account
        self._audit.denied(command, connection, reason, account=account)
        return command.response(ResponseCode.SYSTEM_ERROR, f"{ACL_EXCEPTION}: {reason}"), account

    def _judged_account(
        self, command: RemotingCommand, host: str, *, changes: bool
    ) -> tuple[str, str]:
        """Why the account of a request is not enough, empty: it is; and its access key if it is
        proven."""
        what = "change this name server" if changes else "ask this name server"
        ways = []
        if self._addresses:
            ways.append(f"{printable(host)} is not among writerAddresses")
        if self._subjects:
            ways.append("the client certificate is not among writerCertificates")
        if self._control is None:
            return f"not allowed to {what}: {'; '.join(ways)}", ""
        refusal = self._control.refusal(command, host)
        if refusal is not None:
            return f"not allowed to {what}: {'; '.join([*ways, refusal.text])}", ""
        if self._control.is_white(host):
            return "", ""
        key = command.ext_fields[ACCESS_KEY_FIELD]
        if changes and not self._control.accounts.by_key[key].is_admin:
            reason = f"Need admin permission for request code={command.code}"
            return f"{reason}, but accessKey={printable(key)} is not", key
        return "", key
