"""A request without an answer is done before the next one is asked, whatever path it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import RequestCode
from tests.differential.pair import CLOSED, NOW_MS, ONEWAY, Pair
from tests.support.clients.requests import send_fields
from tests.support.kernels import KERNELS
from tests.support.stores.bench import request

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = 60

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_oneway_send_that_makes_a_topic_is_stored_before_the_next(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await Pair.start(tmp_path, kernel, monkeypatch)
    for number in range(TOPICS):
        fields = send_fields(b=f"new-{number}", g=NOW_MS)
        code = RequestCode.SEND_MESSAGE_V2
        oneway = request(code, fields, b"first", oneway=True)
        assert await pair.ask(0, oneway) == (ONEWAY, ONEWAY)
        fast, slow = await pair.ask(0, request(code, fields, b"second"))
        assert fast == slow != CLOSED
    await pair.stop()
    assert pair.fast.stored() == pair.slow.stored()
