"""Files of accounts and certificates that change while clients send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import ResponseCode
from tests.support.kernels import KERNELS
from tests.support.servers.reloads import Changing
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

CHANGES = 6


@pytest.mark.parametrize("kernel", KERNELS)
def test_changed_accounts_and_certificates_lose_no_request(tmp_path: Path, kernel: str) -> None:
    changing = Changing(tmp_path / "home")
    environment = {"ROCKETMQ_HOME": str(changing.home)}
    with Up(tmp_path, settings=changing.settings, kernel=kernel, environment=environment) as up:
        seen = changing.run(up.broker, CHANGES)
    assert len(seen.accounts_seconds) == len(seen.certificates_seconds) == CHANGES
    assert seen.lost == []
    assert seen.answers.keys() == {ResponseCode.SUCCESS}, seen.answers
