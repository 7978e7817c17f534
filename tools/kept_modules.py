"""What Python has compiled of the modules that the tests import, kept for the next checkout.

A fresh checkout compiles eight thousand modules, most of them of the standard library and of
packages: a minute of a processor. A compiled module counts for the time and the size of its source
(PEP 552), and a fresh checkout has other times. So each is kept with a digest of its source, and
gets the time that the same source has now. It also holds its source's path, so modules are kept by
the path of the checkout.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from steps import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.kept import forget_old, kept_folder

__all__ = ["CHECKOUTS_MAX", "bring", "compiled_folder", "keep", "place"]

CHECKOUTS_MAX = 2
"""Of checkouts, each some 170 MB."""

MAGIC_BYTES = 4
STAMP = struct.Struct("<LLL")
"""What follows the magic number: flags, and time and size of the source."""
HEADER_BYTES = MAGIC_BYTES + STAMP.size
DIGEST_BYTES = hashlib.sha256().digest_size

OF_ONE_RUN = ("/tmp/", "/dev/shm/")
"""Folders of sources that no other run has."""


def compiled_folder() -> Path:
    """Where Python puts compiled modules, by the paths of their sources."""
    return Path(os.environ.get("PYTHONPYCACHEPREFIX") or ROOT / ".cache" / "pycache")


def place() -> Path:
    """Where the modules of this checkout are kept."""
    return kept_folder("modules") / hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]


def modules(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The compiled modules below a folder, each with its source; of those that have one."""
    for parent, _, names in os.walk(folder):
        sources = Path("/", Path(parent).relative_to(folder))
        for name in names:
            source = sources / f"{name.partition('.')[0]}.py"
            if name.endswith(".pyc") and source.exists():
                yield Path(parent, name), source


def stamp_of(source: Path) -> bytes:
    """What a module that is compiled of a source now has after its magic number."""
    status = source.stat()
    return STAMP.pack(0, int(status.st_mtime) & 0xFFFF_FFFF, status.st_size & 0xFFFF_FFFF)


def bring(kept: Path, compiled: Path) -> None:
    """Put each module whose source is the same where Python looks for it."""
    for path, source in modules(kept):
        target = compiled / path.relative_to(kept)
        if target.exists():
            continue
        data = path.read_bytes()
        if data[:DIGEST_BYTES] == hashlib.sha256(source.read_bytes()).digest():
            magic = data[DIGEST_BYTES:][:MAGIC_BYTES]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(magic + stamp_of(source) + data[DIGEST_BYTES + HEADER_BYTES :])


def keep(kept: Path, compiled: Path) -> None:
    """Keep what is compiled of the sources as they are now, instead of what was kept before."""
    for path, source in modules(compiled):
        module = path.read_bytes()
        if module[MAGIC_BYTES:HEADER_BYTES] != stamp_of(source):
            continue
        digest = hashlib.sha256(source.read_bytes()).digest()
        target = kept / path.relative_to(compiled)
        with suppress(FileNotFoundError), target.open("rb") as file:
            if file.read(DIGEST_BYTES) == digest:
                continue
        if not str(source).startswith(OF_ONE_RUN):
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f"{target.name}.{os.getpid()}")
            fresh.write_bytes(digest + module)
            fresh.replace(target)
    for path in kept.rglob("*.pyc"):
        if not (compiled / path.relative_to(kept)).exists():
            path.unlink()
    with suppress(FileNotFoundError):
        os.utime(kept)
    forget_old(kept.parent.iterdir(), CHECKOUTS_MAX)
