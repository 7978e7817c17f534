"""Clusters for the doctor, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerolox.admin.sync import Admin
from kerolox.errors import KeroloxError
from tests.support.eventually import wait_until
from tests.support.servers.command import Server, kerolox
from tests.support.servers.settings import small_store
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["broker", "found", "name_server", "named", "said", "wait_registered"]

Said = dict[str, str]


def found(address: str, *arguments: object, **environment: str) -> list[Said]:
    """All that the doctor finds; its exit code is as it says."""
    done = kerolox(
        *("doctor", "-o", "json", "-n", address, "--between-looks", "0.3"),
        *arguments,
        **environment,
    )
    assert not done.stderr, done.stderr
    findings: list[Said] = json.loads(done.stdout)
    is_ill = any(each["severity"] != "note" for each in findings)
    assert done.returncode == int(is_ill)
    return findings


def said(findings: Iterable[Said], code: str, where: str = "") -> Said:
    """The one finding of a kind, at a place."""
    [one] = [each for each in findings if each["code"] == code and where in each["where"]]
    return one


def named(finding: Said, *parts: str) -> None:
    """What it says has these parts, and it says what to do."""
    text = f"{finding['where']} {finding['what']} {finding['advice']}"
    for part in parts:
        assert part in text, (part, text)
    assert finding["advice"]


def name_server(folder: Path) -> Server:
    """One that can be started; what it keeps is in the folder."""
    return Server(folder, "namesrv", "--port", 0, "--host", "127.0.0.1", "--data", folder)


def broker(
    folder: Path,
    name: str,
    name_servers: str,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    environment: dict[str, str] | None = None,
    **settings: object,
) -> Server:
    """One that can be started; it is registered some time after."""
    folder.mkdir(parents=True, exist_ok=True)
    conf = small_store(folder, **{"brokerName": name, "registerNameServerPeriod": 1000, **settings})
    arguments = ("broker", "--port", port or free_port(), "--host", host, "-n", name_servers)
    given = environment or {}
    return Server(
        folder, *arguments, "--data", folder / "store", "-c", conf, fresh=bool(given), **given
    )


def wait_registered(address: str, *names: str) -> None:
    """Wait until a name server knows brokers of these names."""
    with Admin(address) as admin:

        def known() -> bool:
            try:
                return set(names) <= admin.cluster_info().brokers.keys()
            except KeroloxError:
                return False

        wait_until(known, what=f"the registration of {names} at {address}")
