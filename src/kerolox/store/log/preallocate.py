"""The thread that makes the next files of the commit log before they are needed.

RocketMQ's ``AllocateMappedFileService``. A table has the requests by their start, so asking twice
for a file makes it once. The thread makes one file after the other. An append that needs a file
which is being made waits for it, at most ``WAIT_SECONDS_MAX``. It makes one itself that the thread
has not begun. With ``warmMapedFileEnable`` the thread first writes zeros to every page of a file,
which stays in memory until it is full and flushed (RocketMQ: 6 s after it is full).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable

from kerolox.kernel.settings import StoreSettings
from kerolox.store.files.mapped_file import MappedFile, sync_path, write_all
from kerolox.store.files.thread import PAGE_BYTES, StoreThread
from kerolox.store.log.transient_pool import has_pool

WAIT_SECONDS_MAX = 5.0
"""How long an append waits for a file that is being made (``waitTimeOut``)."""
REQUESTS_MAX = 4
"""The next file and the one after it, and two more while the folders change."""
WARM_UP_BYTES = 1 << 20
"""Written between two checks of whether somebody needs the file."""
BUSY_MS_MAX = 10_000_000
"""A longer wait is a mistake of the clock, RocketMQ says."""


class FileLateError(OSError):
    """A file was not made in ``WAIT_SECONDS_MAX``."""


class _Request:
    """One file to be made (``AllocateRequest``)."""

    def __init__(self, start: int, folder: str) -> None:
        self.start = start
        self.folder = folder
        self.file: MappedFile | None = None
        self.is_begun = False
        self.is_wanted = False
        """Somebody waits: leave the rest of the warm-up."""
        self.done = threading.Event()


class FileAllocator(StoreThread):
    """Makes files of one log. ``ask`` and ``take`` belong to the thread that owns the store."""

    def __init__(self, settings: StoreSettings, setting_name: str) -> None:
        super().__init__("kerolox-allocate")
        self._file_size = settings.mapped_file_size_commit_log
        self._setting_name = setting_name
        # With a transient pool the file is written by another thread, when that has time for it.
        self._is_warm = settings.warm_maped_file_enable and not has_pool(settings)
        is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        pages = max(1, settings.flush_least_pages_when_warm_maped_file)
        self._flush_bytes = pages * PAGE_BYTES if is_sync else 0
        self._busy_ms = settings.os_page_cache_busy_time_out_mills
        self._requests: dict[int, _Request] = {}
        self._waiting_since = 0.0
        self._lock = threading.Lock()

    # -- the owner's side -------------------------------------------------------------------
    def ask(self, files: Iterable[tuple[int, str]]) -> None:
        """Make these (start, folder) in this order; one that was asked for is not asked again."""
        with self._lock:
            for start, folder in files:
                if len(self._requests) < REQUESTS_MAX:
                    self._requests.setdefault(start, _Request(start, folder))
        self.wake()

    def take(self, start: int, folder: str) -> MappedFile | None:
        """The file that starts there, if it was made in that folder; None: make it. FileLateError:
        it is still being made.
        """
        with self._lock:
            request = self._requests.get(start)
            if request is None or not request.is_begun:
                self._requests.pop(start, None)
                return None
        self._waiting_since = self._waiting_since or time.monotonic()
        request.is_wanted = True
        if not request.done.wait(WAIT_SECONDS_MAX):
            raise FileLateError(
                f"{folder}/{start:020d} is still being made: the disk does not answer"
            )
        self._waiting_since = 0.0
        with self._lock:
            del self._requests[start]
        file = request.file
        if file is None or (request.folder == folder and not file.is_unlinked):
            return file
        # The folder it was made in left the rotation; or somebody deleted it, as a Java broker does
        # that is started on this store and finds it locked only after its recovery.
        file.delete()
        return None

    @property
    def waiting_ms(self) -> int:
        """How long an append has waited for a file by now (``lockTimeMills``)."""
        since = self._waiting_since
        return int((time.monotonic() - since) * 1_000) if since else 0

    def is_busy(self, start: int) -> bool:
        """One waited for the file that starts there in vain, for so long that others shall not
        (``isOSPageCacheBusy``)."""
        request = self._requests.get(start)
        is_making = request is not None and request.is_begun and not request.done.is_set()
        return is_making and self._busy_ms < self.waiting_ms < BUSY_MS_MAX

    def remove_unused(self) -> None:
        """Delete what was made and not needed; once the thread has ended."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if request.file is not None:
                request.file.delete()

    # -- the thread's side ------------------------------------------------------------------
    def pause_seconds(self) -> float:
        """Only requests wake it; a missed one costs nothing but time."""
        return 60.0

    def run_once(self) -> None:
        """Make what is asked for."""
        while not self._is_stopping:
            with self._lock:
                waiting = (each for each in self._requests.values() if not each.is_begun)
                request = next(waiting, None)
                if request is None:
                    return
                request.is_begun = True
            try:
                # Whoever needs the file meets the error when he makes it himself.
                with contextlib.suppress(OSError, ValueError):
                    request.file = self._make(request)
            finally:
                request.done.set()

    def _make(self, request: _Request) -> MappedFile:
        file = MappedFile(request.folder, request.start, self._file_size, self._setting_name)
        with contextlib.suppress(OSError):
            if self._is_warm:
                self._warm_up(file, request)
            sync_path(request.folder)
        return file

    def _warm_up(self, file: MappedFile, request: _Request) -> None:
        flushed = 0
        for position in range(0, file.size, WARM_UP_BYTES):
            if request.is_wanted or self._is_stopping:
                return
            end = min(position + WARM_UP_BYTES, file.size)
            write_all(file.descriptor, bytes(end - position), position)
            if self._flush_bytes and end - flushed >= self._flush_bytes:
                os.fdatasync(file.descriptor)
                flushed = end
        if self._flush_bytes:
            os.fdatasync(file.descriptor)
        file.lock_pages()
