"""docs/settings.md names the settings that requests may change, as the fields say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.config import BrokerConfig
from kerolox.config import setting_keys
from kerolox.namesrv.config import NamesrvConfig

if TYPE_CHECKING:
    from kerolox.role_settings import RoleSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize(
    ("role", "kind"), [("broker", BrokerConfig), ("name server", NamesrvConfig)]
)
def test_the_page_has_the_settings_that_requests_may_change(
    role: str, kind: type[RoleSettings]
) -> None:
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {role} |")]
    config = kind.load(None)
    for cell, is_live in zip(row.split("|")[2:4], (True, False), strict=True):
        assert set(re.findall(r"`(\w+)`", cell)) == {
            key
            for key, name in setting_keys(kind).items()
            if config.is_wire(name) and config.is_live(name) == is_live
        }
