"""Metrics of the process, by the names that Prometheus's clients give them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from prometheus_client import ProcessCollector

from kerolox.metrics.families import Families

_RESIDENT_PARTS = {"RssAnon": "anonymous", "RssFile": "files", "RssShmem": "shared"}

_process = ProcessCollector(registry=None)


def measure_process(families: Families, build_labels: Mapping[str, str]) -> None:
    """Add CPU, memory, descriptors, the start, and the version with those labels. Where there is no
    ``/proc`` only the version is there."""
    for metric in _process.collect():
        for sample in metric.samples:
            add = families.counter if metric.type == "counter" else families.gauge
            add(sample.name, metric.documentation, sample.value)
    for part, size in _resident_parts():
        families.gauge(
            "kerolox_resident_memory_bytes",
            "Memory in use by what is behind it; files: mapped parts of the store",
            size,
            {"part": part},
        )
    python = ".".join(map(str, sys.version_info[:3]))
    labels = {"version": _version(), "python_version": python, **build_labels}
    families.gauge("kerolox_build_info", "1", 1, labels)


def _resident_parts() -> Iterator[tuple[str, int]]:
    """(part, bytes) of ``/proc/self/status``; nothing where that is not."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if part := _RESIDENT_PARTS.get(name):
            yield part, int(value.split()[0]) * 1024


@cache
def _version() -> str:
    return version("kerolox")
