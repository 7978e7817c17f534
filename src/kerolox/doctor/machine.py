"""The process of a server on this machine, as Linux shows it in ``/proc``."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from kerolox.doctor.facts import MachineFacts

PROC = Path("/proc")

_LISTENS = "0A"
"""The state of a listening socket in ``/proc/net/tcp``."""
_FILES_LIMIT = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)
_UNLIMITED = 1 << 63


def machine_facts(port: int, proc: Path = PROC) -> MachineFacts | None:
    """The process that listens on a port; None: there is none, or this user can't examine it."""
    inodes = _listening_inodes(port, proc)
    pid = _owner(inodes, proc) if inodes else None
    if pid is None:
        return None
    folder = proc / str(pid)
    try:
        limit = _FILES_LIMIT.search((folder / "limits").read_text())
        maps_max = int((proc / "sys" / "vm" / "max_map_count").read_text())
        with (folder / "maps").open("rb") as maps:
            mapped = sum(1 for _ in maps)
        files = sum(1 for _ in (folder / "fd").iterdir())
    except (OSError, ValueError):
        return None
    if limit is None:
        return None
    files_max = _UNLIMITED if limit[1] == "unlimited" else int(limit[1])
    return MachineFacts(pid=pid, maps=mapped, maps_max=maps_max, files=files, files_max=files_max)


def _listening_inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                local = fields[1].rpartition(":")[2] if len(fields) > 9 else ""
                if local and int(local, 16) == port and fields[3] == _LISTENS:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _owner(inodes: set[str], proc: Path) -> int | None:
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        # Of another user, or gone since.
        with contextlib.suppress(OSError):
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()) in inodes:
                        return int(folder.name)
    return None
