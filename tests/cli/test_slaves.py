"""Commands that change masters say what they leave as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.doctor.patients import broker, name_server
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

KEY, DEFAULT, OTHER, THIRD = "maxMessageSize", "4194304", "8388608", "8388609"


def test_settings_of_masters_are_changed_and_their_slaves_are_named(tmp_path: Path) -> None:
    ha_port = free_port()
    follows = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"127.0.0.1:{ha_port}"}
    with (
        name_server(tmp_path / "n") as names,
        broker(tmp_path / "m", "a", at := names.addresses["namesrv"], haListenPort=ha_port) as m,
        broker(tmp_path / "s", "a", at, **follows) as s,
    ):
        master, slave = m.addresses["broker"], s.addresses["broker"]

        def run(*words: str) -> tuple[str, str]:
            done = kerolox("broker", *words, "-n", at)
            assert done.returncode == 0, done.stderr
            return done.stdout, done.stderr

        def is_listed() -> bool:
            listed = json.loads(run("list", "-o", "json")[0])
            return {row["address"] for row in listed} == {master, slave}

        def value(of: str) -> str:
            [row] = json.loads(run("config", "show", of, KEY, "-o", "json")[0])
            text: str = row["value"]
            return text

        wait_until(is_listed, what="the master and its slave")
        told = "kerolox: slaves are left as they are: --broker a@1 changes it\n"
        change = ("config", "set", f"{KEY}={OTHER}")
        planned, said = run(*change, "--dry-run")
        assert master in planned
        assert slave not in planned
        assert told in said
        assert (value(master), value(slave)) == (DEFAULT, DEFAULT)
        changed, said = run(*change)
        assert master in changed
        assert slave not in changed
        assert said == told
        assert (value(master), value(slave)) == (OTHER, DEFAULT)
        # What a program reads has a row for each broker that was changed, and no other line.
        rows, said = run("config", "set", f"{KEY}={THIRD}", "-o", "json")
        assert [row["broker"] for row in json.loads(rows)] == [master]
        assert said == ""
        changed, said = run(*change, "--broker", "a@1")
        assert slave in changed
        assert said == ""
        assert (value(master), value(slave)) == (THIRD, OTHER)
