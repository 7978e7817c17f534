"""``docs/guides/doctor.md`` has all that the doctor finds."""

from __future__ import annotations

import re
from pathlib import Path

from kerolox.doctor import CODES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "doctor.md"


def test_the_page_has_every_code_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    beside = {"not-looked-at": "note", "check-failed": "warning"}
    assert dict(rows) | beside == {code: severity.name.lower() for code, severity in CODES.items()}
    assert len(rows) == len(dict(rows))
