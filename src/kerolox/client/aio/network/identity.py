"""Who a client is: its client id, its name servers, its namespace."""

from __future__ import annotations

import os
import time

from kerolox.addresses import split_address
from kerolox.client.core.namespaces import namespace_of_endpoint
from kerolox.errors import ConfigError
from kerolox.text import printable, split_list

NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
"""The environment variable that stands in for a name server that is not given."""

ENDPOINT_SCHEME = "http://"


def client_id_of(ip: str, instance_name: str, *, keep_default: bool, unit_name: str = "") -> str:
    """``ip@pid#nanoseconds``, or ``ip@instance`` for a name that was chosen; ``unit_name`` is a
    further part, if there is one. ``keep_default``: leave the name DEFAULT as it is.
    """
    if instance_name == "DEFAULT" and not keep_default:
        instance_name = f"{os.getpid()}#{time.perf_counter_ns()}"
    return f"{ip}@{instance_name}@{unit_name}" if unit_name.strip() else f"{ip}@{instance_name}"


def namespace_of(given: str, name_server: str) -> str:
    """The namespace that is given, else the one that the name server's address implies."""
    address = name_server.strip() or os.environ.get(NAME_SERVER_VARIABLE, "")
    return given or namespace_of_endpoint(address)


def name_servers_of(text: str, *, may_be_none: bool = False) -> tuple[str, ...]:
    """The addresses of ``a:9876;b:9876``, or of the one endpoint ``http://a:9876``; an empty text
    means ``$NAMESRV_ADDR``. ConfigError: none given (unless that may be), or one is not
    ``host:port``.
    """
    text = text.strip() or os.environ.get(NAME_SERVER_VARIABLE, "").strip()
    if text.startswith(ENDPOINT_SCHEME):
        # One endpoint: what else is in the text is no part of it.
        text = text.removeprefix(ENDPOINT_SCHEME).removesuffix("/")
        if ";" in text:
            raise ConfigError(
                f"name servers {printable(ENDPOINT_SCHEME + text)!r} are several: write them "
                f"without {ENDPOINT_SCHEME}, as host:port joined by ';'"
            )
    addresses = tuple(dict.fromkeys(split_list(text)))
    if not addresses and not may_be_none:
        raise ConfigError(
            f"no name server is given; pass name_server='host:9876' or set {NAME_SERVER_VARIABLE}"
        )
    return checked_addresses(addresses)


def checked_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The same addresses; ConfigError: one is not ``host:port``."""
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(f"name server {error}, several joined by ';'") from None
    return addresses
