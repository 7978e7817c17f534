"""A certificate that a server makes for itself (``tls.test.mode.enable``).

It encrypts, and proves nothing: clients that check certificates refuse it. RocketMQ's clients check
none by default.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.security.server.contexts import bare_context

VALID_DAYS = 365 * 10
NAME = "kerolox test mode"


def self_signed_context() -> ssl.SSLContext:
    """A context with a certificate that is made now, of P-256. It takes some 0.2 s the first time.
    ConfigError: the package that makes certificates is missing, or there is no space for files.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "this server has no certificate, and can't make one without the package cryptography; "
            "name one (tls.server.certPath, tls.server.keyPath), pip install 'kerolox[tls]', or "
            "set tls.server.mode=disabled"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = bare_context()
    try:
        # Python reads certificates from files only.
        with tempfile.TemporaryDirectory(prefix="kerolox-tls-") as folder:
            path = Path(folder) / "self-signed.pem"
            path.touch(mode=0o600)
            path.write_bytes(pem)
            context.load_cert_chain(path)
    except OSError as error:
        raise ConfigError(
            f"the certificate of tls.test.mode.enable can't be written to {tempfile.gettempdir()}: "
            f"{error.strerror or error}"
        ) from None
    return context
