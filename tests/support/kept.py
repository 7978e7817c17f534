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


def kept_folder(name: str) -> Path:
    """The folder of that name, made when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "kerolox" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest_of(files: Iterable[Path], root: Path, text: str = "") -> str:
    """A hash of files, of their names below ``root``, and of a text that says what else matters."""
    digest = hashlib.sha256(text.encode())
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def forget_old(made: Iterable[Path], count: int) -> None:
    """Of some folders only those that were used last stay, ``count`` of them."""
    for old in sorted(made, key=lambda path: -path.stat().st_mtime)[count:]:
        shutil.rmtree(old, ignore_errors=True)
