"""Archives that tests and tools unpack: our own, and sources of others."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def unpack_archive(archive: tarfile.TarFile, folder: Path | str) -> None:
    """Unpack all of an archive below ``folder``, nothing outside it where Python checks that: from
    3.11.4 on, which Debian 12 does not have."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
