"""Where the log of a store lies, by its settings."""

from __future__ import annotations

import os

from kerolox.kernel.settings import StoreSettings
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.folders import PATH_SPLITTER, split_folders


def root_of(settings: StoreSettings) -> str:
    """The folder of a store, as it is in the system."""
    return os.path.abspath(os.path.expanduser(settings.store_path_root_dir))


def log_of(settings: StoreSettings) -> CommitLog:
    """The log of a store; nothing is opened yet.

    Raises:
        ValueError: its files are too small, or no folder is left that they can be made in.
    """
    return CommitLog(
        _absolute(settings.store_path_commit_log) or os.path.join(root_of(settings), "commitlog"),
        settings.mapped_file_size_commit_log,
        _absolute(settings.read_only_commit_log_store_paths),
    )


def _absolute(setting: str) -> str:
    """The folders of a setting as they are in the system."""
    folders = (os.path.abspath(os.path.expanduser(each)) for each in split_folders(setting))
    return PATH_SPLITTER.join(folders)
