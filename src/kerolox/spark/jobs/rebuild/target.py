"""Where queues and index are made: a new folder, or a store's own, which they replace when whole.

Until then they lie where no broker looks. A rebuild that was killed leaves its staging folder,
which the next one removes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from typing import Protocol

from kerolox.errors import StoreError
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.inspect.rebuild import clear_up, new_folder, swap, write_checkpoint
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.rebuild.options import RebuildOptions
from kerolox.store.files.checkpoint import StoreLock
from kerolox.store.files.mapped_file import sync_path

STATE = "rebuild.json"
"""Says of a staging folder that it is one, and of a new folder what it was made of."""

VERSION = 1

_STAGING = ".rebuilding"
_SCRATCH = ".unfinished"
_LOCK = "lock"


class RebuildTarget(Protocol):
    """A place for queues and index."""

    location: str
    """The folder that has them in the end."""
    queue_root: str
    """Where they are made."""
    index_folder: str
    scratch: str
    """For files that are not whole."""

    def begin(self) -> None:
        """Make the folders; nobody else may work here then. StoreError: somebody does. ConfigError:
        something else is there.
        """

    def publish(self, newest: int, *, has_index: bool, state: Mapping[str, object]) -> None:
        """Give everything its name. ``newest``: store time of the log's newest record. ``state``:
        what it was made of, for people.
        """

    def end(self) -> None:
        """Remove what was not published; idempotent."""


def target_of(options: RebuildOptions, settings: StoreOptions) -> RebuildTarget:
    """The place that the options name. ConfigError: it has other data. StoreError: there is no
    store to exchange them in.
    """
    if options.to is not None:
        return NewFolder(options)
    return StoreItself(options, settings)


class NewFolder:
    """A :class:`RebuildTarget` that is not there before; it appears whole, by one rename."""

    def __init__(self, options: RebuildOptions) -> None:
        assert options.to is not None
        self._options = options
        self.location = os.path.abspath(os.path.expanduser(options.to))
        self._staging = self.location + _STAGING
        self._lock = StoreLock(os.path.join(self._staging, _LOCK))
        self._is_held = False
        self.queue_root = os.path.join(self._staging, "consumequeue")
        self.index_folder = os.path.join(self._staging, "index")
        self.scratch = os.path.join(self.queue_root, _SCRATCH)
        self._check(self.location, frozenset(), "name a folder that is not there or is empty")

    def _check(self, folder: str, ours: frozenset[str], what_else: str) -> None:
        if os.path.exists(folder) and (not os.path.isdir(folder) or {*os.listdir(folder)} - ours):
            text = f"{folder} has other data; {what_else}"
            raise self._options.error("to", text)

    def begin(self) -> None:
        if not os.path.exists(os.path.join(self._staging, STATE)):
            ours = frozenset((_LOCK, STATE + ".tmp"))
            self._check(self._staging, ours, "remove it, or name another folder")
        os.makedirs(self._staging, exist_ok=True)
        try:
            self._lock.acquire()
        except BlockingIOError:
            raise StoreError(
                f"another rebuild makes {self.location}; wait for its end, or name another folder"
            ) from None
        self._is_held = True
        self._write_state({"state": "unfinished", "store": self._options.store})
        for name in os.listdir(self._staging):
            if name not in (STATE, _LOCK):
                _remove(os.path.join(self._staging, name))
        os.makedirs(self.scratch)
        os.makedirs(self.index_folder)

    def _write_state(self, state: Mapping[str, object]) -> None:
        path = os.path.join(self._staging, STATE)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **state}, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)

    def publish(self, newest: int, *, has_index: bool, state: Mapping[str, object]) -> None:
        shutil.rmtree(self.scratch)
        if not has_index:
            os.rmdir(self.index_folder)
        checkpoint = os.path.join(self._staging, "checkpoint")
        write_checkpoint(checkpoint, newest, has_index=has_index)
        self._write_state({"state": "whole", **state})
        sync_path(self._staging)
        os.rename(self._staging, self.location)
        sync_path(os.path.dirname(self.location))

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            shutil.rmtree(self._staging, ignore_errors=True)
            self._lock.release()


class StoreItself:
    """The :class:`RebuildTarget` that the log is of; its lock is held until the end."""

    def __init__(self, options: RebuildOptions, settings: StoreOptions) -> None:
        root = os.path.abspath(os.path.expanduser(options.store.removeprefix("file:")))
        self._settings = settings
        self._places = StorePlaces.find(root, settings)
        self._lock = StoreLock(os.path.join(root, _LOCK))
        self._is_held = False
        self.location = root
        self.queue_root = new_folder(self._places.queue_root)
        self.index_folder = new_folder(self._places.index_folder)
        self.scratch = os.path.join(self.queue_root, _SCRATCH)

    def begin(self) -> None:
        try:
            self._lock.acquire()
        except BlockingIOError as error:
            raise StoreError(str(error)) from None
        self._is_held = True
        # What was found before the lock was ours may have been a broker's last moment.
        self._places = StorePlaces.find(self.location, self._settings)
        clear_up(self._places)
        os.makedirs(self.scratch)
        os.makedirs(self.index_folder)

    def publish(self, newest: int, *, has_index: bool, state: Mapping[str, object]) -> None:
        shutil.rmtree(self.scratch)
        if not has_index:
            os.rmdir(self.index_folder)
        swap(self._places, has_index=has_index)
        write_checkpoint(self._places.checkpoint_path, newest, has_index=has_index)

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            for folder in (self.queue_root, self.index_folder):
                shutil.rmtree(folder, ignore_errors=True)
            self._lock.release()


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def check_room(target: RebuildTarget, wanted: int) -> None:
    """Refuse before anything is written what does not fit on the disk; ``wanted`` is in bytes."""
    free = shutil.disk_usage(target.queue_root).free
    if free < wanted:
        raise JobError(
            f"queues and index need about {wanted} bytes, and {target.location} has {free} left; "
            "nothing was changed; free some, or name a folder on another disk"
        )


def check_files(target: RebuildTarget, queue_files: int, index_files: int) -> None:
    """Compare with what the tasks say that they have written, and bring the names to the disk;
    JobError: this machine does not see all.
    """
    found = 0
    for folder, _, names in os.walk(target.queue_root):
        if folder != target.scratch:
            found += len(names)
        sync_path(folder)
    sync_path(target.index_folder)
    found_index = len(os.listdir(target.index_folder))
    if (found, found_index) != (queue_files, index_files):
        raise JobError(
            f"tasks have written {queue_files} files of queues and {index_files} of the index, of "
            f"which {found} and {found_index} are in {target.location}: every machine that runs "
            "tasks must see that folder under the same path; nothing was changed"
        )
