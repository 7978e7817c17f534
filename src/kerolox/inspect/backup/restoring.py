"""``kerolox store restore``: a store made of a backup, each byte compared with what was written."""

from __future__ import annotations

import contextlib
import os

from kerolox.errors import StoreError
from kerolox.inspect.backup.copying import check_free, copy_file, whole_folder
from kerolox.inspect.backup.manifest import Manifest, counting
from kerolox.inspect.log_walk import Progress
from kerolox.store.files.mapped_file import opened

_LOG = "commitlog/"


def restore_backup(
    backup: str, target: str, *, log_folder: str | None = None, progress: Progress | None = None
) -> Manifest:
    """Make a store of a backup, which stays as it is, in a folder that is not there, or empty.

    ``log_folder``: where the commit log goes; None: ``commitlog`` below the store's folder.
    StoreError: it is no backup or has other bytes than were written, or a folder is in use.
    OSError: something can't be read or written. What was copied is removed.
    """
    manifest = Manifest.read(backup)
    count = counting(progress, manifest.size)
    with contextlib.ExitStack() as stack:
        # Before the long work.
        check_free(target)
        part = stack.enter_context(whole_folder(target))
        # Its name is given first: without the store's folder nobody takes it for one.
        log = part if log_folder is None else stack.enter_context(whole_folder(log_folder))
        for file in manifest.files:
            path = os.path.join(backup, file.path)
            is_elsewhere = log_folder is not None and file.path.startswith(_LOG)
            copy = os.path.join(part, file.path)
            if is_elsewhere:
                copy = os.path.join(log, file.path.removeprefix(_LOG))
            try:
                with opened(path, os.O_RDONLY) as descriptor:
                    size = os.fstat(descriptor).st_size
                    copied = copy_file(
                        descriptor, copy, count, size=min(size, file.size), limit=file.used
                    )
            except FileNotFoundError:
                raise StoreError(f"{path} is missing") from None
            if size != file.size:
                raise StoreError(f"{path} has {size} bytes, {file.size} were written")
            if copied[1] != file.sha256:
                raise StoreError(f"{path} has other bytes than were written")
        os.makedirs(
            log if log_folder is not None else os.path.join(part, "commitlog"), exist_ok=True
        )
    return manifest
