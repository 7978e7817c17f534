"""Cutting the log of a closed store: what a slave does with what its master has not.

The folder ``commitlog-cut/NAME`` keeps what is cut off, in the form of a store. Whole files move
there, and the file in which the log ends is copied. ``cut.json`` beside it says when, why and from
where. The next opening makes queues, index and the other files agree, as after a crash.

Either all of it is done or nothing. The file ``INTENT`` (``cut_record``) in the store's folder says
what is to be done. It is written when the copy is on the disk. From then on each opening of the
store goes on with it (:func:`finish_cut`), whatever kills it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kerolox.kernel.settings import StoreSettings
from kerolox.protocol.records import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_BYTES_MIN, store_time_of
from kerolox.store.files.checkpoint import AbortFile, Checkpoint, StoreLock
from kerolox.store.files.inventory import Inventory
from kerolox.store.files.mapped_file import MappedFile, opened, sync_path, write_all
from kerolox.store.layout import BLANK, BLANK_BYTES, EPOCH_FILE
from kerolox.store.log.commit_log import CommitLog, log_of
from kerolox.store.log.epochs import EpochError, EpochFile, read_epochs
from kerolox.store.log.folders import root_of
from kerolox.store.log.quarantine import LogQuarantine, cut_folder
from kerolox.store.recovery.cut_record import EVERYTHING, INTENT, LogCut, is_cut_begun

ABOUT = "cut.json"
"""In the folder of what is kept: what :class:`LogCut` has."""
_ABOUT_LATER = f"{ABOUT}.later"
"""The same before the cut was begun; a full disk does not stop what was begun."""

_log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{8}-\d{6}-\d+(\.\d+)?")


def cut_log(settings: StoreSettings, equal_to: int, *, why: str, master: str) -> LogCut | None:
    """Cut the log of a closed store behind the last record that ends at ``equal_to`` or before.
    Gives what was cut off, None: nothing stands behind.

    Args:
        settings: of the store.
        equal_to: a physical offset; ``EVERYTHING``: nothing stays, the log begins anew.
        why: for people.
        master: an address, for people.

    Raises:
        ValueError: it can't be: the store was not closed cleanly, or files behind are only read.
        OSError: it can't be copied, and nothing was changed; or a cut that was begun can't be
            finished, and the next opening goes on with it. Somebody uses the store.
    """
    with _locked(settings):
        _finish(settings)
        root = root_of(settings)
        if AbortFile(os.path.join(root, "abort")).exists():
            raise ValueError(f"the store {root} was not closed cleanly, so its log is not cut")
        with _loaded(settings) as log:
            _remove_halves(log)
            cut = _planned(log, equal_to, why, master)
            if cut is None:
                return None
            quarantine = LogQuarantine(log, [], os.path.basename(cut.folder))
            quarantine.check(cut.kept)
            os.makedirs(cut.folder, exist_ok=True)
            if cut.kept != EVERYTHING:
                quarantine.keep_tail(cut.kept)
            data = msgspec.json.encode(cut)
            _write(os.path.join(cut.folder, _ABOUT_LATER), data)
            sync_path(os.path.dirname(cut.folder))
        _write(os.path.join(root, INTENT), data)
        return _finish(settings)


def finish_cut(settings: StoreSettings) -> LogCut | None:
    """Go on with a cut that was begun, before a store is opened; None: there is none. ValueError:
    the file that says what is to be done is none. OSError: it can't be finished. Somebody uses the
    store.
    """
    if not is_cut_begun(settings):
        return None
    with _locked(settings):
        return _finish(settings)


def kept_parts(settings: StoreSettings) -> list[str]:
    """The folders of what was cut off and is still there, the oldest first."""
    folders = log_of(settings).folders.all
    found = (
        path
        for folder in folders
        for path in _parts_in(cut_folder(folder))
        if os.path.exists(os.path.join(path, ABOUT))
    )
    return sorted(found, key=os.path.basename)


def forget_parts(settings: StoreSettings, count: int) -> None:
    """Remove all but the newest of what was cut off; what can't be removed is logged and stays.
    ``count``: how many stay."""
    parts = kept_parts(settings)
    for path in parts[: max(len(parts) - count, 0)]:
        try:
            shutil.rmtree(path)
        except OSError as error:
            _log.error("what was cut off long ago can't be removed: %s", error)
        else:
            _log.warning("%s, which was cut off the log, is the oldest part: it is removed", path)


def _parts_in(folder: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(folder)
        return [os.path.join(folder, name) for name in names if _NAME.fullmatch(name)]
    return []


@contextlib.contextmanager
def _locked(settings: StoreSettings) -> Iterator[None]:
    lock = StoreLock(os.path.join(root_of(settings), "lock"))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _loaded(settings: StoreSettings) -> Iterator[CommitLog]:
    log = log_of(settings)
    try:
        log.load()
        yield log
    finally:
        log.close()


def _planned(log: CommitLog, equal_to: int, why: str, master: str) -> LogCut | None:
    if log.tail is None:
        return None
    begin, store_time = (log.min_offset, 0) if equal_to < 0 else _last_end(log, equal_to)
    end = _data_end(log)
    if begin >= end:
        return None
    file = log.files.get(begin // log.file_size, log.tail)
    now = time.gmtime()
    name = f"{time.strftime('%Y%m%d-%H%M%S', now)}-{begin}"
    folder = os.path.join(cut_folder(file.folder), name)
    number = 0
    while os.path.exists(folder):
        number += 1
        folder = os.path.join(cut_folder(file.folder), f"{name}.{number}")
    return LogCut(
        begin=begin,
        end=end,
        why=why,
        master=master,
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        folder=folder,
        kept=EVERYTHING if equal_to < 0 else begin,
        store_time=store_time,
    )


def _last_end(log: CommitLog, offset: int) -> tuple[int, int]:
    """(end, store time) of the last record that ends at an offset or before it, blanks included."""
    for start in (offset, offset - log.file_size):
        file = log.files.get(start // log.file_size)
        if file is None:
            continue
        end, last = _walk(file, offset)
        if last >= 0:
            return end, store_time_of(file.view, last)
    raise ValueError(f"no record of the log ends before {offset}")


def _walk(file: MappedFile, offset: int) -> tuple[int, int]:
    """(end of the last record or blank that ends at an offset or before, position of the last
    record; -1: none)."""
    view, unpack = file.view, BLANK.unpack_from
    at, last, limit = 0, -1, min(file.size, offset - file.start)
    while at + BLANK_BYTES <= limit:
        size, magic = unpack(view, at)
        is_record = magic == MESSAGE_MAGIC and size >= RECORD_BYTES_MIN
        is_blank = magic == BLANK_MAGIC and at + size == file.size
        if at + size > limit or not (is_record or is_blank):
            break
        if is_record:
            last = at
        at += size
    return file.start + at, last


def _data_end(log: CommitLog) -> int:
    """The end of the last record. The last file may be empty."""
    for file in reversed(log.files.values()):
        end, _last = _walk(file, file.end)
        if end > file.start:
            return end
    return log.min_offset


def _remove_halves(log: CommitLog) -> None:
    """Remove copies of cuts that were never begun."""
    if len(log.folders.all) > 1:
        # Of a part that is in several folders one has the file that tells.
        return
    for path in _parts_in(cut_folder(log.folders.all[0])):
        if not os.path.exists(os.path.join(path, ABOUT)):
            import shutil  # not at the start: it brings three compressors

            shutil.rmtree(path)


def _finish(settings: StoreSettings) -> LogCut | None:
    root = root_of(settings)
    intent = os.path.join(root, INTENT)
    try:
        data = Path(intent).read_bytes()
    except FileNotFoundError:
        return None
    try:
        cut = msgspec.json.decode(data, type=LogCut)
    except msgspec.DecodeError as error:
        raise ValueError(f"{intent} is no cut of a log ({error}); move it away") from None
    # The next opening examines everything, as after a crash: queues and index end with the log.
    AbortFile(os.path.join(root, "abort")).begin()
    Inventory.remove(root)
    sync_path(root)
    _set_back(Checkpoint(os.path.join(root, "checkpoint")), cut.store_time)
    with contextlib.suppress(FileNotFoundError):
        os.rename(os.path.join(cut.folder, _ABOUT_LATER), os.path.join(cut.folder, ABOUT))
    with _loaded(settings) as log:
        LogQuarantine(log, [], os.path.basename(cut.folder)).end_at(cut.kept)
    sync_path(cut.folder)
    _end_epochs(Path(root, EPOCH_FILE), cut.kept)
    os.unlink(intent)
    sync_path(root)
    return cut


def _set_back(checkpoint: Checkpoint, store_time: int) -> None:
    """Records that come now may be older than those that were cut off, and are on no disk yet."""
    if not checkpoint.load():
        return
    checkpoint.physic_timestamp = min(checkpoint.physic_timestamp, store_time)
    checkpoint.logics_timestamp = min(checkpoint.logics_timestamp, store_time)
    checkpoint.index_timestamp = min(checkpoint.index_timestamp, store_time)
    checkpoint.flush()


def _end_epochs(path: Path, end: int) -> None:
    """No epoch of RocketMQ's controller mode begins where the log has ended. A file that can't be
    read stays as it is: the next opening warns of it.
    """
    with contextlib.suppress(FileNotFoundError, EpochError):
        table = read_epochs(path)
        table.cut(end)
        EpochFile(path).save(table)


def _write(path: str, data: bytes) -> None:
    """Write a file; durable, and whole or not at all."""
    fresh = f"{path}.tmp"
    with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(descriptor, data, 0)
        os.fsync(descriptor)
    os.rename(fresh, path)
    sync_path(os.path.dirname(path))
