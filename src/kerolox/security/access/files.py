"""The files of access control: found, read, examined again, put together.

They are ``conf/plain_acl.yml`` below ``rocketmqHome`` (setting ``aclFile``) and all ``*.yml`` and
``*.yaml`` in the folder ``acl`` beside it, at any depth. Those of the folder come first, by name;
an access key that stands in two files is the first one's.

A file is read again when it looks changed (``stat``) and holds something else than before (its
digest). Since it may be half written, it is left until two checks find it the same, at most
:data:`SETTLE_SECONDS_MAX`; so is one that is gone. A file that is wrong leaves its old accounts in
force. All of this blocks; see :class:`kerolox.security.access.watching.AccountsWatch` for an event
loop.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from kerolox.config import open_regular, replace_file
from kerolox.errors import ConfigError
from kerolox.protocol.bodies import DataVersion
from kerolox.security.access.accounts import Account, Accounts, Addresses
from kerolox.security.access.documents import (
    ACCOUNTS_MAX,
    FILE_BYTES_MAX,
    WHITE_LISTS_MAX,
    Document,
    read_document,
)
from kerolox.security.access.edits import Edit, edited
from kerolox.text import printable, quoted

FILES_MAX = 1_000
DEPTH_MAX = 8
"""Of folders in each other."""

SETTLE_SECONDS_MAX = 1.0
"""A file that changes all the time is read after so long, complete or not."""

YOUNG_SECONDS = 1.0
"""A file that changed so recently is read at each check: its next change may leave its times as
they are."""

NAMED_MAX = 10
"""Accounts that a line of the log names; of more it says how many."""

FOLDER = "acl"
_TOOLS_FILE = "tools.yml"
"""Credentials of tools, which has no accounts."""

_log = logging.getLogger(__name__)


class Places(NamedTuple):
    """Where the files are."""

    file: Path
    """The default one, where new accounts go; it need not be there."""
    folder: Path

    @classmethod
    def of(cls, home: str, file: str) -> Self:
        """By the settings ``rocketmqHome`` and ``aclFile``, which may be relative to it;
        ConfigError where they do not say where.
        """
        path = Path(file or "conf/plain_acl.yml").expanduser()
        if not path.is_absolute():
            if not home:
                raise ConfigError(
                    "aclEnable=true needs a file of accounts: set aclFile to its path, or "
                    "rocketmqHome (environment: ROCKETMQ_HOME) to the folder of conf/plain_acl.yml"
                )
            path = Path(home).expanduser() / path
        path = Path(os.path.abspath(path))
        return cls(path, path.parent / FOLDER)


class _Signature(NamedTuple):
    """What ``stat`` says of a file's content."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(slots=True)
class _FileState:
    """What is known of one file."""

    document: Document = field(default_factory=Document)
    """Its last right content."""
    signature: _Signature | None = None
    digest: bytes = b""
    is_young: bool = True
    error: str = ""
    """Why its present content is not in force."""
    is_wrong: bool = False
    """Whether that is the content, and not that it can't be read."""
    waiting: _Signature | None = None
    """How it looked when it was last found changed; None: it is not."""
    waiting_since: float = 0.0
    missing_since: float | None = None


