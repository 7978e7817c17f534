"""Accounts and TLS of the commands that ask a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kerolox.protocol.codes import RequestCode
from kerolox.security.credentials import Credentials, Signer
from tests.support.servers.command import kerolox
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.support.servers.tls import Authority, TlsProxy

VARIABLES = {"KEROLOX_ACCESS_KEY": "rocketmq2", "KEROLOX_SECRET_KEY": "12345678"}


async def test_all_requests_of_a_command_are_signed() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        sending = ("send", "T", "x", "--security-token", "a-token", "-n", broker.address)
        done = await asyncio.to_thread(kerolox, *sending, **VARIABLES)
        assert done.returncode == 0, done.stderr
        seen = [command for commands in broker.seen.values() for command in commands]
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2} <= {
        command.code for command in seen
    }
    signer = Signer(Credentials("rocketmq2", "12345678", "a-token"))
    for command in seen:
        given = command.ext_fields.pop("Signature")
        assert command.ext_fields["SecurityToken"] == "a-token"
        assert given == signer.signature(command.ext_fields, command.body)


def test_half_an_account_is_an_error_before_anything_is_asked() -> None:
    done = kerolox("topic", "list", "--access-key", "rocketmq2")
    assert done.returncode == 1
    assert "an account has two keys; give --secret-key or $KEROLOX_SECRET_KEY" in done.stderr


def test_a_command_speaks_tls_as_its_file_says(name_server: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = tmp_path / "tls.properties"
    config.write_text(f"tls.client.trustCertPath={authority.ca}\n")
    with TlsProxy(authority.server(), name_server) as proxy:
        options = ("topic", "list", "-n", proxy.address)
        done = kerolox(*options, "--tls-config", config)
        assert (done.returncode, done.stderr) == (0, "")
        assert proxy.taken == 1
        untrusted = kerolox(*options, "--tls")
    assert untrusted.returncode == 1
    assert "signed by nobody that is trusted here" in untrusted.stderr
