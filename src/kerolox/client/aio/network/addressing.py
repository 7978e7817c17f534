"""Asks a web server where the name servers are, for clients that were given none.

The client asks it at the start, after ten seconds, and every two minutes from then on. What it said
last stays in force while it does not answer, or answers with something else.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kerolox.client.aio.network.identity import name_servers_of
from kerolox.client.core.addressing import address_of_answer, address_server_url
from kerolox.client.core.failures import note_failure
from kerolox.client.threads import to_thread
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from kerolox.client.aio.settings import ClientSettings
    from kerolox.client.core.failures import FailureCallback

ADDRESS_FIRST_MS, ADDRESS_INTERVAL_MS = 10_000, 120_000
"""When after the start it is asked again for the first time, and how often then."""

ANSWER_SECONDS_MAX = 3.0
ANSWER_BYTES_MAX = 64 * 1024
DOMAIN_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN"
"""The environment variable that stands in for a domain that is not given (Java has the system
property ``rocketmq.namesrv.domain``)."""

_log = logging.getLogger(__name__)


class AddressServer:
    """A web server that knows the name servers."""

    def __init__(self, url: str, on_failure: FailureCallback | None = None) -> None:
        """``on_failure``: told of answers that don't come."""
        self.url = url
        self._on_failure = on_failure

    async def fetch(self) -> tuple[str, ...]:
        """The name servers; none when that could not be found out, which is logged."""
        # Few clients have such a server, and these modules take long to import.
        from http.client import HTTPException

        try:
            addresses = address_of_answer(await to_thread(self._get))
            if not addresses:
                raise ConfigError("the answer is empty")
            return name_servers_of(addresses)
        except (OSError, HTTPException, ValueError, ConfigError) as error:
            what = f"no name servers from {self.url}"
            note_failure(self._on_failure, _log, what, error, is_expected=True)
            return ()

    def _get(self) -> str:
        import urllib.error
        import urllib.request

        # Proxies of the environment are for the outside; this server is one of the cluster's.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.url, timeout=ANSWER_SECONDS_MAX) as answer:
                data: bytes = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            error.close()  # It holds the connection.
            raise
        return data.decode()


def sources_of(
    name_server: str, settings: ClientSettings
) -> tuple[tuple[str, ...], AddressServer | None]:
    """The name servers that are given, or else the web server to ask; ConfigError: neither is
    given, or an address is illegal.
    """
    domain = settings.name_server_domain or os.environ.get(DOMAIN_VARIABLE, "").strip()
    if not domain:
        return name_servers_of(name_server), None
    given = name_servers_of(name_server, may_be_none=True)
    if given:
        return given, None
    url = address_server_url(domain, settings.name_server_subgroup, settings.unit_name)
    return (), AddressServer(url, settings.on_failure)
