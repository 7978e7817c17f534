"""``kerolox store backup``: a copy of a store that is whole, taken while its broker runs.

The order makes it whole. A part that is copied later knows at least what an earlier one says:

1. the checkpoint: what it says of queues and log is so in all that is copied after it;
2. all files of the log are opened; what expires from here on is deleted, and read all the same;
3. the tables, offsets before topics; the queues, the index, the note of deleted topics;
4. the end of the log, fixed now, and the log up to there. Only now, so that no offset and no queue
   of the copy is ahead of its log.

Then it opens the copy as a store after a crash of the machine. Recovery makes queues and index
agree with the log, the one truth, from the checkpoint on. A copy that does not open, or ends before
where the log ended at the beginning, is no backup. It is closed again, so that whoever opens a
backup, a Java broker too, finds a store that was stopped cleanly.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from kerolox.errors import StoreError
from kerolox.inspect.backup.copying import MARK_NAME, copy_file, whole_folder
from kerolox.inspect.backup.manifest import BackupFile, Manifest, counting, files_below, sum_of
from kerolox.inspect.index_layout import DEFAULT_SHAPE, DEFAULTS
from kerolox.inspect.log_walk import Progress, find_log_end
from kerolox.inspect.places import LogFile, StorePlaces, offset_files
from kerolox.inspect.rebuild import index_shape, queue_file_bytes
from kerolox.kernel.choice import load_kernel
from kerolox.kernel.settings import StoreSettings
from kerolox.protocol import fastjson
from kerolox.protocol.names import LMQ_PREFIX
from kerolox.store.files.mapped_file import data_end, opened
from kerolox.store.queues.ext_unit import UNIT_HEAD

TABLE_SECONDS_MAX = 5.0
"""How long a table may be missing: Java's broker deletes it, then renames the new one."""
TABLE_STEP_SECONDS = 0.02
INDEX_SECONDS_MAX = 3_600.0
"""How long the index of the copy may take to catch up with its log."""
INDEX_STEP_SECONDS = 0.01
_OWN = ("lock", "inventory", "boot")
"""Files of a store that speak of one folder and one machine, and mean nothing in a copy."""


def back_up(places: StorePlaces, target: str, progress: Progress | None = None) -> Manifest:
    """Copy a store, of a broker that runs or not, ours or Java's, with the settings of its broker,
    to a folder that is not there, or is empty.

    Every message that was acknowledged before is in the copy; later ones may be. So are the offsets
    of groups, as the broker's tables last had them. StoreError: the target can't be used, or no
    whole copy can be made of the store. OSError: something can't be read or written. What was
    copied is removed.
    """
    target = os.path.abspath(target)
    for folder in (places.root, *places.log_folders):
        if os.path.realpath(target).startswith(os.path.join(os.path.realpath(folder), "")):
            raise StoreError(f"{target} lies in the store; give a folder outside {folder}")
    began_ms = time.time_ns() // 1_000_000
    with whole_folder(target) as part, contextlib.ExitStack() as opened_files:
        copying = _Copying(places, part, opened_files, progress)
        copying.copy()
        # A broker that was killed may have left half a record at the end.
        is_whole = places.is_in_use or places.is_closed_cleanly
        begin, end = _settle(copying.settings(), copying.end_at_begin if is_whole else 0)
        for name in _OWN:
            Path(part, name).unlink(missing_ok=True)
        files = tuple(copying.listed())
        manifest = Manifest(places.root, version("kerolox"), began_ms, begin, end, files)
        manifest.write(part)
    return manifest


