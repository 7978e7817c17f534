"""What is made once on a machine and serves every checkout: in ``$XDG_CACHE_HOME/kerolox``.

Without the variable it is in ``~/.cache/kerolox``. It may be removed at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["digest_of", "forget_old", "kept_folder"]

LEFT_OUT = frozenset(("target", "__pycache__"))
"""Folders that are no sources."""


def kept_folder(name: str) -> Path:
    """The folder of that name, made when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "kerolox" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest_of(folder: Path, *texts: str) -> str:
    """16 digits for the files of a folder with their names, and for what else matters."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and LEFT_OUT.isdisjoint(name.parts):
            digest.update(f"\n{name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def forget_old(made: Iterable[Path], count: int) -> None:
    """Of some folders only those that were used last stay, ``count`` of them."""
    for old in sorted(made, key=lambda path: -path.stat().st_mtime)[count:]:
        shutil.rmtree(old, ignore_errors=True)
