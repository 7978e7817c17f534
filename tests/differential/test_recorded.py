"""Every frame of real clients is answered alike by the fast path and by the slow one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kerolox.protocol.command import RemotingCommand
from tests.differential.corpus import FAST_CODES, read_corpus
from tests.differential.pair import Pair
from tests.support.kernels import KERNELS

FRAMES_MIN = 2_000


@pytest.mark.parametrize("kernel", KERNELS)
async def test_frames_of_real_clients_get_the_same_answers_and_bytes(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await Pair.start(
        tmp_path,
        kernel,
        monkeypatch,
        max_message_size=4 << 20,
        mapped_file_size_commit_log=16 << 20,
        enable_property_filter=True,
    )
    asked: Counter[int] = Counter()
    try:
        for number, (connection, frame) in enumerate(read_corpus()):
            request = RemotingCommand.decode(frame[4:])
            fast, slow = await pair.ask(connection, frame)
            assert fast == slow, f"frame {number}: {request}"
            asked[request.code] += 1
    finally:
        await pair.stop()
    assert pair.fast.answers == pair.slow.answers
    assert pair.fast.stored() == pair.slow.stored()
    frames = sum(asked[code] for code in FAST_CODES)
    assert frames >= FRAMES_MIN
    slow_frames = sum(pair.fast.slow_codes[code] for code in FAST_CODES)
    assert slow_frames < frames // 4, "the fast path answers few of them"
