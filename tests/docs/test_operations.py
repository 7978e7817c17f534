"""What the guides of operators say works, command by command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.examples import ROOT, blocks_of
from tests.docs.shell import PageShell

if TYPE_CHECKING:
    from pathlib import Path

GUIDES = ROOT / "docs" / "guides"

pytestmark = pytest.mark.timeout(600)


def test_a_backup_is_taken_and_restored(tmp_path: Path) -> None:
    with PageShell(tmp_path) as shell:
        for block in blocks_of(GUIDES / "backup.md"):
            shell.run(block)
    assert "group shop: 0 messages left" in shell.output
