"""A slave is made the master by an administrator: planned, then done, on a pair of its own."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin.sync import Admin
from kerolox.errors import KeroloxError
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor, running_console
from tests.doctor.patients import broker, name_server
from tests.support.eventually import until, wait_until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.command import Server


async def test_a_slave_changes_places_with_its_master_and_takes_the_place_of_a_dead_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with pair(tmp_path) as (at, first, second):
        old, new = first.addresses["broker"], second.addresses["broker"]
        async with running_console(tmp_path, at) as console:
            admin = Visitor(console, "admin")
            page = (await admin.look("/broker", address=new)).text
            assert "Make it the master" in page
            plan = (await admin.look("/broker/promote", address=new)).text
            assert f"{old} is there: both change places" in plan
            assert "may be lost" not in plan
            viewer = Visitor(console, "viewer")
            seen = (await viewer.look("/broker/promote", address=new)).text
            assert "<form" not in seen.partition("<main")[2]
            for visitor in (viewer, Visitor(console, "operator")):
                assert (await visitor.post("/broker/promote", address=new)).status_code == 403
            assert is_master(at, old)
            elsewhere = await admin.post("/broker/promote", address="192.0.2.1:10911")
            assert elsewhere.status_code == 400
            told = await admin.act("/broker/promote", address=new)
            assert f"{new} is the master of pair; {old} is its slave." in told
            line = last_line(caplog)
            assert (line["outcome"], line["account"]) == ("changed", "admin")
            assert line["old"] == {"master": old}
            assert line["new"]["master"] == new
            wait_until(lambda: follows(at, old), what="the other way round")
            # The master goes, and says so to the name server.
            second.stop()

            async def may_be_lost() -> bool:
                console.cache.clear()
                return (
                    "Messages may be lost"
                    in (await admin.look("/broker/promote", address=old)).text
                )

            await until(may_be_lost, what="a plan without the master")
            refused = await admin.post("/broker/promote", address=old)
            assert refused.status_code == 400
            assert "may be lost" in refused.text
            assert not is_master(at, old)
            told = await admin.act("/broker/promote", address=old, loss="accepted")
            assert f"{old} is the master of pair." in told
            line = last_line(caplog)
            assert (line["outcome"], line["acceptLoss"]) == ("changed", "true")
            assert is_master(at, old)


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[tuple[str, Server, Server]]:
    """The address of a name server, a master, and a slave that follows it."""
    ha_port = free_port()
    slave_settings = {
        "brokerRole": "SLAVE",
        "brokerId": 1,
        "haMasterAddress": f"127.0.0.1:{ha_port}",
    }
    with name_server(folder / "n") as names:
        at = names.addresses["namesrv"]
        with (
            broker(folder / "m", "pair", at, haListenPort=ha_port) as first,
            broker(folder / "s", "pair", at, **slave_settings) as second,
        ):
            wait_until(lambda: follows(at, second.addresses["broker"]), what="a slave that follows")
            yield at, first, second


def last_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    lines = [each.getMessage() for each in caplog.records if each.name == LOGGER]
    line: dict[str, Any] = json.loads(lines[-1])
    return line


def follows(name_server: str, slave: str) -> bool:
    with Admin(name_server) as admin:
        try:
            return admin.broker_role(slave).is_following and slave in str(admin.cluster_info())
        except KeroloxError:
            return False


def is_master(name_server: str, address: str) -> bool:
    with Admin(name_server) as admin:
        return admin.broker_role(address).broker_id == 0
