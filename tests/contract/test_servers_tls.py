"""Broker and name server with certificates: clients with TLS and without it, on each kernel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import (
    ConsumeFromWhere,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    TlsSettings,
)
from kerolox.message import Message, MessageExt
from kerolox.security.tls import Tls
from tests.support.eventually import SECONDS_MAX, until
from tests.support.kernels import KERNELS
from tests.support.servers.tls import Authority
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

TIME_MS = int(SECONDS_MAX * 1000)


async def come_and_go(up: Up, topic: str, tls: Tls) -> None:
    """Messages of many sizes, there and back."""
    bodies = [bytes([number % 251]) * (1 + number * number * 80) for number in range(1, 60)]
    got: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(message.body for message in messages)

    sending = ProducerSettings(tls=tls, compress_bytes_min=2**31)
    pushed = PushConsumerSettings(
        tls=tls, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    async with Producer("senders", up.namesrv, settings=sending) as producer:
        consumer = PushConsumer(f"g-{topic}", up.namesrv, settings=pushed)
        consumer.subscribe(topic, "*", listen)
        async with consumer:
            await asyncio.gather(
                *(producer.send(Message(topic, body), timeout_ms=TIME_MS) for body in bodies)
            )
            await until(lambda: len(got) >= len(bodies))
    assert sorted(got) == sorted(bodies)


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_roles_serve_tls_and_plain_text_on_their_ports(tmp_path: Path, kernel: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.files("127.0.0.1")
    config = tmp_path / "tls.properties"
    config.write_text(
        "tls.test.mode.enable=false\n"
        f"tls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        "tls.server.need.client.auth=optional\ntls.server.authClient=true\n"
        f"tls.server.trustCertPath={authority.ca}\n"
    )
    show = authority.files("client")
    settings = {"tls.config.file": str(config)}
    with Up(tmp_path / "up", settings=settings, kernel=kernel) as up:
        for topic, tls in {
            "plain": False,
            "encrypted": TlsSettings(ca=authority.ca),
            "known": TlsSettings(ca=authority.ca, certificate=show[0], key=show[1]),
        }.items():
            asyncio.run(come_and_go(up, topic, tls))
        with Admin(up.namesrv) as admin:
            figures = admin.broker_runtime(up.broker).values
        assert int(figures["tlsHandshakesDone"]) >= 2
        assert figures["tlsHandshakesFailed"] == figures["tlsHandshakesUnderWay"] == "0"
