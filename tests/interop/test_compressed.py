"""Java's tools read what our producers compress, whichever way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.client import sync
from kerolox.message import Message
from kerolox.protocol.compression import CompressionType
from tests.interop.mqadmin import MqAdmin
from tests.support.servers.up import Up

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

BODY = bytes(range(256)) * 1_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("compressed")) as server:
        yield server


@pytest.mark.parametrize("kind", CompressionType)
def test_mqadmin_inflates_a_body(up: Up, mqadmin: MqAdmin, kind: CompressionType) -> None:
    settings = sync.ProducerSettings(compress_type=kind)
    with sync.Producer("compressors", up.namesrv, settings=settings) as producer:
        sent = producer.send(Message("Compressed", BODY))
    text = mqadmin("queryMsgById", "-i", sent.offset_message_id)
    found = re.search(r"Message Body Path: +(\S+)", text)
    assert found is not None, text
    assert re.search(rf"System Flag: +{kind.value}\b", text), text
    assert Path(found[1]).read_bytes() == BODY
