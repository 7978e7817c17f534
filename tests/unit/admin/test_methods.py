"""``Admin`` has one method or more for each command of mqadmin."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from pathlib import Path

import pytest
from tests.support.mqadmin_commands import COMMANDS

from kerolox.admin import Access, Admin
from kerolox.client import connect
from kerolox.errors import ClientClosedError, ClientError, ConfigError

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "administration.md"


def test_the_guide_has_a_method_for_each_command_of_mqadmin() -> None:
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|$", GUIDE.read_text(), re.MULTILINE)
    commands = [name for row, _ in rows[1:] for name in re.findall(r"`(\w+)`", row)]
    methods = [name for _, row in rows[1:] for name in re.findall(r"`(\w+)`", row)]
    assert sorted(commands) == sorted(COMMANDS)
    assert [name for name in methods if not hasattr(Admin, name)] == []


async def test_an_admin_is_used_between_start_and_close() -> None:
    admin = Admin(["127.0.0.1:1", "127.0.0.1:2"], timeout_seconds=7.0)
    with pytest.raises(ClientClosedError, match="not running"):
        await admin.list_topics()
    async with admin:
        await admin.start()
        assert admin.access.name_servers == ("127.0.0.1:1", "127.0.0.1:2")
        assert admin.access.timeout_seconds == 7.0
        assert admin.access is admin.access
        assert type(admin.access) is Access
        assert repr(admin) == "<Admin 127.0.0.1:1;127.0.0.1:2>"
    await admin.close()
    assert repr(admin).endswith(", closed>")
    with pytest.raises(ClientClosedError, match="closed; make a new one"):
        await admin.list_topics()
    with pytest.raises(ClientClosedError, match="make a new one"):
        await admin.start()


async def test_an_admin_on_the_connections_of_others_leaves_them_open() -> None:
    async with connect("127.0.0.1:1") as connection:
        async with Admin.on(connection.access) as guest:
            assert guest.access.remoting is connection.access.remoting
            # Its routes are asked for each time; a client's are those that it learnt before.
            assert type(guest.access) is Access
        with pytest.raises(ClientClosedError):
            await guest.list_topics()
        assert connection.access.name_servers == ("127.0.0.1:1",)
        guest = Admin.on(connection)
        assert guest.access.remoting is connection.access.remoting
        assert "on <Connection" in repr(guest)
    with pytest.raises(ClientClosedError):
        await guest.list_topics()


def test_an_admin_is_of_one_event_loop() -> None:
    admin = Admin("127.0.0.1:1")
    asyncio.run(admin.start())
    with pytest.raises(ClientError, match=r"Admin .*event loop"):
        asyncio.run(admin.list_topics())
    asyncio.run(admin.close())


def test_an_admin_that_is_not_closed_warns() -> None:
    async def forget() -> None:
        await Admin("127.0.0.1:1").start()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(forget())
        gc.collect()
    assert "Admin was not closed" in {str(each.message) for each in caught}


@pytest.mark.parametrize("seconds", [0, -1, 4000, float("nan")])
def test_a_time_limit_must_be_one(seconds: float) -> None:
    with pytest.raises(ConfigError, match="timeout_seconds"):
        Admin("127.0.0.1:1", timeout_seconds=seconds)
