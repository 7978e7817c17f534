"""Health at a glance: the doctor's findings beside the pages, and the tiles of the overview."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin, BrokerStatus, DeadLetterSummary
from kerolox.console import health
from kerolox.console.health import CHECK_SECONDS, Health, HealthChecks, disk_severity, slave_lags
from kerolox.doctor import Finding, ProbeOptions, Severity
from kerolox.errors import ClientError
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster

PAUSED = Finding("group-paused", "group billing", "it is paused", "resume it")
FULL = Finding("disk-full", "127.0.0.1:1", "the disk is 95% full", "make room <b>")


def tile_of(page: str, label: str) -> tuple[str, str]:
    """The class and the text of a tile of the overview."""
    found = re.search(
        rf'<div(?: class="(\w*)")?><dt><svg.*?</svg>{label}</dt><dd[^>]*>(.*?)</dd>', page
    )
    assert found, page
    return found[1] or "", " ".join(re.sub("<[^>]+>", " ", found[2]).split())


async def test_the_doctor_finds_a_paused_group_and_its_page_says_what_to_do(
    site: Console, topic: str
) -> None:
    name = f"paused-{topic}"
    await site.admin.update_group(name, consume_enable=False)
    site.expire()
    viewer = Visitor(site, "viewer")

    async def is_found() -> bool:
        return f"kerolox group resume {name}" in (await viewer.look("/doctor")).text

    await until(is_found)
    page = (await viewer.look("/doctor")).text
    assert re.search(rf'<a href="/group\?name={name}">group {name}</a> <code>group-paused', page)
    overview = (await viewer.look("/")).text
    assert tile_of(overview, "Paused groups")[0] == "warn"
    assert tile_of(overview, "Health")[1].split()[1].startswith(("error", "warning"))


async def test_pages_do_not_wait_for_a_check_and_start_one_alone(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, is_open, now = 0, asyncio.Event(), 1_000.0

    async def diagnose(_admin: Admin, _options: ProbeOptions) -> list[Finding]:
        nonlocal checks
        checks += 1
        await is_open.wait()
        if checks == 3:
            raise ClientError("no name server answers")
        return [PAUSED]

    monkeypatch.setattr(health, "diagnose", diagnose)
    looked_at = HealthChecks(console.admin, clock=lambda: now)
    assert looked_at.newest() is None
    assert looked_at.newest() is None
    await until(lambda: checks == 1)
    is_open.set()
    await until(lambda: not looked_at.is_running)
    found = looked_at.newest()
    assert found is not None
    assert (found.findings, checks) == ((PAUSED,), 1)
    now += CHECK_SECONDS + 1
    assert looked_at.newest() is found
    await until(lambda: looked_at.newest() is not found)
    # After a change the next look starts one, and a fault is told.
    looked_at.expire()
    looked_at.newest()

    def is_faulty() -> bool:
        newest = looked_at.newest()
        return newest is not None and newest.fault == "no name server answers"

    await until(is_faulty)
    await looked_at.stop()


async def test_tiles_of_the_overview_say_how_bad_it_is(
    console: Console, our_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = DeadLetterSummary(group="billing", messages=5, waiting=3, last_update_ms=1)
    found = Health(time.time(), (replace(FULL, where=our_cluster.broker), PAUSED), (letters,))
    monkeypatch.setattr(console.health, "newest", lambda: found)
    viewer = Visitor(console, "viewer")
    page = (await viewer.look("/")).text
    assert tile_of(page, "Health") == ("bad", "1 error, 1 warning")
    assert tile_of(page, "Dead letters") == ("warn", "3 waiting")
    assert tile_of(page, "Slaves") == ("", "0 no copy of the log")
    assert tile_of(page, "Versions")[1].startswith("Kerolox ")
    assert f'<a href="/broker?address={our_cluster.broker.replace(":", "%3A")}">' in page
    assert "make room &lt;b&gt;" in page
    monkeypatch.setattr(console.health, "newest", lambda: Health(time.time()))
    page = (await viewer.look("/")).text
    assert tile_of(page, "Health") == ("good", "well")
    assert "Nothing is wrong" in (await viewer.look("/doctor")).text
    monkeypatch.setattr(console.health, "newest", lambda: Health(time.time(), fault="odd"))
    page = (await viewer.look("/")).text
    assert tile_of(page, "Health") == ("bad", "not known")
    assert tile_of(page, "Dead letters")[1].startswith("–")
    assert "could not be checked: odd" in (await viewer.look("/doctor")).text


async def test_how_far_slaves_are_and_how_full_disks_are(console: Console) -> None:
    [node] = [each for each in await console.admin.cluster_status() if each.runtime]
    assert node.runtime is not None

    def other(broker_id: int, end: int | None, full: float = 0.1) -> BrokerStatus:
        runtime = (
            None
            if end is None or node.runtime is None
            else replace(
                node.runtime, log_max_offset=end, log_disk_ratio=full, queue_disk_ratio=full
            )
        )
        return replace(node, broker_id=broker_id, runtime=runtime)

    master, near, ahead, silent = other(0, 100), other(1, 70), other(2, 130), other(3, None)
    lags = slave_lags([master, near, ahead, silent])
    assert [each.behind_bytes for each in lags] == [30, 0, None]
    assert [each.behind_bytes for each in slave_lags([near])] == [None]
    assert disk_severity(other(0, 1).runtime) is None
    assert disk_severity(other(0, 1, 0.95).runtime) is Severity.ERROR
    assert disk_severity(other(0, 1, 0.8).runtime) is Severity.WARNING
    assert disk_severity(silent.runtime) is None


async def test_all_pages_show_the_fuller_disk_by_the_levels_of_the_doctor(
    console: Console, our_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = console.admin.broker_runtime

    async def runtime(address: str) -> object:
        return replace(await ask(address), log_disk_ratio=0.2, queue_disk_ratio=0.95)

    monkeypatch.setattr(console.admin, "broker_runtime", runtime)
    [node] = (await console.sampler.take()).nodes
    viewer = Visitor(console, "viewer")
    overview = (await viewer.look("/")).text
    assert tile_of(overview, "Fullest disk") == ("bad", f"95 % of {node.broker_name}")
    assert '<td class="n bad">95 %</td>' in overview
    assert '<td class="n bad">95 %</td>' in (await viewer.look("/brokers")).text
    broker = (await viewer.look("/broker", address=our_cluster.broker)).text
    assert '<dt>Fuller disk</dt><dd class="bad">95<small>%</small>' in broker


def test_a_check_counts_what_it_found_by_severity() -> None:
    found = Health(0.0, (FULL, PAUSED, replace(PAUSED, where=f"group {uuid.uuid4()}")))
    assert [found.count(each) for each in Severity] == [0, 2, 1]
