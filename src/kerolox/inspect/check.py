"""``kerolox store check``: everything read, and everything held against everything else."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.inspect.check_index import IndexCheck
from kerolox.inspect.check_queues import QueueCheck
from kerolox.inspect.findings import Findings
from kerolox.inspect.log_walk import LogWalk, Progress
from kerolox.protocol import fastjson
from kerolox.store.files.checkpoint import Checkpoint
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.log.epochs import EpochError, read_epochs

if TYPE_CHECKING:
    from kerolox.inspect.places import LogFile, StorePlaces

CONFIG_FILE_BYTES_MAX = 256 * 1024 * 1024
_TIMES = ("log", "queues", "index")


@dataclass(frozen=True)
class CheckReport:
    """What a check read and found."""

    findings: Findings
    records: int
    log_bytes: int
    queue_entries: int
    index_entries: int
    config_files: int
    seconds: float

    @property
    def is_clean(self) -> bool:
        """There are no findings."""
        return self.findings.count == 0


def check_store(places: StorePlaces, progress: Progress | None = None) -> CheckReport:
    """Read a whole store; writes nothing and locks nothing.

    Memory does not depend on the store's size. It is a window of the log, a run of entries per
    queue up to a bound, and 4 bytes per slot of one index file.

    Raises:
        OSError: something can't be read.
    """
    started = time.monotonic()
    findings = Findings()
    _check_log_files(places, findings)
    walk = LogWalk(
        [file for file in places.log_files if file.size],
        findings,
        is_in_use=places.is_in_use,
        is_closed_cleanly=places.is_closed_cleanly,
        progress=progress,
    )
    queues = QueueCheck(places, findings)
    index = IndexCheck(places, findings) if places.options.has_index else None
    for record in walk.records():
        queues.record(record)
        if index is not None:
            index.record(record)
    queues.finish(walk.start, walk.end)
    if index is not None:
        index.finish(walk.end)
    _check_checkpoint(places, findings, walk.last_timestamp)
    _check_epochs(places, findings, walk.end)
    return CheckReport(
        findings=findings,
        records=walk.count,
        log_bytes=walk.end - walk.start,
        queue_entries=queues.entries,
        index_entries=index.count if index is not None else 0,
        config_files=_check_config(places, findings),
        seconds=time.monotonic() - started,
    )


def _check_log_files(places: StorePlaces, findings: Findings) -> None:
    for path in places.odd_names:
        is_missing = path in places.options.log_folders and not os.path.exists(path)
        findings.note(f"{path}: {'is not there' if is_missing else 'is no file of the log'}")
    files = places.log_files
    for number, file in enumerate(files):
        size = files[0].size
        if not file.size and number == len(files) - 1:
            findings.note(f"{file.path}: is empty, made just before the broker stopped")
        elif file.size != size:
            text = f"has {file.size} bytes, the log's first file {size}"
            findings.add("log", file.path, -1, text)
    for file in files[1:]:
        _check_name(file, files[0], findings)


def _check_name(file: LogFile, first: LogFile, findings: Findings) -> None:
    if first.size and (file.start - first.start) % first.size and file.size == first.size:
        text = f"its name is no multiple of {first.size} bytes behind the first file's"
        findings.add("log", file.path, -1, text)


def _check_checkpoint(places: StorePlaces, findings: Findings, last_timestamp: int) -> None:
    path = places.checkpoint_path
    checkpoint = Checkpoint(path)
    if not checkpoint.load():
        if os.path.exists(path):
            text = f"has {os.path.getsize(path)} bytes, at least 24 are wanted"
            findings.add("checkpoint", path, -1, text)
        elif places.is_closed_cleanly and last_timestamp:
            text = "there is none, though the store was closed cleanly"
            findings.add("checkpoint", path, -1, text)
        return
    for number, when in enumerate(checkpoint.timestamps):
        text = f"says that the {_TIMES[number]} is on disk up to {when}"
        if when < 0:
            findings.add("checkpoint", path, number * 8, f"{text}, which is no time")
        elif when > last_timestamp and last_timestamp and not places.is_in_use:
            # Recovery would start too late. (In a log without a record it starts at once.)
            text += f", the log's last record is of {last_timestamp}"
            findings.add("checkpoint", path, number * 8, text)


def _check_epochs(places: StorePlaces, findings: Findings, log_end: int) -> None:
    """RocketMQ's controller mode: where each master's part of the log begins."""
    path = Path(places.root, EPOCH_FILE)
    try:
        table = read_epochs(path)
    except FileNotFoundError:
        return
    except EpochError as error:
        findings.add("epochs", str(path), -1, f"can't be read: {error}")
        return
    # The last one may have no byte yet.
    for epoch, start in table.starts:
        if start > log_end and not places.is_in_use:
            text = f"epoch {epoch} begins at {start}, the log ends at {log_end}"
            findings.add("epochs", str(path), -1, text)


def _check_config(places: StorePlaces, findings: Findings) -> int:
    """Every table of ``config`` is read; how many there are."""
    try:
        names = sorted(os.listdir(places.config_folder))
    except FileNotFoundError:
        return 0
    tables = [name for name in names if name.endswith(".json")]
    # A backup alone stands for its table.
    tables += [n for n in names if n.endswith(".json.bak") and n.removesuffix(".bak") not in tables]
    for name in tables:
        path = os.path.join(places.config_folder, name)
        try:
            if os.path.getsize(path) > CONFIG_FILE_BYTES_MAX:
                findings.add("config", path, -1, f"is larger than {CONFIG_FILE_BYTES_MAX} bytes")
                continue
            table = fastjson.loads(Path(path).read_bytes())
        except FileNotFoundError:
            continue
        except ValueError as error:
            text = f"can't be read: {error}"
            if os.path.exists(path + ".bak"):
                text += "; the broker takes its .bak"
            findings.add("config", path, -1, text)
            continue
        if not isinstance(table, dict):
            findings.add("config", path, -1, f"holds a {type(table).__name__}, not a table")
    return len(tables)
