"""Certificates and keys of every kind: what serves, and what is said of the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from tests.support.servers.tls import Authority, locked

from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.security.server.certificates import subject_text
from kerolox.security.server.contexts import ServerFiles
from kerolox.security.server.der import subject_and_times

PASSWORD = "right-one"


class Files:
    """A good certificate and key, to be spoilt."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority = authority
        self.folder = folder
        certificate, key = authority.files("127.0.0.1")
        self.certificate, self.key = folder / "c.pem", folder / "c.key"
        self.certificate.write_bytes(certificate.read_bytes())
        self.key.write_bytes(key.read_bytes())
        self.settings: dict[str, object] = {
            "tls_server_cert_path": str(self.certificate),
            "tls_server_key_path": str(self.key),
        }

    def load(self) -> None:
        ServerFiles.of(NamesrvConfig(**self.settings)).load()  # type: ignore[arg-type]

    def lock(self, kind: str = "pkcs8") -> None:
        if kind == "pkcs8":
            self.key.write_bytes(locked(self.key, PASSWORD.encode()))
            return
        opened = serialization.load_pem_private_key(self.key.read_bytes(), None)
        self.key.write_bytes(
            opened.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.BestAvailableEncryption(PASSWORD.encode()),
            )
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Files:
    return Files(authority, tmp_path)


@pytest.mark.parametrize("kind", ["pkcs8", "traditional"])
def test_an_encrypted_key_opens_with_its_password(files: Files, kind: str) -> None:
    files.lock(kind)
    files.settings["tls_server_key_password"] = PASSWORD
    files.load()


def test_the_key_may_be_in_the_file_of_the_certificate(files: Files) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    del files.settings["tls_server_key_path"]
    files.load()


def _der(files: Files) -> None:
    made = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.DER))


def _locked(files: Files) -> None:
    files.lock()


def _wrong_password(files: Files) -> None:
    files.lock()
    files.settings["tls_server_key_password"] = "wrong-one"


def _long_password(files: Files) -> None:
    files.lock()
    files.settings["tls_server_key_password"] = "wrong-one" * 200


def _asks(files: Files) -> None:
    files.settings["tls_server_need_client_auth"] = "require"
    files.settings["tls_server_auth_client"] = True


def _pipe(files: Files) -> None:
    files.certificate.unlink()
    os.mkfifo(files.certificate)


def _nowhere(files: Files) -> None:
    files.key.unlink()
    files.key.symlink_to("away.key")


def _device(files: Files) -> None:
    files.key.unlink()
    files.key.symlink_to("/dev/zero")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _cut_chain(files: Files) -> None:
    whole = files.certificate.read_bytes()
    files.certificate.write_bytes(
        whole + whole[: len(whole) // 2] + b"\n-----END CERTIFICATE-----\n"
    )


def _asks_with(data: bytes) -> Callable[[Files], None]:
    def spoil(files: Files) -> None:
        _asks(files)
        trust = files.folder / "trust.pem"
        trust.write_bytes(data)
        files.settings["tls_server_trust_cert_path"] = str(trust)

    return spoil


def _damaged(mark: str) -> bytes:
    return f"-----BEGIN {mark}-----\nAAAA\n-----END {mark}-----\n".encode()


SPOILT: dict[str, tuple[Callable[[Files], object], str]] = {
    "no certificate": (
        lambda f: f.settings.pop("tls_server_cert_path"),
        r"tls\.server\.certPath is missing: .* or set tls\.server\.mode=disabled",
    ),
    "gone": (lambda f: f.certificate.unlink(), r"certPath: .*c\.pem can't be read: No such file"),
    "folder": (
        lambda f: f.settings.update(tls_server_key_path=str(f.folder)),
        r"keyPath: .* can't be read: it is no regular file",
    ),
    "pipe": (_pipe, r"certPath: .*c\.pem can't be read: it is no regular file"),
    "link to nowhere": (_nowhere, r"keyPath: .*c\.key can't be read: No such file"),
    "device": (_device, r"keyPath: .*c\.key can't be read: it is no regular file"),
    "cut certificate": (
        lambda f: _cut(f.certificate),
        r"the first certificate in .*c\.pem is damaged",
    ),
    "cut key": (lambda f: _cut(f.key), r"keyPath: the key in .*c\.key.*can't be used"),
    "cut in its chain": (_cut_chain, r"c\.pem \(tls\.server\.certPath\), can't be used"),
    "binary": (lambda f: f.key.write_bytes(bytes(range(256))), r"c\.key has no private key as PEM"),
    "empty": (lambda f: f.certificate.write_bytes(b""), r"c\.pem has no certificate as PEM"),
    "no PEM": (_der, r"certPath: .*c\.pem has no certificate as PEM"),
    "large": (
        lambda f: f.key.write_bytes(bytes(2 << 20)),
        r"keyPath: .*c\.key has more than 1048576 bytes",
    ),
    "swapped": (
        lambda f: f.settings.update(tls_server_key_path=str(f.certificate)),
        r"keyPath: .*c\.pem has no private key as PEM",
    ),
    "damaged certificate": (
        lambda f: f.certificate.write_bytes(_damaged("CERTIFICATE")),
        r"the first certificate in .*c\.pem is damaged",
    ),
    "damaged key": (
        lambda f: f.key.write_bytes(_damaged("PRIVATE KEY")),
        r"keyPath: the key in .*c\.key.*can't be used",
    ),
    "other key": (
        lambda f: f.key.write_bytes(f.authority.files("other")[1].read_bytes()),
        r"the key in .*c\.key does not belong to the certificate in .*c\.pem",
    ),
    "locked": (_locked, r"c\.key is encrypted; give its password \(tls\.server\.keyPassword\)"),
    "wrong password": (_wrong_password, r"does not open with tls\.server\.keyPassword"),
    "long password": (_long_password, r"tls\.server\.keyPassword has more than 1023 bytes"),
    "nobody to trust": (_asks, r"tls\.server\.trustCertPath is missing: .*need\.client\.auth"),
    "damaged trust": (_asks_with(_damaged("CERTIFICATE")), r"trustCertPath: a certificate in"),
    "empty trust": (_asks_with(b""), r"trustCertPath: .* has no certificate as PEM"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_can_not_be_used_is_named_with_what_to_do(files: Files, kind: str) -> None:
    spoil, complaint = SPOILT[kind]
    spoil(files)
    with pytest.raises(ConfigError, match=complaint) as caught:
        files.load()
    assert "wrong-one" not in str(caught.value)


def test_an_expired_certificate_serves(files: Files, authority: Authority) -> None:
    certificate, key = authority.files("old", expired=True)
    files.certificate.write_bytes(certificate.read_bytes())
    files.key.write_bytes(key.read_bytes())
    files.load()


def test_subjects_are_written_as_rfc_4514_does() -> None:
    names = (
        (("countryName", "DE"),),
        (("organizationName", 'Acme, "Inc"'), ("userId", "7")),
        (("commonName", " broker\n#1 "),),
    )
    assert subject_text(names) == r"CN=\ broker\0a#1\ ,O=Acme\, \"Inc\"+UID=7,C=DE"


def test_any_bytes_are_a_certificate_or_refused(files: Files) -> None:
    made = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
    der = made.public_bytes(serialization.Encoding.DER)
    times = made.not_valid_before_utc, made.not_valid_after_utc
    assert subject_and_times(der)[1:] == times
    for at in range(0, len(der), 3):
        for data in (der[:at], der[:at] + b"\xff" + der[at + 1 :]):
            try:
                subject_and_times(data)
            except ValueError:
                continue
