"""Settings of TLS on servers: where they come from, what is stronger, what is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.broker.config import BrokerConfig
from kerolox.config import HIDDEN
from kerolox.dynamic_config import DynamicConfig
from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.observable import Observable
from kerolox.role_settings import CONFIG_FILE, TlsServerSettings

ROLES = [BrokerConfig, NamesrvConfig]
SECRET = "do not show #this"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A role's own file, which names one of TLS settings."""
    own, tls = tmp_path / "role.conf", tmp_path / "tls.properties"
    own.write_text(f"tls.config.file={tls}\ntls.server.certPath=/own.pem\n")
    tls.write_text(
        "tls.enable=true\ntls.client.authServer=false\ntls.test.mode.enable=false\n"
        "tls.server.mode=enforcing\ntls.server.certPath=/tls.pem\ntls.server.keyPath=/tls.key\n"
        f"tls.server.keyPassword={SECRET}\ntls.server.need.client.auth=REQUIRE\n"
        "tls.server.authClient=true\ntls.server.trustCertPath=/ca.pem\n"
    )
    return own, tls


@pytest.mark.parametrize("role", ROLES)
def test_what_is_given_beats_the_roles_file_and_that_the_file_of_tls(
    role: type[BrokerConfig | NamesrvConfig], files: tuple[Path, Path]
) -> None:
    config = role.load(files[0], tls_server_trust_cert_path="/given.pem")
    assert config.tls_server_mode == "enforcing"
    assert config.tls_server_cert_path == "/own.pem"
    assert config.tls_server_key_path == "/tls.key"
    assert config.tls_server_key_password == SECRET
    assert config.tls_server_trust_cert_path == "/given.pem"
    assert not config.is_test_mode
    assert config.is_client_certificate_required


@pytest.mark.parametrize("role", ROLES)
def test_no_password_is_shown(
    role: type[BrokerConfig | NamesrvConfig], files: tuple[Path, Path]
) -> None:
    config = role.load(files[0])
    shown = DynamicConfig(Observable(config), lambda: 0).shown()
    assert shown["tls.server.keyPassword"] == HIDDEN
    assert SECRET not in repr(config) + str(shown)
    files[0].write_text("tls.server.keyPassword=a\\u0007secret\n")
    with pytest.raises(ConfigError, match="has a control character") as caught:
        role.load(files[0])
    assert "secret" not in str(caught.value)


def test_disabled_and_an_empty_name_read_no_file(files: tuple[Path, Path]) -> None:
    files[1].write_text("nonsense=1\n")
    for line in ("tls.server.mode=disabled", "tls.config.file="):
        files[0].write_text(f"tls.config.file={files[1]}\n{line}\n")
        assert NamesrvConfig.load(files[0]).tls_server_cert_path == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tls.server.certpath=/a", r"tls\.properties: unknown setting 'tls.server.certpath' \(did"),
        ("tls.server.mode=forced", r"tls\.properties: tls\.server\.mode: 'forced' is none of"),
        (
            "tls.server.authClient=yes",
            r"tls\.properties: tls\.server\.authClient: 'yes' is neither",
        ),
        ("tls.config.file=/other", r"tls\.properties: tls\.config\.file names another such file"),
    ],
)
def test_a_mistake_in_the_file_of_tls_is_named(
    files: tuple[Path, Path], text: str, complaint: str
) -> None:
    files[1].write_text(text + "\n")
    with pytest.raises(ConfigError, match=complaint):
        BrokerConfig.load(files[0])


def test_a_named_file_must_be_there_and_the_default_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.role_settings.CONFIG_FILE", str(tmp_path / "default"))
    assert NamesrvConfig.load(None).is_test_mode
    assert NamesrvConfig.load(None, tls_config_file=str(tmp_path / "default")).is_test_mode
    with pytest.raises(ConfigError, match=r"tls\.config\.file: .*gone: can't be read"):
        NamesrvConfig.load(None, tls_config_file=str(tmp_path / "gone"))
    (tmp_path / "default").write_text("tls.server.mode=enforcing\n")
    assert NamesrvConfig.load(None).tls_server_mode == "enforcing"


def test_the_defaults_are_rocketmqs() -> None:
    settings = TlsServerSettings()
    assert (settings.tls_server_mode, settings.tls_server_need_client_auth) == (
        "permissive",
        "none",
    )
    assert settings.tls_config_file == CONFIG_FILE == "/etc/rocketmq/tls.properties"
    assert settings.is_test_mode
    assert not TlsServerSettings(tls_server_cert_path="/c.pem").is_test_mode
    assert TlsServerSettings(tls_server_cert_path="/c", tls_test_mode_enable=True).is_test_mode
