"""What is said of a topic's window of keys."""

from __future__ import annotations

import pytest

from kerolox.admin.duplicates import TopicWindow

NOT_KEPT = TopicWindow("a", 60_000, is_kept=False)
CUT = TopicWindow("a", 60_000, is_kept=True, keys=1, bytes_taken=340, age_ms=500, cut=7, answered=1)


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (
            NOT_KEPT,
            "window of 1 min is not kept: transientStorePoolEnable=true, or no broker of Kerolox",
        ),
        (
            CUT,
            "window of 1 min: 1 key, 340 bytes, the oldest 500 ms old, 1 message not stored again,"
            " 7 keys cut (dedupMaxKeys)",
        ),
    ],
)
def test_a_window_is_told_on_one_line(window: TopicWindow, text: str) -> None:
    assert window.text == text
