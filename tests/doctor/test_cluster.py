"""One cluster with many illnesses, examined once; each is named with its place and its cure."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from kerolox.addresses import split_address
from kerolox.admin.sync import Admin
from tests.doctor.patients import Said, broker, found, name_server, named, said, wait_registered
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.faults.proxy import Proxy
from tests.support.faults.wall_clock import clock_ahead
from tests.support.servers.command import Server
from tests.support.servers.up import deaf_address, free_port

pytestmark = pytest.mark.xdist_group("doctor-cluster")

FILES_MAX = 4096
CONNECTIONS = 150


class Sick(NamedTuple):
    findings: list[Said]
    addresses: dict[str, str]
    """Name → address as it is registered, also of the two name servers."""


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sick]:
    """Two name servers, and brokers each of which has something else."""
    root = tmp_path_factory.mktemp("sick")
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        first, second = (
            enter(name_server(root / name)).addresses["namesrv"] for name in ("n1", "n2")
        )
        both = f"{first};{second}"
        deaf, to_sound, to_old = enter(deaf_address()), enter(Proxy()), enter(Proxy())
        ports = {name: free_port() for name in ("sound", "old", "clash")}
        to_sound.target = ("127.0.0.1", ports["sound"])
        to_old.target = ("127.0.0.1", ports["old"])
        to_old.rewrites = (b"V4_9_8", b"V4_9_4")

        def make(name: str, at: str = both, **given: object) -> Server:
            return broker(root / name, name, at, **given)  # type: ignore[arg-type]

        brokers = {
            "sound": make("sound", port=ports["sound"]),
            "deaf": make("deaf", advertisedAddress=deaf),
            "behind": make("behind", advertisedAddress=to_sound.address),
            "old": make("old", port=ports["old"], advertisedAddress=to_old.address),
            "half": make("half", at=first),
            "v6": make("v6", host="*", brokerIP1="::1"),
            "alone": make("alone", brokerRole="SYNC_MASTER", maxMessageSize=65536),
            "late": make("late", environment=clock_ahead(120)),
            "clash": make("clash", port=ports["clash"], vipPortEnable="false"),
            "lower": make("lower", port=ports["clash"] - 2),
            "closed": make(
                "closed",
                brokerPermission=4,
                longPollingEnable="false",
                startAcceptSendRequestTimeStamp=4102444800000,
                haHousekeepingInterval=4000,
            ),
            "orphan": make("orphan", brokerRole="SLAVE", brokerId=1),
        }
        with ThreadPoolExecutor(4) as pool:
            started = dict(zip(brokers, pool.map(enter, brokers.values()), strict=True))
        twin = enter(broker(root / "twin", "sound", both))
        stranger = enter(broker(root / "stranger", "stranger", "127.0.0.1:1"))
        pid = started["half"].process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
        fill_files(enter, started["lower"])
        wait_registered(first, *brokers)
        wait_registered(second, *(name for name in brokers if name != "half"))
        with Admin(second) as admin:
            admin.put_topic_order("Ordered", "sound:4")
        addresses = {name: each.addresses["broker"] for name, each in started.items()}
        addresses |= {"first": first, "second": second, "deaf": deaf}
        addresses |= {"behind": to_sound.address, "old": to_old.address}
        addresses["v6"] = f"[::1]:{split_address(addresses['v6'])[1]}"
        addresses["twin"] = twin.addresses["broker"]
        addresses["stranger"] = stranger.addresses["broker"]
        more = (addresses["twin"], addresses["stranger"])
        findings = found(both, *(part for each in more for part in ("--broker", each)))
        yield Sick(findings, addresses)


def fill_files(enter: Callable[[socket.socket], socket.socket], server: Server) -> None:
    """Open connections to a server, and have it near its limit of open files."""
    host, port = split_address(server.addresses["broker"])
    for _ in range(CONNECTIONS):
        enter(socket.create_connection((host, port), SECONDS_MAX))
    pid = server.process.pid

    def files() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    wait_until(lambda: files() > CONNECTIONS, what="the connections")
    limit = int(files() / 0.85)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))


@pytest.mark.parametrize(
    ("code", "place", "parts"),
    [
        ("unreachable", "deaf", ["deaf master", "Connection refused", "set brokerIP1"]),
        ("address-of-another", "behind", ["'sound' answers", "correct brokerIP1"]),
        ("vip-port-closed", "old", ["vipChannelEnabled", "let the port through"]),
        ("vip-port-clash", "clash", ["broker 'lower' answers", "at least 3 apart"]),
        ("version-unsafe", "old", ["V4_9_4", "CVE-2023-33246", "update it to 4.9.6"]),
        ("versions-differ", "DefaultCluster", ["V4_9_4", "V4_9_8", "update the older"]),
        ("name-servers-differ", "second", ["half master", "namesrvAddr"]),
        ("order-differs", "second", ["order of topic Ordered is sound:4", "all name servers"]),
        ("address-families-differ", "v6", ["v6 master", "IPv4", "one family"]),
        ("no-slave", "alone", ["SYNC_MASTER", "SLAVE_NOT_AVAILABLE", "start its slave"]),
        ("settings-differ", "DefaultCluster", ["maxMessageSize differs", "65536"]),
        ("clock-off", "late", ["s ahead of", "chrony"]),
        ("broker-permission", "closed", ["brokerPermission is 4", "may not write", "to 6"]),
        ("long-polling-off", "closed", ["longPollingEnable", "set it to true"]),
        ("sends-not-accepted", "closed", ["2100-01-01", "set it to 0"]),
        ("ha-heartbeats-rare", "closed", ["haSendHeartbeatInterval (5000)", "20000"]),
        ("no-master", "orphan", ["orphan has no master", "kerolox broker promote"]),
        ("two-brokers-of-one-name", "", ["sound with id 0", "another brokerName"]),
        ("not-registered", "stranger", ["'stranger' runs there", "127.0.0.1:1"]),
        ("open-files-exhausted", "lower", ["sockets open", "who opens so many connections"]),
        ("open-files-low", "half", [f"may have {FILES_MAX} files", "LimitNOFILE"]),
    ],
)
def test_each_illness_is_named_with_its_cure(
    sick: Sick, code: str, place: str, parts: list[str]
) -> None:
    named(said(sick.findings, code, sick.addresses.get(place, place)), *parts)


def test_nothing_is_found_that_nobody_made(sick: Sick) -> None:
    """A second finding about a place follows from the first, or was made as well."""
    made = {
        *("unreachable", "address-of-another", "vip-port-closed", "vip-port-clash"),
        *("version-unsafe", "versions-differ", "name-servers-differ", "order-differs"),
        *("address-families-differ", "no-slave", "settings-differ", "clock-off"),
        *("broker-permission", "long-polling-off", "sends-not-accepted", "ha-heartbeats-rare"),
        *("no-master", "two-brokers-of-one-name", "not-registered", "open-files-low"),
        "open-files-exhausted",
    }
    assert {each["code"] for each in sick.findings} == made
    sound = [each for each in sick.findings if each["where"] == sick.addresses["sound"]]
    assert [each["code"] for each in sound] in ([], ["two-brokers-of-one-name"])
