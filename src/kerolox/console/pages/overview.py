"""The first page: brokers, rates and lag, now and over time."""

from __future__ import annotations

import time

from starlette.responses import JSONResponse, Response

from kerolox.admin import BrokerStatus
from kerolox.console.health import TONES, disk_severity, disk_used, slave_lags
from kerolox.console.history.sampler import is_lag_series, lag_series, rate_series
from kerolox.console.pages.health import ICONS, link_of
from kerolox.console.visit import Visit
from kerolox.doctor import Severity
from kerolox.errors import ClientError

__all__ = ["HOURS", "history", "overview"]

HOURS = (1, 6, 24, 168)
"""Times that charts show."""
SERIES_OF_CHART_MAX = 8
LARGEST_SHOWN = 10
FINDINGS_SHOWN = 5


async def overview(visit: Visit) -> Response:
    """Health and metrics of the whole cluster. Checks that take long are done beside it."""
    sample = await visit.console.sampler.newest()
    topics = await visit.console.cluster.topics()
    groups = await visit.console.cluster.group_states()
    health = visit.console.health.newest()
    behind = sorted(sample.groups.values(), key=lambda each: -each.lag)
    slaves = slave_lags(sample.nodes)
    addresses = {each.address for each in sample.nodes}
    fullest = max(sample.nodes, key=_disk_rank, default=None)
    return visit.page(
        "overview.html",
        sample=sample,
        topics=len(topics),
        groups=len(groups),
        states=groups,
        paused=[name for name, each in groups.items() if each.paused],
        behind=[each for each in behind if each.lag > 0][:LARGEST_SHOWN],
        health=health,
        findings=health.findings[:FINDINGS_SHOWN] if health else (),
        Severity=Severity,
        tones=TONES,
        icons=ICONS,
        link_of=lambda finding: link_of(visit, finding, addresses),
        slaves=slaves,
        slave_lag={each.node.address: each.behind_bytes for each in slaves},
        fullest=fullest,
        software=sorted({_software(node) for node in sample.nodes if node.runtime}),
        hours=hours_of(visit),
        hours_choices=HOURS,
        rates=[rate_series("in"), rate_series("out")],
        lag=[lag_series()],
    )


def _disk_rank(node: BrokerStatus) -> tuple[int, float]:
    severity = disk_severity(node.runtime)
    return -1 if severity is None else severity, disk_used(node.runtime) or 0.0


def _software(node: BrokerStatus) -> str:
    """What a broker runs, with its kernel where it tells that."""
    assert node.runtime is not None
    kernel = node.runtime.kernel.partition(" ")[0].rstrip(",:;")
    return f"{node.runtime.software} {kernel}".rstrip()


async def history(visit: Visit) -> Response:
    """Points of the series asked for, for charts: times, and a list of values for each."""
    names = visit.request.query_params.getlist("series")
    if not 1 <= len(names) <= SERIES_OF_CHART_MAX:
        raise ClientError(f"a chart has 1 to {SERIES_OF_CHART_MAX} series")
    end = int(time.time())
    begin = end - hours_of(visit) * 3600
    found = [await visit.console.history.read(name, begin, end) for name in names]
    times = sorted({point.at for points in found for point in points})
    # Messages are whole; the mean of several checks of how many wait is none.
    by_time = [
        {point.at: round(point.mean) if is_lag_series(name) else point.mean for point in points}
        for name, points in zip(names, found, strict=True)
    ]
    values = [[points.get(at) for at in times] for points in by_time]
    return JSONResponse({"begin": begin, "end": end, "times": times, "values": values})


def hours_of(visit: Visit) -> int:
    """The hours that charts of a page show."""
    hours = visit.number("hours", HOURS[0])
    return min(HOURS, key=lambda each: abs(each - hours))
