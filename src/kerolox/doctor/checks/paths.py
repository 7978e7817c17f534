"""The way to servers: name, port, TLS, account, and who answers."""

from __future__ import annotations

from collections.abc import Iterator

from kerolox.addresses import is_loopback, split_address
from kerolox.doctor.facts import BrokerFacts, ClusterSnapshot, PathFacts
from kerolox.doctor.findings import Finding
from kerolox.errors import (
    AccessDeniedError,
    ConnectionLostError,
    KeroloxError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
)
from kerolox.security.certificate_faults import CertificateFault
from kerolox.security.tls import HandshakeFault
from kerolox.text import time_text

EXPIRES_SOON_MS = 21 * 24 * 3600 * 1000
"""A certificate that expires within so long should be renewed now."""

_CERTIFICATES = {
    CertificateFault.EXPIRED: (
        "tls-expired",
        "renew the certificate of the server; Kerolox takes new files without a restart",
    ),
    CertificateFault.NOT_YET: (
        "tls-not-yet-valid",
        "compare the clocks of both sides; else wait, or have a certificate made that counts now",
    ),
    CertificateFault.AUTHORITY: (
        "tls-unknown-authority",
        "give clients the certificate of its authority (tls.client.trustCertPath in the file of"
        " --tls-config)",
    ),
    CertificateFault.NAME: (
        "tls-wrong-name",
        "have a certificate made whose subject alternative names have this host or address, or set"
        " tls.client.checkHostName=false",
    ),
    CertificateFault.OTHER: ("tls-refused", "have another certificate made for the server"),
}

_SWITCH_TLS = "switch TLS on there (tls.server.mode), or off here (--tls, --tls-config)"

_HANDSHAKES: dict[HandshakeFault | None, tuple[str, str]] = {
    HandshakeFault.NOT_SPOKEN: ("tls-not-spoken", _SWITCH_TLS),
    HandshakeFault.CLOSED: ("tls-not-spoken", _SWITCH_TLS),
    HandshakeFault.REFUSED: (
        "tls-refused",
        "give it a certificate of ours (tls.client.certPath and keyPath)",
    ),
}

_DENIALS = (
    (
        "signature",
        "the secret key is not the one that the broker has: correct it, or the account in"
        " plain_acl.yml",
    ),
    (
        "no acl config",
        "the broker has no such access key: add the account to plain_acl.yml of each broker, or"
        " use another",
    ),
    (
        "admin permission",
        "look with an account that has admin: true in plain_acl.yml",
    ),
    (
        "permission",
        "let the account do it (topicPerms, groupPerms, admin in plain_acl.yml), or use another",
    ),
)
"""A part of the remark (of RocketMQ 4.9.8, and ours) → what to do."""


def path_findings(path: PathFacts, server: str) -> Iterator[Finding]:
    """What is wrong on the way to a server; ``server``: what it is called."""
    where = path.address
    if path.name_fault:
        yield Finding(
            "name-unknown",
            where,
            f"the host of the {server} has no address: {path.name_fault}",
            "correct the name, or add it to DNS or /etc/hosts of this machine",
        )
        return
    if not path.reached:
        tried = "; ".join(f"{ip}: {fault}" for ip, fault in path.unreached.items())
        yield Finding(
            "unreachable",
            where,
            f"the {server} can't be reached from here ({tried})",
            "start it if it is down; else examine its port, firewalls and routes in between",
        )
        return
    yield from _families(path, server)
    if path.tls_fault:
        if path.certificate_fault is not None:
            code, advice = _CERTIFICATES[path.certificate_fault]
        else:
            code, advice = _HANDSHAKES.get(path.handshake_fault, ("tls-refused", _SWITCH_TLS))
        yield Finding(code, where, f"no TLS with the {server}: {path.tls_fault}", advice)


def _families(path: PathFacts, server: str) -> Iterator[Finding]:
    """A host of both families of which one leads nowhere."""
    works = {":" in ip for ip in path.reached}
    for ip, fault in path.unreached.items():
        if works == {":" not in ip}:
            good, bad = ("IPv4", "IPv6") if ":" in ip else ("IPv6", "IPv4")
            yield Finding(
                "ipv6-half",
                path.address,
                f"the host of the {server} has addresses of both families, and only {good} works"
                f" ({ip}: {fault})",
                f"have the server listen on {bad}, too (listenHost=*), or take that address of the"
                " name away: clients that try it first wait or fail",
            )


