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
    """Why a certificate is refused, and what to do.

    Args:
        error: the result of the check.
        authority_advice: how this side comes to trust the one that has signed it.
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
