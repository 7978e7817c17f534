"""A code that is not served is answered, and told once per client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.protocol.codes import LanguageCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting import unserved
from kerolox.remoting.unserved import UnservedCodes

if TYPE_CHECKING:
    import pytest


class FromHost:
    """As far as a connection is asked."""

    def __init__(self, host: str, port: int = 5_000) -> None:
        self.peer = (host, port)
        self.remote_address = f"{host}:{port}"


def asked(code: int, version: int = 409) -> RemotingCommand:
    return RemotingCommand(code, language=LanguageCode.JAVA, version=version, opaque=7)


def test_each_code_of_a_client_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    codes = UnservedCodes("broker")
    for port in (5_000, 5_001):
        answer = codes.answer(asked(7_777, 461), FromHost("10.0.0.1", port))
        assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 7)
        assert answer.remark == " request type 7777 not supported"
    assert caplog.messages == [
        "broker: request code 7777 of 10.0.0.1:5000 (JAVA client, version 461, newer than 4.9) is "
        "not served and answered with code 3; what the client wants of it does not work here"
    ]
    codes.answer(asked(7_778, 461), FromHost("10.0.0.1"))
    codes.answer(asked(7_777, 461), FromHost("10.0.0.2"))
    codes.answer(asked(7_777, 399), FromHost("10.0.0.1"))
    assert len(caplog.messages) == 4


def test_what_was_told_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unserved, "LOGGED_MAX", 3)
    codes = UnservedCodes("name server")
    for code in range(1_000, 1_010):
        answer = codes.answer(asked(code), FromHost("10.0.0.1"))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert len(caplog.messages) == 4
    assert "further ones are not" in caplog.messages[-1]
    assert len(codes._logged) == 4