class _Copying:
    def __init__(
        self,
        places: StorePlaces,
        part: str,
        opened_files: contextlib.ExitStack,
        progress: Progress | None,
    ) -> None:
        self._places, self._part = places, part
        self._opened = opened_files
        self._log: dict[str, tuple[LogFile, int]] = {}
        """By name: files of the log, with their descriptors, oldest first."""
        self._sums: dict[str, tuple[int, int, str]] = {}
        """By path: time of change, used bytes and sum of files of the log's copy."""
        self._count = counting(progress, sum(file.size for file in places.log_files))
        self.end_at_begin = find_log_end(places.log_files)

    def copy(self) -> None:
        places, part = self._places, self._part
        checkpoint = b""
        with contextlib.suppress(FileNotFoundError):
            checkpoint = Path(places.checkpoint_path).read_bytes()
        self._open_log()
        self._copy_tables()
        for folder in (places.queue_root, places.extension_root):
            self._copy_tree(folder)
        if places.options.has_index:
            # The newest of a broker that runs is written to, and so is one that it makes from here
            # on: recovery makes them anew.
            names = [os.path.basename(path) for path in places.index_paths()]
            self._copy_tree(places.index_folder, names[:-1] if places.is_in_use else names)
        with contextlib.suppress(FileNotFoundError):
            Path(part, "deletions").write_bytes(Path(places.root, "deletions").read_bytes())
        self._open_log()
        self._copy_log(find_log_end([file for file, _descriptor in self._log.values()]))
        if checkpoint:
            Path(part, "checkpoint").write_bytes(checkpoint)
        # Without a boot: recovery trusts the checkpoint alone.
        Path(part, "abort").touch()

    def _open_log(self) -> None:
        """Open the files of the log that are not open yet; those that expired meanwhile are not."""
        for folder in self._places.log_folders:
            for file in offset_files(folder)[0]:
                name = os.path.basename(file.path)
                if name in self._log or not file.size:
                    continue
                try:
                    descriptor = self._opened.enter_context(opened(file.path, os.O_RDONLY))
                except FileNotFoundError:
                    # The oldest go first: what is older than it is gone, too.
                    self._log = {n: each for n, each in self._log.items() if n > name}
                    continue
                self._log[name] = file, descriptor
        self._log = dict(sorted(self._log.items()))

    def _copy_tables(self) -> None:
        source = self._places.config_folder
        try:
            names = sorted(os.listdir(source))
        except FileNotFoundError:
            return
        # Where a table is being replaced its backup alone may be there.
        whole = {name.removesuffix(".bak") for name in names if name.endswith(".json.bak")}
        os.mkdir(os.path.join(self._part, "config"))
        for name in sorted(whole | {each for each in names if not each.endswith(".tmp")}):
            path = os.path.join(source, name)
            if os.path.isdir(path):
                continue
            data = _table(path)
            if data is not None:
                Path(self._part, "config", name).write_bytes(data)

    def _copy_tree(self, source: str, names: Sequence[str] | None = None) -> None:
        """Copy the files of a folder; ``names``: those alone."""
        below = os.path.relpath(source, self._places.root)
        for path in files_below(source) if names is None else names:
            # Missing: deleted meanwhile, too old or of a topic that is gone.
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
                path_there = os.path.join(source, path)
                descriptor = stack.enter_context(opened(path_there, os.O_RDONLY))
                size = os.fstat(descriptor).st_size
                if size:
                    copy = os.path.join(self._part, below, path)
                    copy_file(descriptor, copy, self._count, size=size)

    def _copy_log(self, end: int) -> None:
        os.makedirs(os.path.join(self._part, "commitlog"))
        for name, (file, descriptor) in self._log.items():
            if file.start >= end and file.start:
                # Made ahead; nothing stands in it yet.
                continue
            limit = min(file.size, end - file.start)
            path = os.path.join(self._part, "commitlog", name)
            used, found = copy_file(descriptor, path, self._count, size=file.size, limit=limit)
            self._sums[f"commitlog/{name}"] = os.stat(path).st_mtime_ns, used, found

    def settings(self) -> StoreSettings:
        """Those that the copy opens with: as told, and as the files say."""
        places, options = self._places, self._places.options
        shape = index_shape(places) if options.has_index else DEFAULT_SHAPE
        unit_bytes, map_bits = _extension(os.path.join(self._part, "consumequeue_ext"))
        is_lmq = any(name.startswith(LMQ_PREFIX) for name in _names_in(places.queue_root))
        further = options.multi_dispatch
        log_file_bytes = next((file.size for file, _descriptor in self._log.values()), 0)
        return StoreSettings(
            store_path_root_dir=self._part,
            mapped_file_size_commit_log=log_file_bytes or DEFAULTS.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=options.queue_file_bytes or queue_file_bytes(places),
            max_hash_slot_num=shape.slots,
            max_index_num=shape.entries,
            message_index_enable=options.has_index,
            message_delay_level=" ".join(f"{each // 1_000}s" for each in options.delays_ms),
            enable_multi_dispatch=is_lmq if further is None else further,
            enable_lmq=is_lmq if options.lmq is None else options.lmq,
            enable_consume_queue_ext=unit_bytes > 0,
            mapped_file_size_consume_queue_ext=(
                unit_bytes or DEFAULTS.mapped_file_size_consume_queue_ext
            ),
            bit_map_length_consume_queue_ext=map_bits,
        )

    def listed(self) -> list[BackupFile]:
        """Every file of the copy with its sum, as it is now."""
        files = []
        for path in files_below(self._part):
            if path == MARK_NAME:
                continue
            with opened(os.path.join(self._part, path), os.O_RDONLY) as descriptor:
                status = os.fstat(descriptor)
                changed, used, found = self._sums.get(path, (0, 0, ""))
                if changed != status.st_mtime_ns:
                    used = data_end(descriptor, 0, status.st_size)
                    found = sum_of(descriptor, used, self._count)
            files.append(BackupFile(path, status.st_size, used, found))
        return files


