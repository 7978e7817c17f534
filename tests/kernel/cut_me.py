"""Cuts a log, in a process that is killed: folder of the store, size of a file, offset, folders."""

from __future__ import annotations

import sys

from kerolox.kernel.settings import StoreSettings
from kerolox.store.recovery.log_cut import cut_log

if __name__ == "__main__":
    folder, size, offset, paths = sys.argv[1:]
    settings = StoreSettings(
        store_path_root_dir=folder,
        store_path_commit_log=paths,
        mapped_file_size_commit_log=int(size),
    )
    cut_log(settings, int(offset), why="differs", master="m:1")
