"""The console's users: a file with a role and a hash of the password for each.

The file is JSON, for its owner alone to read; ``kerolox console user`` writes it. It is read again
when it has changed, so that who is taken out is out at once. A file that turns wrong leaves nobody
in who was not in before: the last good users stay in force and the log says why.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
from pathlib import Path

import msgspec

from kerolox.config import read_regular, replace_file
from kerolox.console.security.roles import ROLE_NAMES, Role
from kerolox.errors import ConfigError
from kerolox.text import printable

__all__ = ["User", "Users", "check_password", "hash_password", "read_users", "write_users"]

FILE_BYTES_MAX = 1 << 20
USERS_MAX = 1_000
PASSWORD_CHARACTERS_MIN, PASSWORD_CHARACTERS_MAX = 10, 256
SCRYPT_LOG_N, SCRYPT_R, SCRYPT_P = 15, 8, 3
"""32 MiB and some 0.2 s for each password: the second of OWASP's equal choices for scrypt."""

SCRYPT_LOG_N_MAX, SCRYPT_R_MAX, SCRYPT_P_MAX = 18, 16, 8
SCRYPTS_AT_ONCE_MAX = 2
"""Others wait: who guesses must not take all memory."""

_KEY_BYTES, _SALT_BYTES = 32, 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

_log = logging.getLogger(__name__)


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may log in."""

    role: str
    """``viewer``, ``operator`` or ``admin``."""
    password: str
    """``scrypt$log2(n)$r$p$salt$key``, salt and key in base64."""

    def __repr__(self) -> str:
        return f"User(role={self.role!r})"

    @property
    def rank(self) -> Role:
        """The role, to be compared."""
        return Role[self.role.upper()]


class _UsersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[str, User]


def hash_password(password: str) -> str:
    """What the file keeps of a password.

    Raises:
        ConfigError: it is too short or too long.
    """
    if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise ConfigError(
            f"a password has {PASSWORD_CHARACTERS_MIN} to {PASSWORD_CHARACTERS_MAX} characters; "
            f"this one has {len(password)}"
        )
    salt = os.urandom(_SALT_BYTES)
    return _kept(salt, _derived(password, salt, SCRYPT_LOG_N, SCRYPT_R, SCRYPT_P))


def check_password(password: str, kept: str) -> bool:
    """Whether it is the password of that hash; takes its time either way."""
    log_n, r, p, salt, key = _parts(kept)
    return hmac.compare_digest(_derived(password, salt, log_n, r, p), key)


def check_name(name: str) -> None:
    """Raises ConfigError where somebody can't be called so."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{printable(name)!r} is no name of a user: 1 to 64 of a-z A-Z 0-9 . _ @ -, the first "
            "a letter or digit"
        )


def read_users(path: Path) -> dict[str, User]:
    """The users of a file by name.

    Raises:
        ConfigError: it is not there, can't be read, or is no such file.
    """
    try:
        users = msgspec.json.decode(read_regular(path, FILE_BYTES_MAX), type=_UsersFile).users
        if len(users) > USERS_MAX:
            raise ValueError(f"{len(users)} users; at most {USERS_MAX} are allowed")
        for name, user in users.items():
            check_name(name)
            if user.role not in ROLE_NAMES:
                raise ValueError(f"user {name}: the role is one of {', '.join(ROLE_NAMES)}")
            _parts(user.password)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file; 'kerolox console user add NAME --role admin' makes it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{path} is no file of users: {error}") from None
    return users


def write_users(path: Path, users: dict[str, User]) -> None:
    """Keep them, for this account of the system alone to read.

    Raises:
        OSError: the file can't be written; it is as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=True)
    data = msgspec.json.format(
        msgspec.json.encode(_UsersFile(dict(sorted(users.items())))), indent=2
    )
    replace_file(path, lambda file: file.write(data + b"\n"), keeps_backup=False)


class Users:
    """The users in force."""

    def __init__(self, path: Path, *, may_be_empty: bool = False) -> None:
        """Reads the file.

        Args:
            path: the file.
            may_be_empty: a provider signs others in, so it may have no users, or be missing.

        Raises:
            ConfigError: it can't be used, or has no users.
        """
        self._path = path
        self._stamp = self._file_stamp()
        self._users = {} if may_be_empty and self._stamp is None else read_users(path)
        self._hashing = asyncio.Semaphore(SCRYPTS_AT_ONCE_MAX)
        # Of nobody's: checked where a name is unknown, which then takes as long.
        self._dummy = _kept(os.urandom(_SALT_BYTES), os.urandom(_KEY_BYTES))
        if not self._users and not may_be_empty:
            raise ConfigError(f"{path} has no users; 'kerolox console user add NAME' adds one")

    def __len__(self) -> int:
        self._refresh()
        return len(self._users)

    def find(self, name: str) -> User | None:
        """Who has that name now."""
        self._refresh()
        return self._users.get(name)

    async def authenticate(self, name: str, password: str) -> User | None:
        """Who has that name and password; None: nobody."""
        user = self.find(name)
        kept = user.password if user is not None else self._dummy
        if len(password) > PASSWORD_CHARACTERS_MAX:
            return None
        async with self._hashing:
            is_right = await asyncio.to_thread(check_password, password, kept)
        return user if is_right else None

    def _refresh(self) -> None:
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._users = read_users(self._path)
            _log.info("%s was read again: %d users", self._path, len(self._users))
        except ConfigError as error:
            _log.error("%s; the users that were read before stay in force", error)

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _derived(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    # OpenSSL wants the room named: 128 * n * r bytes, and a little more.
    room = 128 * r * ((1 << log_n) + p + 2)
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(
        data, salt=salt, n=1 << log_n, r=r, p=p, maxmem=room + (1 << 20), dklen=_KEY_BYTES
    )


def _parts(kept: str) -> tuple[int, int, int, bytes, bytes]:
    """Raises ValueError where it is no hash, or one that takes too much to check."""
    kind, *numbers, salt, key = kept.split("$") if kept.count("$") == 5 else ("", "", "", "")
    if kind != "scrypt":
        raise ValueError("a password is kept as scrypt$15$8$3$SALT$KEY")
    log_n, r, p = (int(each) if each.isascii() and each.isdigit() else 0 for each in numbers)
    if not (1 <= log_n <= SCRYPT_LOG_N_MAX and 1 <= r <= SCRYPT_R_MAX and 1 <= p <= SCRYPT_P_MAX):
        raise ValueError("a password's cost is out of range")
    try:
        salt_bytes, key_bytes = (base64.b64decode(each, validate=True) for each in (salt, key))
    except binascii.Error:
        raise ValueError("a password's salt or key is no base64") from None
    if len(salt_bytes) < _SALT_BYTES or len(key_bytes) != _KEY_BYTES:
        raise ValueError("a password's salt or key has another length")
    return log_n, r, p, salt_bytes, key_bytes


def _kept(salt: bytes, key: bytes) -> str:
    texts = (base64.b64encode(each).decode() for each in (salt, key))
    return "$".join(("scrypt", *map(str, (SCRYPT_LOG_N, SCRYPT_R, SCRYPT_P)), *texts))
