"""The signature of a request: what is signed, in which order, with what (``AclSigner``).

HmacSHA1, as base64, over the **values** of the header fields in the order of their names, and the
body behind them. Clients sign with it (:mod:`kerolox.security.credentials`), and brokers do the
same to what arrives (:mod:`kerolox.security.access`).
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

from kerolox.protocol.names import SIGNATURE_FIELD, UNIQUE_KEY_QUERY_FIELD

ORDERS_MAX = 1_000
"""Kinds of requests whose order of fields is remembered."""

ORDERED_FIELDS_MAX = 64
ORDERED_NAMES_MAX = 1_024
"""Requests with more fields, or with more characters in their names, are sorted each time."""

UNSIGNED_FIELDS = frozenset((SIGNATURE_FIELD, UNIQUE_KEY_QUERY_FIELD))
"""Fields that a broker leaves out when it checks (``PlainAccessValidator``)."""

UNSIGNED_BY_OLDER = frozenset((SIGNATURE_FIELD,))
"""Those that clients of 4.9 leave out: they sign the mark of a query by the producer's id."""

_Values = Callable[[Mapping[str, str]], Iterable[str]]


class SignedOrder:
    """The order in which the values of header fields are signed. Remembers it for requests that
    have the same names."""

    __slots__ = ("_known", "_unsigned")

    def __init__(self, unsigned: frozenset[str] = UNSIGNED_FIELDS) -> None:
        """``unsigned``: names of fields that are left out."""
        self._unsigned = unsigned
        self._known: dict[tuple[str, ...], _Values] = {}

    def text(self, fields: Mapping[str, str], *, remember: bool = False) -> bytes:
        """What is signed of header fields; halves of surrogate pairs are ``?``, as in Java.

        ``remember``: requests with these names will come again. Nothing happens when they are
        unusually many or long, or when enough is remembered.
        """
        names = tuple(fields)
        values = self._known.get(names)
        if values is None:
            values = self._order(names)
            if remember and self._has_capacity_for(names):
                self._known[names] = values
        return "".join(values(fields)).encode("utf-8", "replace")

    def _has_capacity_for(self, names: tuple[str, ...]) -> bool:
        return (
            len(self._known) < ORDERS_MAX
            and len(names) <= ORDERED_FIELDS_MAX
            and sum(map(len, names)) <= ORDERED_NAMES_MAX
        )

    def _order(self, names: tuple[str, ...]) -> _Values:
        # Java compares UTF-16 units.
        ordered = sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        signed = [name for name in ordered if name not in self._unsigned]
        # Of one name an itemgetter gives the text itself, which is as good for a join.
        return itemgetter(*signed) if signed else lambda fields: ()


class SecretKey:
    """Makes signatures with one secret. Shows nothing of it."""

    __slots__ = ("_mac",)

    def __init__(self, secret_key: str) -> None:
        # Copied for each request: to make one anew costs as much as all the rest.
        self._mac = hmac.new(secret_key.encode("utf-8", "replace"), digestmod="sha1")

    def signature(self, text: bytes, body: bytes) -> str:
        """The signature over :meth:`SignedOrder.text` and a body: 28 characters of base64."""
        mac = self._mac.copy()
        mac.update(text)
        mac.update(body)
        return b2a_base64(mac.digest(), newline=False).decode()
