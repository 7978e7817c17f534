"""What is done with what stands behind the end of the log.

Torn records are cleared. Whole ones are somebody's messages, behind damage: they are kept for
people to look at, in a folder beside that of their file whose name ends in ``-cut``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from kerolox.protocol.records import MESSAGE_MAGIC, parse_record
from kerolox.store.files.mapped_file import (
    MappedFile,
    data_end,
    end_hole,
    make_folder,
    offset_name,
    sync_path,
    zero_from,
)
from kerolox.store.layout import crc_matches
from kerolox.store.log.commit_log import CommitLog

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big")


class LogQuarantine:
    """Ends a log. ``notes`` gets a sentence for each thing that was done."""

    def __init__(self, log: CommitLog, notes: list[str]) -> None:
        self._log = log
        self._notes = notes
        self.truncated_bytes = 0
        """How much stood behind the end."""
        self.files_set_aside = 0
        """Files with whole records that were kept."""

    def end_at(self, end: int) -> None:
        """Make ``end`` the end of the log, for good.

        Raises:
            ValueError: files behind it are in a folder that is only read.
            OSError: what is there can't be cleared or moved.
        """
        log = self._log
        for file in log.files.values():
            if file.read_only and file.start > end:
                raise ValueError(
                    f"the commit log ends at {end}, before {file.path}, which is in a folder of "
                    "readOnlyCommitLogStorePaths; repair the file before it, or take the folder "
                    "out of that setting"
                )
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

    def _take_away(self, file: MappedFile) -> None:
        descriptor = file.unseal()
        used = data_end(descriptor, 0, file.size)
        if holds_record(file, 0, used):
            target = _set_aside_path(file)
            os.rename(file.path, target)
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
            target = _set_aside_path(file)
            shutil.copyfile(file.path, target)
            self._notes.append(
                f"copied {file.path} to {target}: it has records behind the end of the log"
            )
            self.files_set_aside += 1


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


def _set_aside_path(file: MappedFile) -> str:
    """Where a file is kept: a name that no file has yet."""
    folder = file.folder + "-cut"
    make_folder(folder)
    path = os.path.join(folder, offset_name(file.start))
    number = 0
    with contextlib.suppress(FileNotFoundError):
        while os.stat(path):
            number += 1
            path = os.path.join(folder, f"{offset_name(file.start)}.{number}")
    return path
