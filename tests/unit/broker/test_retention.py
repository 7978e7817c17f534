"""The rules of retention, with a clock and a disk that the test makes up."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.broker.retention import (
    MANUAL_RUNS,
    CleanUp,
    Retention,
    RetentionRules,
    parse_hours,
    used_ratio,
)

HOUR_MS = 3_600_000


def retention(**changes: Any) -> Retention:
    values: dict[str, Any] = {
        "delete_when": "04",
        "file_reserved_hours": 72,
        "disk_max_used_percent": 75,
        "warning_ratio": 0.90,
        "forcible_ratio": 0.85,
        "clean_forcibly": True,
    }
    made = Retention(RetentionRules.from_settings(**{**values, **changes}))
    made.see_disk([0.5], 0.5)
    return made


def test_files_go_in_the_hours_of_delete_when_only() -> None:
    rules = retention(delete_when="04;16")
    assert [hour for hour in range(24) if rules.plan(hour).reasons == ("time",)] == [4, 16]
    assert rules.plan(5) == CleanUp((), at_once=False)


def test_a_file_goes_when_its_time_is_over_not_before() -> None:
    rules = retention(file_reserved_hours=2)
    assert not rules.is_expired(1_000, 1_000 + 2 * HOUR_MS - 1, at_once=False)
    assert rules.is_expired(1_000, 1_000 + 2 * HOUR_MS, at_once=False)
    assert rules.is_expired(1_000, 1_000, at_once=True)


def test_a_fuller_disk_is_cleaned_at_any_hour() -> None:
    rules = retention()
    for log, queues, reasons in (
        (0.75, 0.75, ()),
        (0.76, 0.10, ("space",)),
        (0.10, 0.76, ("space",)),
        (-1.0, 0.10, ("space",)),
        (0.10, -1.0, ("space",)),
    ):
        rules.see_disk([log], queues)
        assert rules.plan(12).reasons == reasons


def test_of_several_folders_the_emptiest_counts() -> None:
    rules = retention()
    rules.see_disk([0.95, 0.20], 0.20)
    assert not rules.is_disk_full
    assert rules.plan(12).reasons == ()
    rules.see_disk([0.95, 0.91], 0.20)
    assert rules.is_disk_full


def test_beyond_the_forcible_ratio_age_does_not_matter() -> None:
    rules, unforced = retention(), retention(clean_forcibly=False)
    for ratio, at_once in ((0.80, False), (0.85, False), (0.86, True), (0.95, True)):
        rules.see_disk([ratio], 0.1)
        unforced.see_disk([ratio], 0.1)
        assert rules.plan(12) == CleanUp(("space",), at_once)
        assert unforced.plan(12) == CleanUp(("space",), at_once=False)


def test_the_disk_is_full_beyond_the_warning_ratio_until_there_is_room() -> None:
    rules = retention()
    seen = []
    for log, queues in ((0.90, 0.1), (0.91, 0.1), (0.95, 0.1), (0.90, 0.1), (0.1, 0.91)):
        changed = rules.see_disk([log], queues)
        seen.append((rules.is_disk_full, changed))
    assert seen == [(False, False), (True, True), (True, False), (False, True), (True, True)]


def test_an_operator_s_request_is_good_for_twenty_runs() -> None:
    rules = retention()
    rules.delete_manually()
    runs = [rules.plan(12).reasons for _ in range(MANUAL_RUNS + 1)]
    assert runs == [("manual",)] * 20 + [()]


def test_the_used_ratio_is_kept_within_its_bounds() -> None:
    assert retention(disk_max_used_percent=0).rules.disk_max_used_ratio == 0.10
    assert retention(disk_max_used_percent=100).rules.disk_max_used_ratio == 0.95


@pytest.mark.parametrize("text", ["", ";", "24", "-1", "4,5", "x", "4;y", "\u0664"])
def test_what_is_no_hour_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hours"):
        parse_hours(text)


def test_hours_are_read_as_rocketmq_writes_them() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("4; 16;23") == {4, 16, 23}


class Blocks:
    """What statvfs says of a disk of 1,000 blocks."""

    f_blocks = 1_000

    def __init__(self, free: int, available: int) -> None:
        self.f_bfree = free
        self.f_bavail = available


@pytest.mark.parametrize(
    ("free", "available", "ratio"),
    [(1_000, 1_000, 0.0), (999, 999, 0.01), (500, 500, 0.5), (499, 499, 0.51), (100, 50, 0.95)],
)
def test_the_used_ratio_is_in_whole_per_cents_rounded_up(
    free: int, available: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.statvfs", lambda _path: Blocks(free, available))
    assert used_ratio("/anywhere") == ratio


def test_a_folder_that_is_not_there_has_no_ratio() -> None:
    assert used_ratio("/no/such/folder") == -1.0
