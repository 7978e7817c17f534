"""The folders that the commit log lies in: one, or several that its files go to in turn.

RocketMQ's ``MultiPathMappedFileQueue``: file number *k* of the log goes to folder *k* modulo the
number of those that may take files, in the order of their names. A read-only folder takes none, a
full one only when all are full. Where a file was made does not bind the others: all folders are
read at the start, and the names put the files in order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.kernel.settings import StoreSettings

PATH_SPLITTER = ","
"""Joins several folders in one setting."""


def split_folders(setting: str) -> tuple[str, ...]:
    """The folders of a setting, each once, by name."""
    parts = (part.strip() for part in setting.split(PATH_SPLITTER))
    return tuple(sorted({part.rstrip("/") or part for part in parts if part}))


class LogFolders:
    """Where the files of a log are, and where the next ones go.

    Both settings are folders joined by ``PATH_SPLITTER``. ValueError: there is none that files can
    be made in.
    """

    def __init__(self, setting: str, read_only_setting: str = "") -> None:
        self.read_only = split_folders(read_only_setting)
        """Their files are read, and none is made beside them."""
        self.writable = tuple(
            folder for folder in split_folders(setting) if folder not in self.read_only
        )
        if not self.writable:
            raise ValueError(
                "readOnlyCommitLogStorePaths names every folder of storePathCommitLog; "
                "leave one that new files can be made in"
            )
        self._rotation = self.writable

    @property
    def all(self) -> tuple[str, ...]:
        """Every folder that may hold files of the log."""
        return self.writable + self.read_only

    def set_full(self, full: Iterable[str]) -> None:
        """Take these out of the rotation of new files, and let in what was out before."""
        out = {folder.rstrip("/") for folder in full}
        left = tuple(folder for folder in self.writable if folder not in out)
        self._rotation = left or self.writable

    def folder_of(self, number: int) -> str:
        """Where file number ``number`` of the log is to be made."""
        return self._rotation[number % len(self._rotation)]

    def __str__(self) -> str:
        return PATH_SPLITTER.join(self.writable)


def root_of(settings: StoreSettings) -> str:
    """The folder of a store, as it is in the system."""
    return os.path.abspath(os.path.expanduser(settings.store_path_root_dir))
