"""What several brokers would share on this machine: processors, memory, disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.cli.commands.several.folders import BROKERS_MAX, folders_there
from kerolox.doctor.tuning import ROOT, disk_queue, memory_kib, read_text

if TYPE_CHECKING:
    from kerolox.cli.commands.several.plan import BrokerPlan

BUSY_PART = 3, 4
"""Of the processors, those that brokers may keep busy; the rest is for flush, index and clients."""


def processors(root: Path = ROOT) -> int:
    """How many this process may use: by its affinity, and by the quotas of its control groups."""
    has_affinity = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([usable, *_quotas(root)]))


def brokers_wanted(store: Path, root: Path = ROOT) -> int:
    """How many ``--brokers auto`` starts: one for each processor that brokers may keep busy, and no
    fewer than have stores already."""
    return min(max(brokers_fitting(processors(root)), folders_there(store)), BROKERS_MAX)


def plan_lines(plans: Sequence[BrokerPlan], root: Path = ROOT) -> list[str]:
    """What these brokers would have, and what they would share."""
    count, usable = len(plans), processors(root)
    lines = [f"processors   {usable}, of which a broker keeps one busy at most"]
    if count > brokers_fitting(usable):
        lines.append(
            f"             {count} brokers take turns with their flushes and this machine's "
            f"clients; {brokers_fitting(usable)} would not"
        )
    if memory := memory_kib(root):
        lines.append(
            f"memory       {memory // 1024:,} MiB, one page cache for the stores of all brokers"
        )
    for plan in plans:
        grpc = plan.config.grpc_server_port
        ports = f"port {plan.config.listen_port or 'any'}" + (f", gRPC {grpc}" if grpc else "")
        lines.append(f"broker       {plan.name}: {ports}, {plan.config.store_path_root_dir}")
    return lines + list(_disk_lines(plans, root))


def brokers_fitting(usable: int) -> int:
    """How many brokers so many processors have room for."""
    part, whole = BUSY_PART
    return max(1, usable * part // whole)


def _disk_lines(plans: Sequence[BrokerPlan], root: Path) -> Iterator[str]:
    by_disk: dict[str, list[str]] = {}
    for plan in plans:
        queue = disk_queue(plan.config.store_path_root_dir, root)
        disk = (
            "a file system without a disk of this machine" if queue is None else queue.parent.name
        )
        by_disk.setdefault(disk, []).append(plan.name)
    for disk, names in by_disk.items():
        yield f"disk         {disk}: {', '.join(names)}"
        if len(names) > 1:
            yield (
                "             their flushes wait for each other there, and it is full for all at "
                "once; a disk mounted at a broker's folder is its own"
            )


def _quotas(root: Path) -> Iterator[int]:
    """Processors that ``cpu.max`` of this process's control group, and of those around it, allows:
    at least 1."""
    folder = root / "sys" / "fs" / "cgroup"
    own = next(
        (
            line.removeprefix("0::/")
            for line in read_text(root / "proc" / "self" / "cgroup").splitlines()
            if line.startswith("0::/")
        ),
        "",
    )
    parts = [part for part in own.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts) + 1):
        quota, _, period = read_text(folder.joinpath(*parts[:length], "cpu.max")).partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield max(1, int(quota) // int(period))