def check_paths(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Names, ports, TLS, accounts of name servers and brokers."""
    for each in snapshot.name_servers:
        yield from path_findings(each.path, "name server")
        yield from _certificate_age(each.path, snapshot, "name server")
        if each.first.fault is not None:
            yield from _answer(each.first.fault, each.path, snapshot, "name server")
    for broker in snapshot.brokers:
        yield from _advertised(broker, snapshot)
        yield from _certificate_age(broker.path, snapshot, "broker")
        if broker.faults:
            yield from _answer(broker.faults[0], broker.path, snapshot, "broker")


def _advertised(broker: BrokerFacts, snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """The address that name servers tell clients."""
    host = _host(broker.node.address)
    others = [each for each in snapshot.name_servers if each.path.reached]
    is_near = any(is_loopback(ip) for each in others for ip in each.path.reached)
    if broker.is_registered and is_loopback(host) and others and not is_near:
        yield Finding(
            "advertised-loopback",
            broker.node.address,
            f"{broker.node} is registered under an address that only its own machine reaches",
            "set brokerIP1 (or advertisedAddress) of the broker to the address that clients reach,"
            " and restart it",
        )
        return
    for finding in path_findings(broker.path, "broker"):
        if finding.code in ("name-unknown", "unreachable") and broker.is_registered:
            yield Finding(
                finding.code,
                finding.where,
                f"{broker.node} is registered, but {finding.what}",
                "if the broker runs, this is the wrong address: set brokerIP1 and listenPort (or"
                " advertisedAddress) to what clients reach from here; else start it",
            )
        else:
            yield finding


def _certificate_age(path: PathFacts, snapshot: ClusterSnapshot, server: str) -> Iterator[Finding]:
    until = path.certificate_until_ms
    if until is not None and until - snapshot.now_ms < EXPIRES_SOON_MS:
        yield Finding(
            "tls-expires-soon",
            path.address,
            f"the certificate of the {server} expires at {time_text(until)}",
            "renew it now; a Kerolox server takes the new files without a restart",
        )


def _answer(
    fault: KeroloxError, path: PathFacts, snapshot: ClusterSnapshot, server: str
) -> Iterator[Finding]:
    """Why a server that was reached did not say what it was asked."""
    where, said = path.address, f"the {server} was reached, but"
    if isinstance(fault, AccessDeniedError):
        yield Finding(
            "account-refused", where, f"{said} refuses us: {fault.remark}", _denied(fault, snapshot)
        )
    elif isinstance(fault, RequestCodeNotSupportedError) and server == "name server":
        yield Finding(
            "not-a-name-server",
            where,
            "what answers there speaks RocketMQ, and is no name server",
            "give the port of a name server (9876 as a rule), not that of a broker",
        )
    elif isinstance(fault, ConnectionLostError) and path.speaks_tls and not snapshot.encrypts:
        yield Finding(
            "tls-needed",
            where,
            f"{said} takes TLS only",
            "switch TLS on here (--tls or --tls-config), and in all clients",
        )
    elif isinstance(fault, (ConnectionLostError, RemoteProtocolError)):
        yield Finding(
            "not-rocketmq",
            where,
            f"{said} what answers there does not speak RocketMQ's protocol: {fault}",
            f"look which program has the port; give the one of the {server}",
        )
    elif isinstance(fault, RequestTimeoutError):
        yield Finding(
            "silent",
            where,
            f"{said} does not answer: {fault}",
            "examine its log and its process (kerolox broker: SIGUSR1 logs what it does); it hangs,"
            " is stopped, or does not speak RocketMQ's protocol",
        )
    else:
        yield Finding(
            "check-failed",
            where,
            f"{said} did not say what it was asked: {fault}",
            "examine its log",
        )


def _denied(fault: AccessDeniedError, snapshot: ClusterSnapshot) -> str:
    if not snapshot.signs:
        return (
            "the broker has access control on: give an account (--access-key and"
            " $KEROLOX_SECRET_KEY, or a context with --credentials)"
        )
    remark = fault.remark.lower()
    return next((advice for part, advice in _DENIALS if part in remark), fault.hint)


def check_identities(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Who answers at an address, at its VIP port, and of which families addresses are."""
    for broker in snapshot.brokers:
        name = (broker.settings or {}).get("brokerName", "")
        if broker.is_registered and name and name != broker.node.broker_name:
            yield Finding(
                "address-of-another",
                broker.node.address,
                f"{broker.node} is registered there, and broker {name!r} answers",
                "correct brokerIP1 and listenPort (or advertisedAddress) of"
                f" {broker.node.broker_name}, or the forwarding of ports in between",
            )
        yield from _vip_port(broker)
    yield from _broker_families(snapshot)


def _vip_port(broker: BrokerFacts) -> Iterator[Finding]:
    path, settings = broker.vip_path, broker.settings or {}
    if path is None:
        return
    name = settings.get("brokerName", "")
    if broker.vip_name not in (None, name):
        yield Finding(
            "vip-port-clash",
            broker.node.address,
            f"at its VIP port ({path.address}), where Java clients may send, broker"
            f" {broker.vip_name!r} answers",
            "give brokers of one machine ports that are at least 3 apart (listenPort, the VIP port"
            " listenPort-2 and the slaves' listenPort+1 are all taken)",
        )
        return
    # A broker that was told to open none has none, and so has one on any free port.
    has_one = settings.get("vipPortEnable") != "false" and settings.get("listenPort") != "0"
    if not path.reached and has_one and broker.path.reached:
        yield Finding(
            "vip-port-closed",
            broker.node.address,
            f"its VIP port ({path.address}) can't be reached from here; Java clients with"
            " vipChannelEnabled, the default of old ones, send there",
            "let the port through (firewall, container), or set vipChannelEnabled=false in clients;"
            " a Kerolox broker without it has vipPortEnable=false",
        )


def _broker_families(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    hosts = {each.node: _host(each.node.address) for each in snapshot.brokers if each.is_registered}
    v6 = [node for node, host in hosts.items() if ":" in host]
    v4 = [node for node, host in hosts.items() if host.replace(".", "").isdigit()]
    if v6 and v4:
        yield Finding(
            "address-families-differ",
            v6[0].address,
            f"{v6[0]} is registered with an IPv6 address and {v4[0]} with one of IPv4; clients need"
            " both, and old ones read IPv4 only",
            "set brokerIP1 of all brokers to addresses of one family, or to names",
        )


def _host(address: str) -> str:
    try:
        return split_address(address)[0]
    except ValueError:
        return ""
