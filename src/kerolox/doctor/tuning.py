"""Limits and habits of a machine that a broker wants otherwise than Linux has them.

:func:`read_knobs` says what there is, what is wanted and why; :func:`apply` changes it, and
:func:`sysctl_text` is what keeps it. The values are those of RocketMQ's ``os.sh``, except for what
its broker needs and ours does not: ``vm.drop_caches`` (an order, no setting),
``vm.dirty_writeback_centisecs`` (an hour, in which a crash costs all programs of the machine what
they wrote; our flush does not wait for it), ``vm.page-cluster`` (Linux's own default) and locked
memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kerolox.broker.config import BrokerConfig
from kerolox.doctor.checks.brokers import FILES_MIN, FILES_WANTED, MAPS_WANTED

ROOT = Path("/")

SWAPPINESS_MAX = 10
DIRTY_RATIO, DIRTY_RATIO_MIN = 50, 40
BACKGROUND_RATIO, BACKGROUND_RATIO_MIN = 25, 10
"""``os.sh`` sets 50 and 50, of which Linux makes 50 and 25."""
FREE_KIB_MAX, FREE_PART = 1_000_000, 100
"""Of ``vm.min_free_kbytes``: what ``os.sh`` names, and a hundredth of the memory at most."""
IN_BYTES = "in bytes"
"""In place of a ratio where ``vm.dirty_bytes`` or ``vm.dirty_background_bytes`` is set."""
OVERCOMMIT_RIGHT = (0, 1)
SCHEDULERS = ("mq-deadline", "deadline", "none", "noop")
"""Those that take requests as they come; the first that a disk offers is wanted."""
HUGE_PAGES = ("madvise", "never")

_CHOSEN = re.compile(r"\[([^\]]+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting of the machine."""

    name: str
    """A key of ``sysctl``, or what it is."""
    now: str
    """Empty: this machine has none such, or this user can't read it."""
    wanted: str
    """What is set where it is not right."""
    is_right: bool
    """Whether it can stay; also where ``now`` is empty."""
    why: str
    accepted: str = ""
    """Which values are right, in words; empty: ``wanted`` alone."""
    path: Path | None = None
    """The file that has it; None: it can't be set for processes that run already."""
    advice: str = ""
    """How to keep it over a restart of the machine where it is no key of ``sysctl``."""

    @property
    def is_sysctl(self) -> bool:
        """Whether a line of ``/etc/sysctl.d`` keeps it."""
        return not self.advice


def read_knobs(folder: Path, root: Path = ROOT) -> list[Knob]:
    """All settings, as they are now. Nothing is changed. ``folder``: of the store; it, or one above
    it, is on the disk that is examined. ``root``: of the file system, where ``proc`` and ``sys``
    are.
    """
    return [*_sysctls(root), _files(), _huge_pages(root), *_scheduler(folder, root)]


def apply(knob: Knob) -> str:
    """Set it until the machine restarts. Empty, or why it can't be done."""
    if knob.path is None:
        return knob.advice
    try:
        knob.path.write_text(knob.wanted)
    except OSError as error:
        return f"{knob.path}: {error.strerror or error}"
    return ""


def sysctl_text(knobs: list[Knob]) -> str:
    """Lines for a file in ``/etc/sysctl.d``: what is wanted, and what can stay as it is, so that
    a file that was in force when it is written anew loses nothing. The rest are comments."""
    lines = [
        "# Written by kerolox tune. In force with sysctl --system, or the machine's next start."
    ]
    for knob in knobs:
        if not knob.is_sysctl:
            if not knob.is_right:
                lines += [f"# {knob.why}", f"# {knob.name}: {knob.advice}"]
        elif knob.now.isdecimal():
            value = knob.now if knob.is_right else knob.wanted
            lines += [f"# {knob.why}", f"{knob.name} = {value}"]
    return "\n".join(lines) + "\n"


class _Rule(NamedTuple):
    """What is wanted of a key of ``sysctl``."""

    name: str
    wanted: int
    is_right: Callable[[int], bool]
    why: str
    accepted: str = ""


def _least(name: str, wanted: int, why: str) -> _Rule:
    return _Rule(name, wanted, lambda now: now >= wanted, why, f"{wanted} or more")


