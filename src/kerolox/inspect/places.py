"""Where the parts of a store lie, found from the files themselves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kerolox.config import read_properties
from kerolox.errors import ConfigError, StoreError
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.protocol import fastjson
from kerolox.store.files.checkpoint import StoreLock
from kerolox.store.files.deletions import Deletions
from kerolox.store.files.mapped_file import OFFSET_NAME
from kerolox.store.index import INDEX_NAME
from kerolox.store.log.folders import PATH_SPLITTER

if TYPE_CHECKING:
    from typing import Self

_SYSTEM_PREFIXES = (b"RMQ_SYS_", b"rmq_sys_", b"SCHEDULE_TOPIC_", b"TRANS_CHECK_", b"%LMQ%")
_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, process."""


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """What the files do not report. The defaults are RocketMQ's."""

    log_folders: tuple[str, ...] = ()
    """Folders of the commit log; none: ``commitlog`` below the root."""
    delays_ms: tuple[int, ...] = delay_levels_ms(DEFAULT_DELAY_LEVELS)
    """Delays of ``messageDelayLevel``; level 1 comes first."""
    has_index: bool = True
    """``messageIndexEnable``."""
    multi_dispatch: bool | None = None
    """``enableMultiDispatch``; None: not known, further queues count where they have files."""
    lmq: bool | None = None
    """``enableLmq``; None: not known, taken for true."""
    queue_file_bytes: int = 0
    """``mappedFileSizeConsumeQueue``; 0: found from the files."""
    index_slots: int = 0
    """``maxHashSlotNum``; 0: found from the files."""
    index_entries: int = 0
    """``maxIndexNum``; 0: found from the files."""

    @classmethod
    def of_settings(cls, path: Path) -> Self:
        """What a ``broker.conf`` says of the store; its other keys are not examined. ConfigError:
        the file can't be read, or a value is none.
        """
        values = read_properties(path)
        folders = (
            values.get("storePathCommitLog", ""),
            values.get("readOnlyCommitLogStorePaths", ""),
        )
        listed = [each.strip() for text in folders for each in text.split(PATH_SPLITTER)]
        try:
            return cls(
                log_folders=tuple(dict.fromkeys(each for each in listed if each)),
                delays_ms=delay_levels_ms(values.get("messageDelayLevel", DEFAULT_DELAY_LEVELS)),
                has_index=values.get("messageIndexEnable", "true").strip() != "false",
                multi_dispatch=values.get("enableMultiDispatch", "false").strip() == "true",
                lmq=values.get("enableLmq", "false").strip() == "true",
                queue_file_bytes=int(values.get("mappedFileSizeConsumeQueue", "0")),
                index_slots=int(values.get("maxHashSlotNum", "0")),
                index_entries=int(values.get("maxIndexNum", "0")),
            )
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None


class LogFile(NamedTuple):
    """A file of the commit log."""

    start: int
    """Physical offset of its first byte, as its name says."""
    size: int
    path: str

    @property
    def end(self) -> int:
        """Physical offset after its last byte."""
        return self.start + self.size


class QueueFolder(NamedTuple):
    """A folder of one consume queue."""

    topic: bytes
    queue_id: int
    path: str


