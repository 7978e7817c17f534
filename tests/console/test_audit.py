"""The page of the audit log: for administrators, bounded, without a secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kerolox.console.security.audit import DETAIL_CHARACTERS_MAX, LINES_KEPT_MAX, Audit
from tests.console.site import Visitor

if TYPE_CHECKING:
    from kerolox.console.console import Console


async def test_an_administrator_reads_who_did_what_and_what_was_denied(console: Console) -> None:
    admin, viewer = Visitor(console, "admin"), Visitor(console, "viewer", address="192.0.2.9")
    await admin.act("/group/update", name="audited", retries=3)
    await viewer.post("/group/pause", name="audited")

    async def rows(**parameters: object) -> list[str]:
        page = (await admin.look("/audit", **parameters)).text
        return [re.sub("<[^>]+>", " ", row) for row in re.findall("<tr><td.*?</tr>", page)]

    denied, changed = await rows()
    assert {"denied", "viewer", "192.0.2.9", "/group/pause"} <= set(denied.split())
    assert {"changed", "admin", "192.0.2.7", "/group/update"} <= set(changed.split())
    assert "audited" in changed
    assert await rows(outcome="changed") == [changed]
    assert await rows(q="192.0.2.9") == [denied]
    assert await rows(q="no such text") == []
    assert 'href="/audit"' in (await admin.look("/")).text
    for visitor in (viewer, Visitor(console, "operator")):
        assert 'href="/audit"' not in (await visitor.look("/")).text
        assert (await visitor.look("/audit")).status_code == 403


async def test_secrets_of_an_account_are_in_no_line(console: Console) -> None:
    console.audit.changed("admin", "192.0.2.7", "/acl/put", {"secretKey": "hidden-one"})
    page = (await Visitor(console, "admin").look("/audit")).text
    assert "/acl/put" in page
    assert "hidden-one" not in page


def test_the_lines_that_are_kept_have_a_number_and_a_size() -> None:
    audit = Audit("console")
    for number in range(LINES_KEPT_MAX + 5):
        audit.changed("anna", "192.0.2.7", f"/{number}", {"topic": "x" * 10_000})
    lines = audit.last()
    assert len(lines) == LINES_KEPT_MAX
    assert lines[0].action == f"/{LINES_KEPT_MAX + 4}"
    assert len(lines[0].detail) <= DETAIL_CHARACTERS_MAX
