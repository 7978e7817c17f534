"""The web server that knows the name servers: its address and its answer (``TopAddressing``)."""

from __future__ import annotations

from kerolox.errors import ConfigError
from kerolox.text import printable

DEFAULT_PORT = 8080


def address_server_url(domain: str, subgroup: str, unit_name: str = "") -> str:
    """What is asked: ``http://domain:8080/rocketmq/subgroup``; a domain with a port keeps it, a
    unit has an address of its own. ConfigError: the domain is a URL other than ``http://domain``.
    """
    named = domain.strip().removeprefix("http://").removesuffix("/")
    if "/" in named:
        raise ConfigError(
            f"name_server_domain is {printable(domain)!r}; write a host, or host:port: it is asked "
            "by http"
        )
    host = named if ":" in named else f"{named}:{DEFAULT_PORT}"
    unit = f"-{unit_name}?nofix=1" if unit_name.strip() else ""
    return f"http://{host}/rocketmq/{subgroup}{unit}"


def address_of_answer(text: str) -> str:
    """The addresses, joined by ``;``: the first line of the answer; the rest is for others."""
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