@dataclass(frozen=True, kw_only=True)
class StorePlaces:
    """One store."""

    root: str
    options: StoreOptions
    log_folders: list[str]
    log_files: list[LogFile]
    """In order of their offsets."""
    odd_names: list[str] = field(default_factory=list)
    """Paths in the log's folders that are no files of the log."""
    is_in_use: bool
    """A broker holds the store's lock."""
    is_closed_cleanly: bool
    """There is no ``abort`` file."""

    @classmethod
    def find(cls, root: str, options: StoreOptions) -> Self:
        """Look into a folder; StoreError: it is missing or no store."""
        if not os.path.isdir(root):
            what = "no folder" if os.path.exists(root) else "not there"
            raise StoreError(f"{root} is {what}; give the folder that storePathRootDir names")
        root = os.path.abspath(root)
        default = os.path.join(root, "commitlog")
        folders = [os.path.abspath(os.path.expanduser(each)) for each in options.log_folders]
        folders = folders or [default]
        present = [folder for folder in folders if os.path.isdir(folder)]
        if not present:
            raise StoreError(_no_store(root, folders, default))
        files: list[LogFile] = []
        odd: list[str] = []
        for folder in present:
            found, others = offset_files(folder)
            files += found
            odd += others
        odd += [folder for folder in folders if folder not in present]
        return cls(
            root=root,
            options=options,
            log_folders=present,
            log_files=sorted(files),
            odd_names=odd,
            is_in_use=is_locked(os.path.join(root, "lock")),
            is_closed_cleanly=not os.path.exists(os.path.join(root, "abort")),
        )

    @property
    def queue_root(self) -> str:
        """The folder of the consume queues."""
        return os.path.join(self.root, "consumequeue")

    @property
    def extension_root(self) -> str:
        """The folder of the consume queues' extension files."""
        return os.path.join(self.root, "consumequeue_ext")

    @property
    def index_folder(self) -> str:
        """The folder of the index."""
        return os.path.join(self.root, "index")

    @property
    def config_folder(self) -> str:
        """The folder of the tables."""
        return os.path.join(self.root, "config")

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint."""
        return os.path.join(self.root, "checkpoint")

    def queue_path(self, topic: bytes, queue_id: int) -> str:
        """The folder of a queue, there or not."""
        return os.path.join(self.queue_root, os.fsdecode(topic), str(queue_id))

    def queue_folders(self) -> Iterator[QueueFolder]:
        """Every queue that has a folder, by topic and id."""
        for topic in _folders_in(self.queue_root):
            numbers = [each for each in _folders_in(topic) if os.path.basename(each).isdecimal()]
            for folder in sorted(numbers, key=lambda each: int(os.path.basename(each))):
                name = os.fsencode(os.path.basename(topic))
                yield QueueFolder(name, int(os.path.basename(folder)), folder)

    def index_paths(self) -> list[str]:
        """The files of the index, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            names = sorted(name for name in os.listdir(self.index_folder) if INDEX_NAME.match(name))
            return [os.path.join(self.index_folder, name) for name in names]
        return []

    def deleted_topics(self) -> dict[bytes, int]:
        """Topics of which the store noted that they were deleted → the end of the log then."""
        deletions = Deletions(os.path.join(self.root, "deletions"))
        deletions.load()
        return {os.fsencode(topic): offset for topic, offset in deletions.offsets.items()}

    def known_topics(self) -> frozenset[bytes] | None:
        """The topics of ``topics.json``; None when it is not there or can't be read."""
        path = os.path.join(self.config_folder, "topics.json")
        for each in (path, path + ".bak"):
            try:
                table = fastjson.members_of(fastjson.loads(Path(each).read_bytes()))
                topics = fastjson.members_of(table["topicConfigTable"])
                return frozenset(str(topic).encode() for topic in topics)
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None


def file_at(files: Iterable[LogFile], offset: int) -> LogFile | None:
    """The file that holds a physical offset."""
    return next((file for file in files if file.start <= offset < file.end), None)


def is_deleted_topic(topic: bytes, known: frozenset[bytes] | None) -> bool:
    """Records of a topic are left over from before it was deleted. ``known``: what
    :meth:`StorePlaces.known_topics` says. RocketMQ's own topics are not all there.
    """
    return known is not None and topic not in known and not topic.startswith(_SYSTEM_PREFIXES)


def offset_files(folder: str) -> tuple[list[LogFile], list[str]]:
    """(files named by an offset, in order; paths of what else is there). FileNotFoundError: there
    is no such folder.
    """
    files: list[LogFile] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not OFFSET_NAME.match(entry.name) or not entry.is_file():
                others.append(entry.path)
                continue
            # Deleted meanwhile: the broker beside us cleans up.
            with contextlib.suppress(FileNotFoundError):
                files.append(LogFile(int(entry.name), entry.stat().st_size, entry.path))
    return sorted(files), others


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def is_locked(path: str) -> bool:
    """Somebody holds the lock; asked without taking it."""
    try:
        if StoreLock.is_held_here(path):
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def _no_store(root: str, folders: list[str], default: str) -> str:
    if folders != [default]:
        return f"none of the commit log's folders is there: {', '.join(folders)}"
    names = os.listdir(root)
    if os.path.basename(root) == "commitlog" or any(OFFSET_NAME.match(name) for name in names):
        return f"{root} holds a commit log; give the folder above it, which storePathRootDir names"
    return (
        f"{root} is no store: it has no folder commitlog; give the folder that storePathRootDir "
        "names, and --log-folder or -c broker.conf when the commit log lies elsewhere"
    )