def _settle(settings: StoreSettings, least: int) -> tuple[int, int]:
    """Open a copy, which recovers it, and close it; where its log begins and ends."""
    root = settings.store_path_root_dir
    store = load_kernel().Store(settings)
    try:
        report = store.open()
    except ValueError as error:
        raise StoreError(f"the copy does not open: {error}") from None
    try:
        if report.max_offset < least:
            raise StoreError(
                f"the log's copy ends at {report.max_offset}, and the log went to {least}: "
                "kerolox store check says what stands there"
            )
        deadline = time.monotonic() + INDEX_SECONDS_MAX
        while store.stats()["index_pending"]:
            if store.trouble or time.monotonic() > deadline:
                why = store.trouble or f"not within {INDEX_SECONDS_MAX:g} s"
                raise StoreError(f"the index of the copy can't be made: {why}")
            time.sleep(INDEX_STEP_SECONDS)
    finally:
        store.close()
    if os.path.exists(os.path.join(root, "abort")):
        raise StoreError("the copy can't be closed as a whole store")
    return report.min_offset, report.max_offset


def _table(path: str) -> bytes | None:
    """The bytes of a table; one that is replaced just now is waited for. None: it is gone."""
    deadline = time.monotonic() + TABLE_SECONDS_MAX
    while True:
        data = None
        with contextlib.suppress(FileNotFoundError):
            data = Path(path).read_bytes()
        if data is not None and (not path.endswith(".json") or _is_json(data)):
            return data
        # A table that stays damaged is copied as it is, and its backup with it.
        if time.monotonic() > deadline:
            return data
        time.sleep(TABLE_STEP_SECONDS)


def _is_json(data: bytes) -> bool:
    try:
        fastjson.loads(data)
    except ValueError:
        return False
    return True


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _extension(folder: str) -> tuple[int, int]:
    """(bytes of a file of units, bits of a unit's map), by the first unit; zeros without any."""
    for path in files_below(folder):
        with opened(os.path.join(folder, path), os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            head = os.pread(descriptor, UNIT_HEAD.size, 0)
        if len(head) == UNIT_HEAD.size:
            return size, max(UNIT_HEAD.unpack(head)[3], 0) * 8
    return 0, 0