class AclFiles:
    """All files of one broker. Its methods may be called from any thread."""

    def __init__(self, places: Places) -> None:
        """Nothing is read before :meth:`load`."""
        self.places = places
        self.accounts = Accounts()
        """Those in force."""
        self.reloads = 0
        """How often other accounts came in force since the start."""
        self.failures = 0
        """How often a file's new content was wrong."""
        self._files: dict[Path, _FileState] = {}
        self.lock = threading.RLock()
        """Held while anything is read or changed."""
        self._logged: set[str] = set()
        """Warnings that stand in the log already."""
        self._trouble = ""
        """What was wrong with all files together at the last check."""

    # -- reading ------------------------------------------------------------------------------
    def load(self) -> Accounts:
        """Read all files, at a start. None there: no accounts, and a warning. ConfigError says
        where one is wrong, and what is right.
        """
        with self.lock:
            files = {path: _FileState() for path in self._found()}
            for path, file in files.items():
                try:
                    self._read(path, file)
                except OSError as error:
                    if _is_gone(path, error):
                        continue
                    raise ConfigError(_unreadable(path, error)) from error
            self.accounts = self._merged(files)
            self._files = files
        counts = (
            f"{len(self.accounts.by_key)} accounts, {len(self.accounts.white)} global white lists"
        )
        _log.info("access control: %s in %d files", counts, len(files))
        if not self.accounts.by_key and not self.accounts.white:
            _log.warning(
                "access control is on without accounts, so every request is refused; write %s",
                self.places.file,
            )
        return self.accounts

    def poll(self, *, at_once: bool = False) -> bool:
        """Have in force what changed; whether anything did. What is wrong is one error in the log.
        ``at_once``: do not wait until files settle.
        """
        with self.lock:
            return self._load(at_once)

    @property
    def wrong(self) -> dict[Path, str]:
        """Files whose present content is not in force, and why."""
        return {path: file.error for path, file in list(self._files.items()) if file.error}

    def _load(self, at_once: bool) -> bool:
        """See :meth:`poll`; with the lock held."""
        try:
            found = self._found()
        except ConfigError as error:
            return self._fail_all(str(error))
        changed = False
        for path in found:
            changed |= self._load_changed(path, self._files.setdefault(path, _FileState()), at_once)
        changed |= self._forget(self._files.keys() - set(found), at_once)
        if not changed and not self._trouble:
            return False
        try:
            accounts = self._merged(self._files)
        except ConfigError as error:
            return self._fail_all(str(error))
        self._trouble = ""
        return self._take(accounts)

    def _fail_all(self, error: str) -> bool:
        if error != self._trouble:
            self.failures += 1
            self._trouble = error
            _log.error("access control: all accounts stay as they are: %s", error)
        return False

    def _take(self, accounts: Accounts) -> bool:
        if accounts == self.accounts:
            return False
        self.reloads += 1
        _log.info("access control: %s", difference(self.accounts, accounts))
        self.accounts = accounts
        return True

    def _load_changed(self, path: Path, file: _FileState, at_once: bool) -> bool:
        """Whether a file's right content is another one now."""
        try:
            signature = _Signature.of(path.stat())
            if signature == file.signature and not file.is_young and file.missing_since is None:
                file.waiting = None
                return False
            if not at_once and signature != file.signature and not _settled(file, signature):
                return False
            before = file.document
            self._read(path, file)
            file.waiting = file.missing_since = None
        except OSError as error:
            if _is_gone(path, error):
                return self._forget((path,), at_once)
            return self._fail(file, _unreadable(path, error))
        except ConfigError as error:
            return self._fail(file, str(error))
        if file.error and not file.is_wrong:
            file.error = ""
            _log.info("access control: %s is right again", path)
        return file.document != before

    def _fail(self, file: _FileState, error: str) -> bool:
        file.waiting = None
        if error != file.error:
            self.failures += 1
            file.error = error
            _log.error("access control: accounts of the file stay as they are: %s", error)
        return False

    def _forget(self, paths: Iterable[Path], at_once: bool) -> bool:
        """Whether files that are not there any more had accounts. One check does not count: an
        editor may be about to write it anew."""
        changed = False
        for path in list(paths):
            file = self._files[path]
            if file.missing_since is None and not at_once:
                file.missing_since = time.monotonic()
                continue
            del self._files[path]
            if file.signature is not None:
                _log.warning("access control: %s is gone", path)
                changed = True
        return changed

    def _read(self, path: Path, file: _FileState) -> None:
        """Read a file, and take over what it says if that is another content. ConfigError: it is
        wrong; ``file`` keeps its document.
        """
        now = time.time_ns()
        with open_regular(path) as source:
            found = os.fstat(source.fileno())
            data = source.read(FILE_BYTES_MAX + 1)
        digest = hashlib.sha256(data).digest()
        file.signature = _Signature.of(found)
        file.is_young = now - found.st_ctime_ns < YOUNG_SECONDS * 1e9
        if digest == file.digest:
            return
        file.digest, file.is_wrong = digest, True
        document = read_document(data, str(path))
        if document.is_blank and (file.document.accounts or file.document.white):
            # As RocketMQ's load(aclFilePath): hardly anybody means that.
            raise ConfigError(
                f"{path}: it has no data any more; write it anew, or 'accounts: []' to have none"
            )
        self._warn(path, found, document)
        file.document, file.is_wrong = document, False

    def _warn(self, path: Path, found: os.stat_result, document: Document) -> None:
        if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            self._log_once(
                f"{path} has secrets, and every user of this machine can read or write it: "
                f"chmod 600 {path}",
            )
        for warning in document.warnings:
            self._log_once(warning)

    def _log_once(self, text: str) -> None:
        if text in self._logged:
            return
        if len(self._logged) >= FILES_MAX:
            self._logged.clear()
        self._logged.add(text)
        _log.warning("access control: %s", text)

    # -- changing -----------------------------------------------------------------------------
    def documents(self) -> dict[Path, Document]:
        """What each file that was found says, in the order of their precedence; the default file
        last, also when it is not there."""
        with self.lock:
            paths = self._in_order({*self._files, self.places.file})
            return {path: self._files.get(path, _FileState()).document for path in paths}

    def version(self, path: Path) -> DataVersion:
        """The version of one file; one that no request has changed has the time of its last change,
        and 0 changes."""
        with self.lock:
            file = self._files.get(path, _FileState())
            if file.document.version is not None:
                return file.document.version
            modified = file.signature.modified if file.signature else 0
            return DataVersion(counter=0, timestamp=modified // 1_000_000)

    def change(self, path: Path, edit: Edit, now_ms: int) -> None:
        """Change one file, which may be missing, and have its accounts in force.

        The new content is read as a start would read it before it takes the old one's place, at
        once and whole. A symbolic link stays; what it leads to is replaced. Nothing is changed by a
        ConfigError, the file is wrong or would be, or an OSError.
        """
        with self.lock:
            self._load(at_once=True)
            file = self._files.get(path, _FileState())
            if file.error:
                raise ConfigError(f"mend the file first: {file.error}")
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                data = b""
            version = self.version(path).next(now_ms)
            data = edited(data, str(path), version, edit)
            document = read_document(data, str(path))
            changed = dataclasses.replace(file, document=document)
            accounts = self._merged({**self._files, path: changed})
            _write(path.resolve(), data)
            changed.digest, changed.is_young = hashlib.sha256(data).digest(), True
            changed.signature = _Signature.of(path.stat())
            self._files[path] = changed
            self._take(accounts)

    # -- finding ------------------------------------------------------------------------------
    def _found(self) -> list[Path]:
        """All files that are there, in the order of their precedence; ConfigError: too many, or the
        folder can't be read.
        """
        paths: list[Path] = []
        try:
            _walk(self.places.folder, 0, paths)
        except OSError as error:
            raise ConfigError(_unreadable(self.places.folder, error)) from error
        if self.places.file not in paths and _is_there(self.places.file):
            paths.append(self.places.file)
        return paths

    def _merged(self, files: dict[Path, _FileState]) -> Accounts:
        """The accounts of all files; ConfigError: together they are too many."""
        by_key: dict[str, Account] = {}
        owners: dict[str, Path] = {}
        white: list[Addresses] = []
        for path in self._in_order(files):
            document = files[path].document
            white.extend(document.white)
            for account in document.accounts:
                key = account.access_key
                if key in by_key:
                    self._log_once(
                        f"{path}: account '{printable(key, characters_max=64)}' stands in "
                        f"{owners[key]} too, and that one counts",
                    )
                    continue
                by_key[key], owners[key] = account, path
        for count, most, what in (
            (len(by_key), ACCOUNTS_MAX, "accounts"),
            (len(white), WHITE_LISTS_MAX, "global white lists"),
        ):
            if count > most:
                raise ConfigError(f"{self.places.file.parent}: {count} {what}; the most is {most}")
        return Accounts(by_key, tuple(white))

    def _in_order(self, paths: Iterable[Path]) -> list[Path]:
        is_below = self.places.folder in self.places.file.parents
        return sorted(paths, key=lambda each: (each == self.places.file and not is_below, each))


def difference(old: Accounts, new: Accounts) -> str:
    """What changed, for a line of the log: access keys, no secrets."""
    both = old.by_key.keys() & new.by_key.keys()
    parts = [
        _named(what, keys)
        for what, keys in (
            ("added", new.by_key.keys() - old.by_key.keys()),
            ("changed", {key for key in both if old.by_key[key] != new.by_key[key]}),
            ("removed", old.by_key.keys() - new.by_key.keys()),
        )
        if keys
    ]
    if old.white != new.white:
        parts.append("global white list changed")
    parts.append(f"in force now: {len(new.by_key)} accounts, {len(new.white)} global white lists")
    return "; ".join(parts)


def _named(what: str, keys: Iterable[str]) -> str:
    names = [quoted(key) for key in sorted(keys)]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{what} {', '.join(names[:NAMED_MAX])}{more}"


def _write(path: Path, data: bytes) -> None:
    """Replace a file, or make one that its owner alone can read. After an OSError what was there is
    as before.
    """
    is_new = not path.exists()
    if is_new:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        # A backup would keep secrets that are no more.
        replace_file(path, lambda file: file.write(data), keeps_backup=False)
    except OSError:
        if is_new:
            path.unlink(missing_ok=True)
        raise


def _settled(file: _FileState, signature: _Signature) -> bool:
    """Whether a changed file can be read."""
    now = time.monotonic()
    if file.waiting is None:
        file.waiting_since = now
    elif file.waiting == signature or now - file.waiting_since >= SETTLE_SECONDS_MAX:
        return True
    file.waiting = signature
    return False


def _walk(folder: Path, depth: int, paths: list[Path]) -> None:
    """Add the files of a folder, by name. Names that begin with a dot are left out: there
    Kubernetes keeps the versions of a mounted folder."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda each: each.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        if _is_folder(entry):
            if depth < DEPTH_MAX:
                _walk(path, depth + 1, paths)
        elif entry.name.endswith((".yml", ".yaml")) and entry.name != _TOOLS_FILE:
            if len(paths) >= FILES_MAX:
                raise ConfigError(f"{folder}: more than {FILES_MAX} files of accounts; join some")
            paths.append(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads in a circle: reading it says so.
        return False


def _is_there(path: Path) -> bool:
    """Whether there is a file, or something that keeps us from knowing, which reading it says."""
    try:
        path.stat()
    except OSError as error:
        return not _is_gone(path, error)
    return True


def _is_gone(path: Path, error: OSError) -> bool:
    """Whether there is nothing at a path, not even a link that leads nowhere."""
    return isinstance(error, (FileNotFoundError, NotADirectoryError)) and not path.is_symlink()


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: can't be read: it is a link that leads nowhere; mend or delete it"
    advice = "; give this user the permission" if isinstance(error, PermissionError) else ""
    return f"{path}: can't be read: {error.strerror or error}{advice}"
