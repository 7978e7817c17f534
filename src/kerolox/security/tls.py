"""TLS to name servers and brokers: what a client believes, and what it says when that fails.

A name server or broker of RocketMQ sees from the first byte of a connection whether it speaks TLS
(``tls.server.mode``: ``permissive`` takes both, ``enforcing`` TLS only, ``disabled`` none).
"""

from __future__ import annotations

import ssl
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Self

from kerolox.errors import ConfigError
from kerolox.message import is_true
from kerolox.security.certificate_faults import certificate_fault
from kerolox.settings_class import settings_dataclass
from kerolox.text import printable

FILE_BYTES_MAX = 64 * 1024
"""A file of TLS settings has no more."""

SESSIONS_MAX = 64
"""Hosts whose last session is kept."""

_AUTHORITY_ADVICE = "give the file of its CA (TlsSettings.ca, tls.client.trustCertPath)"


class ResumingContext(ssl.SSLContext):
    """A context of clients whose next connection to a host goes on with the session of the last
    one, where the server takes that: neither side signs or checks certificates again. For both
    kinds of loops, whose TLS is made by ``wrap_bio``."""

    _sessions: dict[str, ssl.SSLSession]

    def __new__(cls) -> Self:
        """For TLS 1.2 and later; certificates are checked."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made._sessions = {}
        return made

    def __init__(self) -> None:
        """Nothing: what makes a context is ``__new__``."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As the base; a loop calls it for each connection."""
        session = session or self.session_of(server_hostname)
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def session_of(self, host: str | bytes | None) -> ssl.SSLSession | None:
        """The session that a new connection goes on with; None: there is none."""
        return self._sessions.get(host) if isinstance(host, str) else None

    def keep(self, ended: ssl.SSLObject | ssl.SSLSocket) -> None:
        """A connection of this context ends; its tickets came with what it read."""
        session, host = ended.session, ended.server_hostname
        if session is None or not host:
            return
        self._sessions.pop(host, None)
        self._sessions[host] = session
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]


def keep_session(ended: object) -> None:
    """What a connection spoke TLS with, at its end: the next one may go on with its session."""
    if isinstance(ended, (ssl.SSLObject, ssl.SSLSocket)):
        context = ended.context
        if isinstance(context, ResumingContext):
            context.keep(ended)


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How to speak TLS. Files are PEM; each field's text gives RocketMQ's name.

    Unlike RocketMQ's clients, whose defaults believe any server, these check the server's
    certificate, and that it was made for the host or the address that is connected to. Brokers are
    connected to as their routes name them, mostly by IP address: either the certificates have these
    as subject alternative names, or ``check_host_name`` is off.
    """

    ca: str | Path | None = None
    """File of the certificates that are trusted to sign servers' ones
    (``tls.client.trustCertPath``); None: those of the system."""
    certificate: str | Path | None = None
    """Our certificate, with those between it and the CA, for servers that ask for one
    (``tls.client.certPath``)."""
    key: str | Path | None = None
    """Its private key (``tls.client.keyPath``); None: it is in the certificate's file."""
    key_password: str | None = field(default=None, repr=False)
    """What the private key is encrypted with (``tls.client.keyPassword``)."""
    verify: bool = True
    """Check the server's certificate (``tls.client.authServer``, which is false in RocketMQ).
    Without it a connection is encrypted, but to anybody."""
    check_host_name: bool = True
    """The certificate must be for the host or the address that is connected to."""

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise ConfigError("tls: key is given, but no certificate that it belongs to")

    @classmethod
    def from_file(cls, path: str | Path) -> TlsSettings:
        """Read the properties that RocketMQ's clients read (``tls.config.file``), those that begin
        with ``tls.client.``; others are for servers.

        ``tls.client.authServer`` is true here where it is missing. ``tls.client.checkHostName`` is
        our own, true where it is missing.

        Raises:
            ConfigError: it can't be read.
        """
        from kerolox.properties import parse_properties  # few have such a file

        path = Path(path)
        try:
            with path.open("rb") as file:
                values = parse_properties(file.read(FILE_BYTES_MAX).decode(), where=str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise ConfigError(f"can't read TLS settings from {path}: {reason}") from None
        given = {
            name.removeprefix("tls.client."): value.strip()
            for name, value in values.items()
            if name.startswith("tls.client.") and value.strip()
        }
        return cls(
            ca=given.get("trustCertPath"),
            certificate=given.get("certPath"),
            key=given.get("keyPath"),
            key_password=given.get("keyPassword"),
            verify=is_true(given.get("authServer", "true")),
            check_host_name=is_true(given.get("checkHostName", "true")),
        )

    def context(self) -> ssl.SSLContext:
        """The context of connections with these settings; reads the files.

        Raises:
            ConfigError: a file is missing, no PEM, or its password is wrong; the text names it.
        """
        context = ResumingContext()
        context.check_hostname = self.verify and self.check_host_name
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        elif self.ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(self.ca)
            except (OSError, ValueError) as error:
                raise _unusable("ca", self.ca, error) from None
        if self.certificate is not None:
            self._load_certificate(context, self.certificate)
        return context

    def _load_certificate(self, context: ssl.SSLContext, certificate: str | Path) -> None:
        def password() -> str:
            # Without this the terminal is asked.
            if self.key_password is None:
                raise ConfigError(
                    f"tls: the private key in {self.key or certificate} is encrypted; give its"
                    " key_password"
                )
            return self.key_password

        try:
            context.load_cert_chain(certificate, self.key, password)
        except (OSError, ValueError) as error:
            files = " and ".join(str(path) for path in (certificate, self.key) if path is not None)
            raise _unusable("certificate and key", files, error) from None


Tls = bool | TlsSettings | ssl.SSLContext
"""What ``tls=`` takes: True for the defaults, False for none, settings, or a context made for
clients (``ssl.create_default_context()``)."""


def context_of(tls: Tls) -> ssl.SSLContext | None:
    """The context of connections; None: they are not encrypted. ConfigError: a file can't be used,
    or the context is one for servers.
    """
    check_tls(tls)
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, TlsSettings):
        return tls.context()
    return TlsSettings().context() if tls else None


