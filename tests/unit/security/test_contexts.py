"""Files of TLS that are renewed while a client runs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.security.contexts import TlsContexts
from kerolox.security.tls import Tls, TlsSettings
from tests.support.servers.tls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "kerolox.security.contexts"):
        yield caplog


def put(source: Path, target: Path) -> None:
    """Replace a file as a renewal does it."""
    fresh = target.with_suffix(".new")
    shutil.copyfile(source, fresh)
    os.replace(fresh, target)


def test_files_that_stay_are_read_once(authority: Authority) -> None:
    contexts = TlsContexts(TlsSettings(ca=authority.ca))
    assert contexts.current() is contexts.current()
    assert TlsContexts(False).current() is None
    assert TlsContexts(True).current() is not None


def test_a_file_that_was_replaced_counts_from_then_on(
    authority: Authority, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    ca = tmp_path / "ca.pem"
    put(authority.ca, ca)
    contexts = TlsContexts(TlsSettings(ca=ca))
    before = contexts.current()
    other = Authority(tmp_path)  # its certificate is in the same place
    after = contexts.current()
    assert before is not None
    assert after is not None
    assert after is not before
    assert before.get_ca_certs(binary_form=True) != after.get_ca_certs(binary_form=True)
    assert other.ca == ca
    assert [each.levelname for each in logged.records] == ["INFO"]


def test_half_a_renewal_is_one_warning_and_changes_nothing(
    authority: Authority, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    for made, place in zip(authority.files("old"), (certificate, key), strict=True):
        put(made, place)
    contexts = TlsContexts(TlsSettings(certificate=certificate, key=key))
    before = contexts.current()
    renewed = authority.files("new")
    put(renewed[0], certificate)
    assert contexts.current() is before
    assert contexts.current() is before
    assert [each.levelname for each in logged.records] == ["WARNING"]
    assert "key values mismatch" in logged.text
    put(renewed[1], key)
    assert contexts.current() is not before


def test_a_file_that_is_gone_leaves_what_was_read(
    authority: Authority, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    ca = tmp_path / "ca.pem"
    put(authority.ca, ca)
    contexts = TlsContexts(TlsSettings(ca=ca))
    before = contexts.current()
    ca.unlink()
    assert contexts.current() is before
    assert "No such file" in logged.text


def test_settings_that_change_count_from_then_on(
    authority: Authority, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    given: list[Tls] = [TlsSettings(verify=False)]
    contexts = TlsContexts(lambda: given[-1])
    before = contexts.current()
    assert before is not None
    assert not before.check_hostname
    given.append(TlsSettings(ca=tmp_path / "nowhere.pem"))
    assert contexts.current() is contexts.current() is before
    assert logged.text.count("nowhere.pem") == 1
    given.append(TlsSettings(ca=authority.ca))
    after = contexts.current()
    assert after is not None
    assert after.check_hostname
    assert contexts.current() is after
    given.append(False)
    assert contexts.current() is None


def test_files_that_can_not_be_used_are_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        TlsContexts(TlsSettings(ca=tmp_path / "nowhere.pem"))
