"""Half messages, and ends of them, write the same bytes on the fast path and on the slow one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.extensions.half_messages import HalfSelection, end_half_messages_request
from kerolox.protocol.records import encode_batch
from tests.differential.pair import CLOSED, NOW_MS, Pair
from tests.support.clients.requests import send_fields, topic_fields
from tests.support.kernels import KERNELS
from tests.support.stores.bench import request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

HALF = {"TRAN_MSG": "true", "PGROUP": "g", "KEROLOX_SINK": "q/1/0/0"}


def texts() -> list[str]:
    found = [
        encode_properties(properties)
        for properties in (
            HALF,
            {**HALF, "TAGS": "ä", "KEYS": "k1 k2", "UNIQ_KEY": "u"},
            {"UNIQ_KEY": 'a"},\\b\t\x1f', **HALF},
            {"UNIQ_KEY": "u" * 256, **HALF},
            {"WAIT": "true", **HALF},
            {**HALF, "WAIT": "false"},
            {**HALF, "REAL_TOPIC": "elsewhere"},
            {**HALF, "CLUSTER": "another"},
            {**HALF, "DELAY": "2"},
            {**HALF, "TRAN_MSG": "TRUE"},
            {**HALF, "TRAN_MSG": "no"},
            {**HALF, "CHECK_IMMUNITY_TIME_IN_SECONDS": "9"},
            {**HALF, "a": "x" * 32_600},
            {**HALF, "a": "x" * 32_700},
        )
    ]
    return [*found, found[1] + "\x02", found[0] + "\x02" + found[0], ""]


@pytest.mark.parametrize("kernel", KERNELS)
async def test_halves_and_their_ends_are_the_same_on_both_paths(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await Pair.start(tmp_path, kernel, monkeypatch)

    async def ask(code: int, fields: dict[str, object], body: bytes, kind: SerializeType) -> None:
        members = {name: str(value) for name, value in fields.items()}
        fast, slow = await pair.ask(0, request(code, members, body, encoding=kind))
        assert fast == slow != CLOSED

    await ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", queues=4), b"", SerializeType.JSON
    )
    # The first half makes the topic of halves.
    for kind in SerializeType:
        for number, text in enumerate(["TRAN_MSG\x01true\x02PGROUP\x01first", *texts()]):
            for sys_flag in (4, 5, 0, 12):
                fields = send_fields(b="T", e=number % 4, i=text, f=sys_flag, g=NOW_MS, j=0)
                await ask(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % number, kind)
            batch = encode_batch([(n, b"item %d" % n, b"TAGS\x01t") for n in range(3)])
            fields = send_fields(b="T", e=number % 4, i=text, f=4, g=NOW_MS, m="true")
            await ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch, kind)
    slow = pair.fast.slow_codes
    assert slow[RequestCode.SEND_MESSAGE_V2] < pair.slow.slow_codes[RequestCode.SEND_MESSAGE_V2]
    assert (
        slow[RequestCode.SEND_BATCH_MESSAGE]
        < (pair.slow.slow_codes[RequestCode.SEND_BATCH_MESSAGE])
    )
    selection = HalfSelection(attempts=["q/1/0/0"])
    for start, stop, commit in ((3, 20, True), (10, 30, False), (0, 1 << 40, True)):
        end = end_half_messages_request("g", start, stop, selection, commit=commit)
        await ask(end.code, dict(end.ext_fields), end.body, SerializeType.JSON)
    await pair.stop()
    assert pair.fast.stored() == pair.slow.stored()