def check_tls(tls: object) -> None:
    """Refuse by a ConfigError what ``tls=`` can't be, or a context for servers; files are not
    examined.
    """
    if isinstance(tls, ssl.SSLContext):
        if tls.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ConfigError("tls is a context for servers; make ssl.create_default_context()")
    elif not isinstance(tls, (bool, TlsSettings)):
        raise ConfigError(
            f"tls is a {type(tls).__name__}; it must be True, False, TlsSettings or ssl.SSLContext"
        )


def is_handshake_error(error: OSError) -> bool:
    """The connection was there, but no TLS on it."""
    return isinstance(error, (ssl.SSLError, ConnectionResetError, ConnectionAbortedError))


class HandshakeFault(Enum):
    """Why a TLS handshake failed."""

    CERTIFICATE = "the other side's certificate is refused here"
    NOT_SPOKEN = "the other side does not speak TLS"
    REFUSED = "the other side refuses ours: it wants a certificate, or another version"
    CLOSED = "the other side closed the connection: it does not speak TLS, or refuses ours"
    OTHER = "anything else"


def handshake_fault_kind(error: OSError) -> HandshakeFault:
    """Why a TLS handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFault.CERTIFICATE
    # Python 3.11.2, which Debian 12 has, gives no reason with an end of the stream.
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return HandshakeFault.CLOSED
    if not isinstance(error, ssl.SSLError) or error.reason in _CLOSED:
        return HandshakeFault.CLOSED
    if error.reason in _PLAIN:
        return HandshakeFault.NOT_SPOKEN
    return HandshakeFault.REFUSED if "ALERT" in (error.reason or "") else HandshakeFault.OTHER


def handshake_fault(error: OSError) -> str:
    """Why a TLS handshake failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_fault(error, authority_advice=_AUTHORITY_ADVICE)
    reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
    match handshake_fault_kind(error):
        case HandshakeFault.NOT_SPOKEN:
            return f"it does not speak TLS ({reason}); is the port right, is TLS on there?"
        case HandshakeFault.REFUSED:
            return (
                f"it refuses our side of TLS ({reason}); does it want a certificate of ours"
                " (TlsSettings.certificate), or another version?"
            )
        case HandshakeFault.CLOSED:
            return (
                "it closed the connection during the TLS handshake; it does not speak TLS"
                " (tls.server.mode of a RocketMQ server is disabled), or refuses our certificate"
            )
    return f"TLS failed: {reason}"


def why_closed(error: Exception | None, *, has_received: bool) -> str:
    """What is known of the end of a connection with TLS; empty: nothing. ``has_received``:
    something has come from there.

    With TLS 1.3 our side is done before the server has examined our certificate. What it finds
    comes with the first read, or is never said.
    """
    if isinstance(error, OSError) and handshake_fault_kind(error) is HandshakeFault.REFUSED:
        return handshake_fault(error)
    cause = str(error) if error else ""
    if has_received:
        return cause
    hint = (
        "it closed right after the TLS handshake; does it want a certificate of ours"
        " (TlsSettings.certificate, tls.client.certPath), or refuse the one that it got?"
    )
    return f"{cause}; {hint}" if cause else hint


_PLAIN = frozenset(
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
)
_CLOSED = frozenset(("UNEXPECTED_EOF_WHILE_READING",))


def _unusable(what: str, path: object, error: OSError | ValueError) -> ConfigError:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no PEM").replace("_", " ").lower()
    else:
        # A path with a null character, or too long a password, is a ValueError.
        reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"tls: can't use {what} in {printable(str(path))}: {reason}")
