from __future__ import annotations

import pytest

from kerolox.broker.pop.starts import first_offset
from kerolox.protocol.pop_names import PopInitMode


@pytest.mark.parametrize(
    ("mode", "bounds", "is_retry", "is_young", "offset"),
    [
        (PopInitMode.MIN, (3, 9), False, False, 3),
        (PopInitMode.MAX, (3, 9), True, False, 3),
        (PopInitMode.MAX, (3, 9), False, False, 8),
        (PopInitMode.MAX, (3, 9), False, True, 8),
        (PopInitMode.MAX, (0, 9), False, True, 0),
        (PopInitMode.MAX, (0, 0), False, False, 0),
        (7, (0, 9), False, False, 8),
    ],
)
def test_a_new_group_begins_where_rocketmq_has_it_begin(
    mode: int, bounds: tuple[int, int], is_retry: bool, is_young: bool, offset: int
) -> None:
    assert first_offset(mode, bounds, is_retry=is_retry, is_young=is_young) == offset
