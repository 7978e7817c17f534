"""What is said of a certificate that is refused, by OpenSSL's number of the reason."""

from __future__ import annotations

import ssl

import pytest

from kerolox.security.certificate_faults import peer_fault
from kerolox.security.tls import handshake_fault

CLIENT, SERVER = "TlsSettings.ca", "tls.server.trustCertPath"


def error_of(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    error.verify_code, error.verify_message = code, "as OpenSSL has it."
    return error


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (9, "not valid yet (as OpenSSL has it.); examine the clocks"),
        (10, "not valid any more (as OpenSSL has it.); renew it there"),
        (62, "for another name (as OpenSSL has it); add this one"),
        (64, "for another name (as OpenSSL has it); add this one"),
        (26, "refused: as OpenSSL has it."),
    ],
)
def test_clients_and_servers_say_the_same(code: int, says: str) -> None:
    assert handshake_fault(error_of(code)) == peer_fault(error_of(code))
    assert handshake_fault(error_of(code)).startswith(f"its certificate is {says}")


@pytest.mark.parametrize("code", [2, 18, 19, 20, 21])
def test_each_side_names_its_own_setting_of_authorities(code: int) -> None:
    ours, theirs = handshake_fault(error_of(code)), peer_fault(error_of(code))
    for text, setting, other in ((ours, CLIENT, SERVER), (theirs, SERVER, CLIENT)):
        assert "signed by nobody that is trusted here" in text
        assert setting in text
        assert other not in text
