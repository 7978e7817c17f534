"""Every command that mqadmin 4.9 registers, at our servers and at the Java servers: it prints the
same and does the same, or the difference is listed."""

from __future__ import annotations

import difflib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.interop.parity.case import NOTHING, Case, Outcome, run
from tests.interop.parity.cases import CASES
from tests.interop.parity.differences import DIFFERENCES
from tests.interop.parity.side import sides
from tests.support.mqadmin_commands import COMMANDS as REGISTERED

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("mqadmin")]

DOCUMENT = Path(__file__).parents[3] / "docs" / "differences.md"
RUN = sorted({case.command for case in CASES})
SINCE_REMOVED = "getAclConfig"
"""4.9.7 registers it, 4.9.8 does not any more."""


class Ran(NamedTuple):
    """What was run."""

    registered: list[str]
    """What mqadmin lists without arguments."""
    outcomes: list[tuple[Case, Outcome, Outcome]]
    """Each case with what came of it at ours and at Java's."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """All cases at both clusters, side by side."""
    with sides(tmp_path_factory.mktemp("parity")) as both, ThreadPoolExecutor(len(both)) as pool:
        listed = re.findall(r"(?m)^   (\S+)", both[0].mqadmin.ask())
        ours, java = pool.map(lambda side: run(CASES, side), both)
        yield Ran(listed, list(zip(CASES, ours, java, strict=True)))


def test_every_registered_command_is_run(ran: Ran) -> None:
    assert sorted(ran.registered) == RUN
    assert sorted(REGISTERED) == sorted(set(RUN) - {SINCE_REMOVED})


@pytest.mark.parametrize("command", RUN)
def test_a_command_prints_and_does_the_same(ran: Ran, command: str) -> None:
    listed = DIFFERENCES.get(command, ())
    for case, ours, java in ran.outcomes:
        if case.command == command:
            at_ours = without(ours.lines, [pattern for each in listed for pattern in each.ours])
            at_java = without(java.lines, [pattern for each in listed for pattern in each.java])
            names = f"Java, {case.words}", f"ours, {case.words}"
            told = "\n".join(difflib.unified_diff(at_java, at_ours, *names, lineterm=""))
            assert not told, f"\n{told}"
            failed = any("Exception" in line for line in ours.lines)
            assert failed == case.fails, f"{case.words}: {ours.lines}"
            for kind, outcome in (("ours", ours), ("Java", java)):
                if outcome.effect is not NOTHING:
                    assert outcome.effect == case.then, f"{kind}, {case.words}: {outcome.effect}"


@pytest.mark.parametrize("command", DIFFERENCES)
def test_a_listed_difference_is_there_and_documented(ran: Ran, command: str) -> None:
    mine = [each for each in ran.outcomes if each[0].command == command]
    for difference in DIFFERENCES[command]:
        for patterns, outcomes in (
            (difference.ours, [ours for _, ours, _ in mine]),
            (difference.java, [java for _, _, java in mine]),
        ):
            lines = [line for outcome in outcomes for line in outcome.lines]
            for pattern in patterns:
                assert any(re.search(pattern, line) for line in lines), f"{pattern} is not there"
    section = DOCUMENT.read_text().partition("## What mqadmin shows")[2].partition("\n## ")[0]
    assert re.search(rf"^\| .*`{command}`", section, re.MULTILINE), f"{command} is not in it"


def without(lines: list[str], patterns: list[str]) -> list[str]:
    return [line for line in lines if not any(re.search(each, line) for each in patterns)]
