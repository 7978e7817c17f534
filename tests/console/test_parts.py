"""Parts of the console by themselves: users, history, kept answers, how bodies are shown."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from typing import TYPE_CHECKING

import pytest

from kerolox.console.cache import ENTRIES_MAX, Cache
from kerolox.console.history import store
from kerolox.console.history.store import (
    COARSE,
    DAY,
    FINE,
    POINTS_OF_SERIES_MAX,
    WEEK,
    History,
    Point,
)
from kerolox.console.rendering import (
    PREVIEW_BYTES,
    body_text,
    fits_a_form,
    preview_text,
    size_text,
    slice_of,
    typed_body,
)
from kerolox.console.schemas import Schemas
from kerolox.console.security.users import (
    PASSWORD_CHARACTERS_MIN,
    User,
    check_password,
    hash_password,
    read_users,
    write_users,
)
from kerolox.errors import ClientError, ConfigError
from kerolox.message import MessageExt
from kerolox.text import duration_text
from tests.console.site import PASSWORD, hashed
from tests.support.servers.command import Server, kerolox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOON = 1_800_000_000 - 1_800_000_000 % 900


def test_a_password_is_kept_as_a_hash_that_only_it_opens() -> None:
    kept = hashed()
    assert PASSWORD not in kept
    assert check_password(PASSWORD, kept)
    assert not check_password(PASSWORD + "x", kept)
    assert not check_password("", kept)
    with pytest.raises(ConfigError, match="characters"):
        hash_password("x" * (PASSWORD_CHARACTERS_MIN - 1))


def test_users_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "users.json"
    write_users(path, {"anna": User("admin", hashed())})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_users(path) == {"anna": User("admin", hashed())}
    assert hashed() not in repr(read_users(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"users": []}',
        '{"users": {"x": {"role": "admin"}}}',
        '{"users": {"x": {"role": "admin", "password": "secret"}}}',
        '{"users": {"x": {"role": "king", "password": "HASH"}}}',
        '{"users": {"": {"role": "admin", "password": "HASH"}}}',
        '{"users": {"a b": {"role": "admin", "password": "HASH"}}}',
        '{"users": {"x": {"role": "admin", "password": "HASH", "more": 1}}}',
        '{"users": {"x": {"role": "admin", "password": "scrypt$30$8$3$AAAA$AAAA"}}}',
        '{"users": {"x": {"role": "admin", "password": "scrypt$15$8$3$AAAA$AAAA"}}}',
        '{"users": {"x": {"role": "admin", "password": "scrypt$٣$8$3$AAAA$AAAA"}}}',
        "[" * 100_000,
    ],
)
def test_a_wrong_file_of_users_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text.replace("HASH", hashed()))
    with pytest.raises(ConfigError, match=r"users\.json is no file of users") as refused:
        read_users(path)
    assert hashed() not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[History]:
    made = History(tmp_path / "history.sqlite")
    yield made
    await made.close()


async def test_points_are_means_of_minutes_for_a_day_and_of_quarters_beyond(
    history: History,
) -> None:
    for second, value in ((0, 1.0), (30, 3.0), (60, 10.0), (900, 100.0)):
        await history.add(NOON + second, {"in:": value})
    day = await history.read("in:", NOON, NOON + 3600)
    assert day == [
        Point(NOON, 2.0, 3.0),
        Point(NOON + 60, 10.0, 10.0),
        Point(NOON + 900, 100.0, 100.0),
    ]
    week = await history.read("in:", NOON + 3600 - WEEK, NOON + 3600)
    assert [(point.at, point.peak) for point in week] == [(NOON, 10.0), (NOON + 900, 100.0)]
    assert week[0].mean == pytest.approx(14 / 3)
    assert await history.read("unknown", NOON, NOON + 3600) == []


async def test_old_points_and_series_go(history: History, tmp_path: Path) -> None:
    await history.add(NOON, {"lag:a": 1.0, "lag:b": 1.0})
    await history.add(NOON + DAY + 60, {"lag:a": 2.0})
    assert await history.read("lag:a", NOON, NOON + 60) == []
    assert len(await history.read("lag:a", NOON - WEEK + DAY + 60, NOON + DAY + 60)) == 2
    await history.add(NOON + WEEK + DAY + 900, {"lag:a": 3.0})
    with sqlite3.connect(tmp_path / "history.sqlite") as file:
        assert file.execute("SELECT name FROM series").fetchall() == [("lag:a",)]
        assert file.execute("SELECT count(*) FROM point").fetchall() == [(2,)]
    file.close()
    assert sum(each.keep_seconds // each.step_seconds for each in (FINE, COARSE)) == (
        POINTS_OF_SERIES_MAX
    )


async def test_the_history_has_a_bound_of_series_and_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SERIES_MAX", 3)
    monkeypatch.setattr(store, "FILE_PAGES_MAX", 12)
    history = History(tmp_path / "history.sqlite")
    for step in range(400):
        at = NOON + step * 900
        await history.add(at, {f"lag:{'x' * 100}{i}": 1.0 for i in range(5)})
    newest = await history.read(f"lag:{'x' * 100}0", at - DAY, at)
    assert newest
    assert await history.read(f"lag:{'x' * 100}4", at - DAY, at) == []
    await history.close()
    assert (tmp_path / "history.sqlite").stat().st_size <= 12 * 4096


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigError, match="mend or remove it"):
        History(tmp_path / "h")


async def test_answers_are_fetched_once_and_errors_are_not_kept() -> None:
    now, calls = 0.0, 0
    cache = Cache(clock=lambda: now)

    async def fetch() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 2:
            raise ConfigError("not now")
        return calls

    assert await asyncio.gather(*(cache.get("a", 5, fetch) for _ in range(3))) == [1, 1, 1]
    now = 6.0
    with pytest.raises(ConfigError):
        await cache.get("a", 5, fetch)
    assert await cache.get("a", 5, fetch) == 3
    gone = asyncio.ensure_future(cache.get("b", 5, fetch))
    waiting = asyncio.ensure_future(cache.get("b", 5, fetch))
    await asyncio.sleep(0)
    gone.cancel()
    assert await waiting == 4
    for number in range(ENTRIES_MAX + 5):
        await cache.get(number, 5, fetch)
    before = calls
    await cache.get(ENTRIES_MAX + 4, 5, fetch)
    assert calls == before
    await cache.get(0, 5, fetch)
    assert calls == before + 1
    await cache.close()


@pytest.mark.parametrize(
    ("body", "view", "shown"),
    [
        (b'{"a":1}', "auto", ("json", '{\n  "a": 1\n}')),
        (b"[1.10,-0,1e400]", "auto", ("json", "[\n  1.10,\n  -0,\n  1e400\n]")),
        (b'{"a":1,"a":[]}', "json", ("json", '{\n  "a": 1,\n  "a": []\n}')),
        (b"[NaN]", "json", ("text", "[NaN]")),
        (b"5", "auto", ("text", "5")),
        (b"{", "auto", ("text", "{")),
        (b"{", "json", ("text", "{")),
        (b"[" * 10_000, "json", ("text", "[" * 10_000)),
        (b"\xff\x00", "auto", ("hex", "00000000  ff 00" + " " * 42 + "  ..")),
        (b"\xffa", "text", ("text", "\ufffda")),
        ("a\u202eb\x1b[0m\n\tc".encode(), "auto", ("text", "a\\u202eb\\x1b[0m\n    c")),
        (b"", "auto", ("text", "")),
    ],
)
def test_bodies_are_shown_as_what_they_are(body: bytes, view: str, shown: tuple[str, str]) -> None:
    assert body_text(body, view) == shown


def test_a_preview_that_ends_within_a_character_is_no_hex() -> None:
    for length in range(PREVIEW_BYTES - 4, PREVIEW_BYTES + 1):
        message = MessageExt(
            topic="T",
            body=b"x" * length + "\U0001f600 and more".encode(),
            queue_id=0,
            queue_offset=0,
            commit_log_offset=0,
            properties={},
        )
        assert preview_text(message, Schemas()).startswith("x" * length)


@pytest.mark.parametrize(
    ("stored", "typed"),
    [
        ("a\nb\n", "a\nB\n"),
        ("a\r\nb", "a\r\nB"),
        (" \n a \n\n", " \n A \n\n"),
        ("no end", "\n"),
        ("tab\tü\u2028x", "Tab\tü\u2028x"),
    ],
)
def test_a_body_that_is_edited_keeps_its_ends_of_lines(stored: str, typed: str) -> None:
    # A browser shows each end as LF, and sends each as CR LF.
    sent = typed.replace("\r\n", "\n").replace("\n", "\r\n")
    received = sent.replace("\r\n", "\n").encode()
    assert fits_a_form(stored.encode())
    assert typed_body(received, stored.encode()) == typed.encode()


@pytest.mark.parametrize("stored", [b"a\rb", b"a\r\nb\nc", b"a\0b", b"\xff", b"\r\r\n"])
def test_a_body_that_a_form_would_change_is_not_edited_there(stored: bytes) -> None:
    assert not fits_a_form(stored)
    with pytest.raises(ClientError, match="can't be edited here"):
        typed_body(b"x", stored)


def test_metrics_are_written_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 30)] == [
        *("0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB")
    ]
    assert [duration_text(ms) for ms in (0, 999, 61_000, 7_199_999, 90_000_000)] == [
        *("0 s", "999 ms", "1 min 1 s", "1 h 59 min", "1 d 1 h")
    ]
    assert slice_of(range(101), 99).items == range(100, 101)
    assert (slice_of([], 5).number, slice_of([], 5).pages) == (1, 1)


def test_users_are_added_listed_and_removed_by_command(tmp_path: Path) -> None:
    users = ("--users", tmp_path / "users.json")
    user = ("console", "user")
    added = kerolox(*user, "add", "anna", "--role", "admin", *users, stdin=b"x" * 12 + b"\n")
    assert added.returncode == 2
    assert "--password-stdin" in added.stderr
    given = ("--password-stdin", *users)
    short = kerolox(*user, "add", "anna", *given, stdin=b"short\n")
    assert (short.returncode, short.stdout) == (1, "")
    added = kerolox(*user, "add", "anna", "--role", "admin", *given, stdin=b"long enough\n")
    assert added.stdout.startswith("user anna is added, role admin, in ")
    assert kerolox(*user, "list", *users).stdout == "anna admin\n"
    assert "no name of a user" in kerolox(*user, "add", "a b", *given).stderr
    assert kerolox(*user, "remove", "bert", *users).returncode == 1
    assert kerolox(*user, "remove", "anna", *users).returncode == 0
    refused = kerolox("console", "--history", tmp_path / "h", *users, "--port", 0)
    assert refused.returncode == 1
    assert "has no users" in refused.stderr


def test_a_console_starts_without_its_cluster_and_stops_when_told(tmp_path: Path) -> None:
    write_users(tmp_path / "users", {"anna": User("viewer", hashed())})
    arguments = ("--users", tmp_path / "users", "--history", tmp_path / "h", "--port", 0)
    with Server(tmp_path, "console", *arguments, "-n", "127.0.0.1:1") as server:
        assert server.addresses["console"].startswith("127.0.0.1:")
        server.stop()
    assert "Traceback" not in server.log.read_text()
