"""The way to a server, tried step by step: the name, each of its IP addresses, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl

from kerolox.addresses import join_address, split_address
from kerolox.doctor.facts import PathFacts
from kerolox.security.certificate_faults import CertificateFault, certificate_fault_kind
from kerolox.security.tls import handshake_fault, handshake_fault_kind

IP_ADDRESSES_MAX = 8
"""Of one host that are tried."""


async def try_path(
    address: str, tls: ssl.SSLContext | None, *, timeout_seconds: float
) -> PathFacts:
    """Try the way to a server. ``tls``: how clients speak to it; None: in plain text, and TLS is
    not tried. ``timeout_seconds``: of each step.
    """
    try:
        host, port = split_address(address)
    except ValueError as error:
        return PathFacts(address=address, name_fault=str(error))
    try:
        hosts = await _ip_addresses(host, port, timeout_seconds)
    except OSError as error:
        return PathFacts(address=address, name_fault=_reason(error, timeout_seconds))
    tries = await asyncio.gather(*(_open(ip, port, timeout_seconds) for ip in hosts))
    faults = dict(zip(hosts, tries, strict=True))
    facts = PathFacts(
        address=address,
        reached=tuple(ip for ip, fault in faults.items() if not fault),
        unreached={ip: fault for ip, fault in faults.items() if fault},
    )
    if tls is None or not facts.reached:
        return facts
    return await _with_tls(facts, tls, host, port, timeout_seconds)


async def speaks_tls(path: PathFacts, *, timeout_seconds: float) -> bool:
    """Whether the server speaks TLS at all, whatever its certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, port = split_address(path.address)
    tried = await _with_tls(path, context, host, port, timeout_seconds)
    return bool(tried.speaks_tls)


def vip_address(address: str) -> str | None:
    """``host:port`` of the VIP port that clients make of an address (``MixAll.brokerVIPChannel``);
    None: there can be none."""
    try:
        host, port = split_address(address)
    except ValueError:
        return None
    return join_address(host, port - 2) if port > 2 else None


def is_of_this_machine(ip: str) -> bool:
    """Whether an IP address is one of this machine's own."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


async def _ip_addresses(host: str, port: int, seconds: float) -> list[str]:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))[:IP_ADDRESSES_MAX]


async def _open(ip: str, port: int, seconds: float) -> str:
    """Why no connection could be opened; empty: one could."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(ip, port)
    except OSError as error:
        return _reason(error, seconds)
    writer.transport.abort()
    return ""


async def _with_tls(
    facts: PathFacts, tls: ssl.SSLContext, host: str, port: int, seconds: float
) -> PathFacts:
    fault, handshake, kind, until = "", None, None, None
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(
                facts.reached[0], port, ssl=tls, server_hostname=host
            )
    except TimeoutError:
        fault = f"the TLS handshake is not done after {seconds:g} s; does it speak TLS?"
    except OSError as error:
        fault, handshake = handshake_fault(error), handshake_fault_kind(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            kind = certificate_fault_kind(error)
    else:
        with contextlib.suppress(ValueError):
            until = _expiry_ms(writer.get_extra_info("peercert"))
        writer.transport.abort()
    return PathFacts(
        address=facts.address,
        reached=facts.reached,
        unreached=facts.unreached,
        tls_fault=fault,
        handshake_fault=handshake,
        certificate_fault=kind,
        # Whoever shows a certificate speaks TLS, whatever is wrong with it.
        speaks_tls=not fault or isinstance(kind, CertificateFault),
        certificate_until_ms=until,
    )


def _expiry_ms(certificate: dict[str, object] | None) -> int | None:
    until = (certificate or {}).get("notAfter")
    return ssl.cert_time_to_seconds(until) * 1000 if isinstance(until, str) else None


def _reason(error: OSError, seconds: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no answer within {seconds:g} s"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    # The loops' own texts name the address again.
    return os.strerror(error.errno) if error.errno in errno.errorcode else str(error)
