"""Contexts of servers, made of the files that their settings name.

A file that can't be used is an error that names the setting, the file, what is wrong, and what to
do. TLS 1.2 and 1.3 with the ciphers that Python's ``ssl`` prefers: forward secrecy, authenticated.
Sessions are resumed by tickets, whose keys live as long as the context.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.role_settings import TlsServerSettings
from kerolox.security.server.certificates import CertificateInfo, certificate_info, read_pem
from kerolox.text import printable

CERT_PATH, KEY_PATH, KEY_PASSWORD, TRUST_PATH = (
    "tls.server.certPath",
    "tls.server.keyPath",
    "tls.server.keyPassword",
    "tls.server.trustCertPath",
)
PASSWORD_BYTES_MAX = 1023
"""Of OpenSSL."""

Snapshot = tuple[bytes, ...]
"""What the files held when they were read."""


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The files of a server's TLS, as settings name them."""

    certificate: Path
    key: Path
    """The certificate's own file where no other is named."""
    key_setting: str
    trust: Path | None
    password: str
    is_certificate_required: bool

    @classmethod
    def of(cls, settings: TlsServerSettings) -> ServerFiles:
        """Those of settings that are not in test mode; ConfigError: one is missing, or settings
        contradict each other.
        """
        if not settings.tls_server_cert_path:
            raise ConfigError(
                f"{CERT_PATH} is missing: TLS needs a certificate; name its file and that of its "
                f"key ({KEY_PATH}), or set tls.server.mode=disabled"
            )
        trust = None
        if settings.is_client_asked:
            if not settings.tls_server_trust_cert_path:
                raise ConfigError(
                    f"{TRUST_PATH} is missing: clients are asked for certificates "
                    "(tls.server.need.client.auth, tls.server.authClient); name the file of the "
                    "authorities that sign them"
                )
            trust = Path(settings.tls_server_trust_cert_path).expanduser()
        certificate = Path(settings.tls_server_cert_path).expanduser()
        key = settings.tls_server_key_path
        return cls(
            certificate=certificate,
            key=Path(key).expanduser() if key else certificate,
            key_setting=KEY_PATH if key else CERT_PATH,
            trust=trust,
            password=settings.tls_server_key_password,
            is_certificate_required=settings.is_client_certificate_required,
        )

    def snapshot(self) -> Snapshot:
        """What the files hold; ConfigError: one can't be read, or is no PEM."""
        held = [
            read_pem(self.certificate, CERT_PATH, "CERTIFICATE", "certificate"),
            read_pem(self.key, self.key_setting, "PRIVATE KEY", "private key"),
        ]
        if self.trust is not None:
            held.append(read_pem(self.trust, TRUST_PATH, "CERTIFICATE", "certificate"))
        return tuple(held)

    def load(self) -> tuple[ssl.SSLContext, CertificateInfo]:
        """The context, and whose certificate it has; ConfigError: a file can't be used."""
        certificate_text, key_text, *_ = self.snapshot()
        context = bare_context()
        info = certificate_info(certificate_text, self.certificate, CERT_PATH)
        self._load_pair(context, is_encrypted=b"ENCRYPTED" in key_text)
        if self.trust is not None:
            self._load_trust(context, self.trust)
        return context, info

    def _load_pair(self, context: ssl.SSLContext, *, is_encrypted: bool) -> None:
        where = f"{self.key_setting}: the key in {_shown(self.key)}"
        if is_encrypted and not self.password:
            raise ConfigError(f"{where} is encrypted; give its password ({KEY_PASSWORD})")
        if len(self.password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
            raise ConfigError(f"{KEY_PASSWORD} has more than {PASSWORD_BYTES_MAX} bytes")
        try:
            context.load_cert_chain(self.certificate, self.key, lambda: self.password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or ""
            if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
                raise ConfigError(
                    f"{where} does not belong to the certificate in {_shown(self.certificate)} "
                    f"({CERT_PATH}), the first one there; name those that were made together"
                ) from None
            if reason in _WEAK:
                raise ConfigError(
                    f"{CERT_PATH}: OpenSSL refuses {_shown(self.certificate)} or its key as weak "
                    f"({_words(reason)}); have 2048 bits of RSA, or P-256, signed with SHA-256"
                ) from None
            if is_encrypted:
                raise ConfigError(
                    f"{where} does not open with {KEY_PASSWORD}: the password is wrong, or the "
                    f"encryption is one that OpenSSL does not know"
                ) from None
            raise ConfigError(
                f"{where}, or the certificates in {_shown(self.certificate)} ({CERT_PATH}), can't "
                f"be used: {_words(reason) or 'damaged'}; write both files anew"
            ) from None

    def _load_trust(self, context: ssl.SSLContext, trust: Path) -> None:
        context.verify_mode = (
            ssl.CERT_REQUIRED if self.is_certificate_required else ssl.CERT_OPTIONAL
        )
        try:
            context.load_verify_locations(trust)
        except (OSError, ValueError) as error:
            reason = _words(getattr(error, "reason", None) or "") or "damaged"
            raise ConfigError(
                f"{TRUST_PATH}: a certificate in {_shown(trust)} can't be used: {reason}"
            ) from None


def bare_context() -> ssl.SSLContext:
    """A server's context, without a certificate. Compression is off in Python's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Clients of gRPC insist on it. Those of remoting name no protocol, and are not concerned.
    context.set_alpn_protocols(["h2"])
    return context


_WEAK = frozenset(("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "EE_MD_TOO_WEAK"))


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def _shown(path: Path) -> str:
    return printable(str(path))
