"""Opening the store of a broker, with errors that say what to do."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from kerolox.broker.config import BrokerConfig
from kerolox.errors import StoreError
from kerolox.kernel import Kernel, RecoveryReport, StoreKernel, StoreSettings
from kerolox.store.files.lock_holder import lock_holder
from kerolox.store.recovery.cut_record import EVERYTHING, LogCut, is_cut_begun

_log = logging.getLogger(__name__)


def open_store(
    config: BrokerConfig, kernel: Kernel, *, is_slave: bool
) -> tuple[StoreKernel, RecoveryReport]:
    """Make the folders, open and recover the store.

    Raises:
        StoreError: it can't be opened: in use, not writable, a file of the wrong size.
    """
    root = config.store_path_root_dir
    try:
        config.config_folder.mkdir(parents=True, exist_ok=True)
        for folder in config.log_folders:
            folder.mkdir(parents=True, exist_ok=True)
        _check_writable(root, config)
    except OSError as error:
        raise StoreError(_folder_error(root, error)) from error
    settings = config.store_settings(is_slave=is_slave)
    store = kernel.Store(settings)
    try:
        cut = _finish_cut(settings) if is_cut_begun(settings) else None
        report = store.open()
    except BlockingIOError as error:
        holder = lock_holder(str(root / "lock"))
        raise StoreError(
            f"store {root} is in use by {holder}: stop that broker, or give this one a folder of "
            "its own (storePathRootDir)"
        ) from error
    except OSError as error:
        raise StoreError(_folder_error(root, error)) from error
    except ValueError as error:
        raise StoreError(f"store {root} can't be opened: {error}") from error
    if cut is not None:
        report_cut(root, cut)
    for note in report.notes:
        _log.warning("store %s: %s", root, note)
    _log.info("store %s: %s", root, report.summary())
    return store, report


def _finish_cut(settings: StoreSettings) -> LogCut | None:
    from kerolox.store.recovery.log_cut import finish_cut

    return finish_cut(settings)


def report_cut(root: Path, cut: LogCut) -> None:
    """Say what was cut off a slave's log, and how to examine it."""
    where = "begins anew" if cut.kept == EVERYTHING else f"ends at {cut.kept} now"
    _log.warning(
        "store %s: its log %s, and the bytes from %d to %d are kept in %s: %s (master %s); "
        "kerolox store dump %s --from %d shows them",
        root,
        where,
        cut.begin,
        cut.end,
        cut.folder,
        cut.why,
        cut.master,
        cut.folder,
        cut.begin,
    )


def _check_writable(root: Path, config: BrokerConfig) -> None:
    """Without this a folder that is closed to us would show at the first send only.

    Raises:
        OSError: there is one; it names it.
    """
    for folder in (root, *config.log_folders, root / "consumequeue", root / "index"):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    probe = config.config_folder / f".writable-{os.getpid()}"
    probe.touch()
    probe.unlink()


def _folder_error(root: Path, error: OSError) -> str:
    where = error.filename or root
    return (
        f"store {root} can't be used: {where}: {error.strerror or error}; give this user write "
        "permission, free space if the disk is full, or choose another folder (storePathRootDir)"
    )
