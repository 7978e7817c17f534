"""How a slave proves to its master that it has the account of an administrator.

The master gives a number that it uses once; the slave answers with the account's name and an
HMAC-SHA256 of that number under the account's secret. What is signed begins with words that no
request has, and requests are signed otherwise (:mod:`kerolox.security.signatures`), so that neither
is good for the other.
"""

from __future__ import annotations

import hmac

import msgspec

from kerolox.security.access.accounts import Accounts
from kerolox.security.credentials import Credentials
from kerolox.text import printable

_WORDS = b"kerolox replication\0"


class _Proof(msgspec.Struct):
    access_key: str = msgspec.field(name="accessKey")
    signature: str


def made_proof(credentials: Credentials, nonce: str) -> bytes:
    """What a slave answers to its master's number."""
    signature = _signature(credentials.secret_key, credentials.access_key, nonce)
    return msgspec.json.encode(_Proof(credentials.access_key, signature))


def proof_refusal(proof: bytes, nonce: str, accounts: Accounts) -> str:
    """Why an answer does not prove an administrator's account; empty: it does.

    White lists of accounts do not count: they are for clients.
    """
    try:
        given = msgspec.json.decode(proof, type=_Proof)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "it proves no account"
    shown = printable(given.access_key)
    account = accounts.by_key.get(given.access_key)
    if account is None:
        return f"No acl config for {shown}"
    wanted = _signature(account.secret_key, account.access_key, nonce)
    if not hmac.compare_digest(wanted.encode(), given.signature.encode("utf-8", "replace")):
        return f"Check signature failed for accessKey={shown}"
    if not account.is_admin:
        return f"a slave needs an administrator, and accessKey={shown} is none"
    return ""


def _signature(secret: str, access_key: str, nonce: str) -> str:
    signed = _WORDS + nonce.encode() + b"\0" + access_key.encode()
    return hmac.new(secret.encode(), signed, "sha256").hexdigest()
