"""Why the certificate of the other side is refused, and what to do: for clients and servers."""

from __future__ import annotations

import ssl
from enum import Enum

_NOT_YET, _EXPIRED = 9, 10
_UNKNOWN_ISSUER = frozenset((2, 18, 19, 20, 21))
_WRONG_NAME = frozenset((62, 64))
"""Results of the check of a certificate (``X509_V_ERR_...``)."""


class CertificateFault(Enum):
    """What is wrong with a certificate."""

    EXPIRED = "expired"
    NOT_YET = "not yet valid"
    AUTHORITY = "signed by nobody that is trusted"
    NAME = "for another name"
    OTHER = "refused"


def certificate_fault_kind(error: ssl.SSLCertVerificationError) -> CertificateFault:
    """What is wrong with it."""
    code = error.verify_code
    if code == _EXPIRED:
        return CertificateFault.EXPIRED
    if code == _NOT_YET:
        return CertificateFault.NOT_YET
    if code in _UNKNOWN_ISSUER:
        return CertificateFault.AUTHORITY
    return CertificateFault.NAME if code in _WRONG_NAME else CertificateFault.OTHER


def certificate_fault(error: ssl.SSLCertVerificationError, *, authority_advice: str) -> str:
    """Why a certificate is refused, and what to do: ``authority_advice`` says how this side comes
    to trust the one that has signed it.
    """
    text = error.verify_message
    match certificate_fault_kind(error):
        case CertificateFault.EXPIRED:
            return (
                f"its certificate is not valid any more ({text}); renew it there, or set the clock"
            )
        case CertificateFault.NOT_YET:
            return f"its certificate is not valid yet ({text}); examine the clocks of both sides"
        case CertificateFault.AUTHORITY:
            return (
                f"its certificate is signed by nobody that is trusted here ({text});"
                f" {authority_advice}"
            )
        case CertificateFault.NAME:
            return (
                f"its certificate is for another name ({text.rstrip('.')}); add this one to its"
                " subject alternative names, or switch check_host_name off"
            )
    return f"its certificate is refused: {text}"


_AUTHORITY_ADVICE = "add its authority to tls.server.trustCertPath"

_FAULTS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "it showed no certificate, which tls.server.need.client.auth=require asks for; give the "
        "client one (tls.client.certPath, tls.client.keyPath)"
    ),
    "UNSUPPORTED_PROTOCOL": (
        "it speaks TLS 1.1 or older, and 1.2 is the least; let the client speak a newer version"
    ),
    "NO_SHARED_CIPHER": (
        "there is no cipher that both sides take; let the client speak TLS 1.2 or 1.3 with ECDHE "
        "and AES-GCM or ChaCha20"
    ),
    "HTTP_REQUEST": "it speaks HTTP; the port is for clients of RocketMQ only",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "it does not trust who signed our certificate; give the client the authority's file "
        "(tls.client.trustCertPath), or tls.server.certPath one that it trusts, with all "
        "certificates in between"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds our certificate (tls.server.certPath) expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no version of TLS that is spoken here, 1.2 and 1.3",
}
_DISTRUST = frozenset(("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_BAD_CERTIFICATE"))


def peer_fault(error: ssl.SSLError) -> str:
    """Why a client's handshake failed, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_fault(error, authority_advice=_AUTHORITY_ADVICE)
    reason = error.reason or ""
    if reason in _FAULTS:
        return _FAULTS[reason]
    words = reason.replace("_", " ").lower() or "no reason given"
    if reason in _DISTRUST:
        return (
            f"it refuses our certificate ({words}): it does not know its authority, or its name is "
            "not the one that it connects to; examine the client's log"
        )
    if "ALERT" in reason:
        return f"it broke the handshake off ({words}); examine the client's log"
    return f"what it sent is no TLS that is understood here ({words})"