_RULES = (
    _least("vm.max_map_count", MAPS_WANTED, "each file of the store is a region of mapped memory"),
    _least("fs.nr_open", FILES_WANTED, "no process may have more files and sockets open"),
    _least("fs.file-max", FILES_WANTED, "all processes together may have no more files open"),
    _Rule(
        "vm.swappiness",
        1,
        lambda now: now <= SWAPPINESS_MAX,
        "pages of files are to go before the broker's own memory does",
        f"{SWAPPINESS_MAX} or less",
    ),
    _Rule(
        "vm.overcommit_memory",
        1,
        lambda now: now in OVERCOMMIT_RIGHT,
        "memory that is reserved and not used must not be refused",
        " or ".join(map(str, OVERCOMMIT_RIGHT)),
    ),
    _Rule(
        "vm.zone_reclaim_mode",
        0,
        lambda now: now == 0,
        "the page cache may use memory of all nodes (NUMA)",
    ),
    _Rule(
        "vm.dirty_background_ratio",
        BACKGROUND_RATIO,
        lambda now: now >= BACKGROUND_RATIO_MIN,
        "the broker flushes by itself; Linux should not begin before",
        f"{BACKGROUND_RATIO_MIN} or more",
    ),
    _Rule(
        "vm.dirty_ratio",
        DIRTY_RATIO,
        lambda now: now >= DIRTY_RATIO_MIN,
        "whoever writes is held up from here on",
        f"{DIRTY_RATIO_MIN} or more",
    ),
)


def _sysctls(root: Path) -> Iterator[Knob]:
    free_kib = min(FREE_KIB_MAX, memory_kib(root) // FREE_PART)
    backlog = BrokerConfig().server_socket_backlog
    waiting = "so many connections wait to be accepted (serverSocketBacklog)"
    rules = (
        *_RULES,
        _least("vm.min_free_kbytes", free_kib, "a burst of messages needs free pages at once"),
        _least("net.core.somaxconn", backlog, waiting),
    )
    for name, wanted, is_right, why, accepted in rules:
        path = root / "proc" / "sys" / name.replace(".", "/")
        now = read_text(path)
        if now == "0" and name.endswith("_ratio"):
            # To write the ratio would undo that.
            now = IN_BYTES
        yield Knob(
            name=name,
            now=now,
            wanted=str(wanted),
            accepted=accepted,
            is_right=not now.isdecimal() or is_right(int(now)),
            why=why,
            path=path,
        )


def _files() -> Knob:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = hard == resource.RLIM_INFINITY
    return Knob(
        name="open files",
        now="unlimited" if is_unlimited else str(hard),
        wanted=str(FILES_WANTED),
        accepted=f"{FILES_MIN} or more",
        is_right=is_unlimited or hard >= FILES_MIN,
        why="each connection and each file of the store is one",
        advice=f"LimitNOFILE={FILES_WANTED} of its unit, or 'USER hard nofile {FILES_WANTED}' in "
        "/etc/security/limits.d",
    )


def _huge_pages(root: Path) -> Knob:
    path = root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled"
    now = _chosen(read_text(path))
    return Knob(
        name="transparent huge pages",
        now=now,
        wanted=HUGE_PAGES[0],
        accepted=" or ".join(HUGE_PAGES),
        is_right=not now or now in HUGE_PAGES,
        why="with 'always' a process may wait until 2 MiB in one piece are free",
        path=path,
        advice=f"transparent_hugepage={HUGE_PAGES[0]} on the kernel's command line",
    )


def _scheduler(folder: Path, root: Path) -> Iterator[Knob]:
    """Of the disk of a folder; nothing where that is no disk of this machine (tmpfs, NFS ...)."""
    queue = disk_queue(folder, root)
    if queue is None:
        return
    text = read_text(queue / "scheduler")
    now, offered = _chosen(text), text.replace("[", "").replace("]", "").split()
    wanted = next((each for each in SCHEDULERS if each in offered), now)
    yield Knob(
        name=f"scheduler of {queue.parent.name}",
        now=now,
        wanted=wanted,
        is_right=now in SCHEDULERS or now == wanted,
        why="a flush is not to wait behind other programs' reads",
        path=queue / "scheduler",
        advice=f'a rule of udev: ACTION=="add|change", KERNEL=="{queue.parent.name}", '
        f'ATTR{{queue/scheduler}}="{wanted}"',
    )


def disk_queue(folder: Path, root: Path) -> Path | None:
    """``queue`` of the disk that a folder is on, or will be, as ``/sys`` has it. None: none of this
    machine (tmpfs, NFS ...)."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    device = there.stat().st_dev
    link = root / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    if not link.exists():
        return None
    disk = link.resolve()
    # A partition has no queue of its own: its disk is the folder around it.
    for place in (disk, disk.parent):
        if (place / "queue" / "scheduler").exists():
            return place / "queue"
    return None


def memory_kib(root: Path) -> int:
    """All of this machine's memory; 0: unknown."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc" / "meminfo"), re.MULTILINE)
    return int(found[1]) if found else 0


def _chosen(text: str) -> str:
    """``b`` of ``a [b] c``."""
    found = _CHOSEN.search(text)
    return found[1] if found else text.strip()


def read_text(path: Path) -> str:
    """What a file of the system says; empty: there is none, or this user can't read it."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
