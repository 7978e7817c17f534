"""What is done with what stands behind the end of the log.

Torn records are cleared. Whole ones are somebody's messages, behind damage: they are kept for
people to read, in a folder beside that of their file whose name ends in ``-cut``. What is cut
off a slave's log has a folder of its own in there, of the form of a store.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kerolox.protocol.records import MESSAGE_MAGIC, parse_record
from kerolox.store.files.mapped_file import (
    MappedFile,
    data_end,
    end_hole,
    offset_name,
    opened,
    sync_path,
    write_all,
    zero_from,
)
from kerolox.store.layout import crc_matches
from kerolox.store.log.commit_log import CommitLog

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big")
_COPIED_BYTES = 1 << 20
_PART = ".part"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class LogQuarantine:
    """Ends a log. ``notes`` gets a sentence for each thing that was done.

    ``part`` names the folder in which all of it is kept together; when it was done halfway, the
    same part is gone on with. Empty: each file by itself.
    """

    def __init__(self, log: CommitLog, notes: list[str], part: str = "") -> None:
        self._log = log
        self._part = part
        self._notes = notes
        self.truncated_bytes = 0
        """How much stood behind the end."""
        self.files_set_aside = 0
        """Files with whole records that were kept."""

    def end_at(self, end: int) -> None:
        """Make ``end`` the end of the log, for good. ValueError: files behind it are in a folder
        that is only read. OSError: what is there can't be cleared or moved.
        """
        log = self._log
        self.check(end)
        # The last one first: a kill in between leaves a log without a hole.
        for file in reversed(log.truncate(end)):
            self._take_away(file)
        tail = log.tail
        if tail is not None and end < tail.end:
            log.open_tail()
            position = end - tail.start
            reach = data_end(tail.descriptor, position, tail.size)
            self._keep_copy(tail, position, reach)
            used = zero_from(tail.descriptor, position, tail.size, reach)
            if used:
                self._notes.append(f"{tail.path}: {used} bytes behind {end} cleared")
                os.fdatasync(tail.descriptor)
            self.truncated_bytes += used

    def check(self, end: int) -> None:
        """Raise a ValueError when files behind ``end`` are in a folder that is only read: the log
        can't end there.
        """
        for file in self._log.files.values():
            if file.read_only and file.start > end:
                raise ValueError(
                    f"the commit log ends at {end}, before {file.path}, which is in a folder of "
                    "readOnlyCommitLogStorePaths; repair the file before it, or take the folder "
                    "out of that setting"
                )

    def keep_tail(self, end: int) -> None:
        """Copy the file that the log will end in, before anything is changed. Durable."""
        file = self._log.files.get(end // self._log.file_size)
        if file is not None:
            with opened(file.path, os.O_RDONLY) as descriptor:
                reach = data_end(descriptor, end - file.start, file.size)
            self._keep_copy(file, end - file.start, reach)

    def _take_away(self, file: MappedFile) -> None:
        descriptor = file.unseal()
        used = data_end(descriptor, 0, file.size)
        if holds_record(file, 0, used):
            target = self._set_aside_path(file)
            os.rename(file.path, target)
            sync_path(os.path.dirname(target))
            self._notes.append(f"moved {file.path} to {target}: the log ends before it")
            self.files_set_aside += 1
        else:
            if used:
                self._notes.append(f"{file.path}: behind the end of the log, deleted")
            Path(file.path).unlink(missing_ok=True)
        self.truncated_bytes += used
        file.close()
        sync_path(file.folder)

    def _keep_copy(self, file: MappedFile, position: int, reach: int) -> None:
        """Copy the file that the log ends in, if whole records stand behind that end."""
        if holds_record(file, position, reach):
            target = self._set_aside_path(file)
            if os.path.exists(target):
                return
            _copy(file, target, reach)
            self._notes.append(
                f"copied {file.path} to {target}: it has records behind the end of the log"
            )
            self.files_set_aside += 1

    def _set_aside_path(self, file: MappedFile) -> str:
        """Where a file is kept: of a part the same again, else a name that no file has yet."""
        folder = cut_folder(file.folder)
        if self._part:
            folder = os.path.join(folder, self._part, "commitlog")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, offset_name(file.start))
        if self._part:
            return path
        number = 0
        with contextlib.suppress(FileNotFoundError):
            while os.stat(path):
                number += 1
                path = os.path.join(folder, f"{offset_name(file.start)}.{number}")
        return path


def holds_record(file: MappedFile, position: int, end: int) -> bool:
    """Whether a whole record of this file stands anywhere in [position, end)."""
    view, at = file.view, position
    limit = end_hole(file.path, file.size)
    while (found := view.find(_MAGIC, at + 4, min(end, limit))) >= 0:
        at = found - 4
        record = parse_record(view, at, limit, file.start + at)
        if record is not None and crc_matches(view, record):
            return True
        at += 1
    return False


def cut_folder(folder: str) -> str:
    """Where what is cut off a log's files in a folder is kept."""
    return folder + "-cut"


def _copy(file: MappedFile, target: str, reach: int) -> None:
    """Copy a file, of which nothing but zeros stands from ``reach`` on. Durable, and whole or not
    there at all."""
    part = target + _PART
    with opened(file.path, os.O_RDONLY) as source, opened(part, _WRITE) as copy:
        for at in range(0, reach, _COPIED_BYTES):
            write_all(copy, os.pread(source, min(_COPIED_BYTES, reach - at), at), at)
        os.ftruncate(copy, file.size)
        os.fsync(copy)
    os.rename(part, target)
    sync_path(os.path.dirname(target))
