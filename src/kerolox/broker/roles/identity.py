"""Which broker of its set this one is: ``brokerIdentity`` (``BrokerMetadata``).

A controller gives each broker of a name an id, once. The broker writes down what it is about to ask
for, asks, and then writes down what it got. So a kill at any moment costs no id, and no two brokers
get the same one: with the check code it asks again for what it may have got.

The files are those of RocketMQ 5.3.3: ``cluster#name#id``, and beside it ``-temp`` with the check
code behind that.

A third file, ``leftControllers``, is Kerolox's own. It is there when the broker has run without a
controller since it got its id. What controllers know of its log is from before that.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from kerolox.config import replace_file, sync_folder
from kerolox.errors import StoreError
from kerolox.protocol.controller import FIRST_BROKER_ID
from kerolox.protocol.java_numbers import java_long
from kerolox.store.layout import LEFT_FILE
from kerolox.text import printable

_BYTES_MAX = 4_096
_SEPARATOR = "#"
_LEFT = b"This broker has run without a controller since a controller gave it its id.\n"


class BrokerIdentity(NamedTuple):
    """A broker of a set."""

    cluster_name: str
    broker_name: str
    broker_id: int
    check_code: str = ""
    """Of one that is asked for (``registerCheckCode``); empty: the controller gave it."""


class IdentityFile:
    """``brokerIdentity`` of one store, and what was asked for before."""

    def __init__(self, path: Path, cluster_name: str, broker_name: str) -> None:
        """Nothing is read yet. ``path``: storePathBrokerIdentity. ``cluster_name`` and
        ``broker_name``: of the settings.
        """
        self.path = path
        self.asked_path = path.with_name(path.name + "-temp")
        self.left_path = path.with_name(LEFT_FILE)
        self._names = cluster_name, broker_name

    def load(self) -> BrokerIdentity | None:
        """What the controller gave, or else what was asked for; None: neither. StoreError: a file
        can't be read, or is another broker's.
        """
        return self._load(self.path, 3) or self._load(self.asked_path, 4)

    def ask(self, broker_id: int, check_code: str) -> BrokerIdentity:
        """Write down what is to be asked for; OSError: it can't be written."""
        identity = BrokerIdentity(*self._names, broker_id, check_code)
        self._write(self.asked_path, identity, check_code)
        return identity

    def got(self, identity: BrokerIdentity) -> BrokerIdentity:
        """Write down that the controller gave it; OSError: it can't be written."""
        self._write(self.path, identity)
        self.forget_asked()
        return identity._replace(check_code="")

    def forget_asked(self) -> None:
        """Another broker has that id."""
        with contextlib.suppress(FileNotFoundError):
            self.asked_path.unlink()
            sync_folder(self.path.parent)

    @property
    def has_left(self) -> bool:
        """The broker ran without a controller since it got its id."""
        return self.left_path.exists()

    def leave(self) -> None:
        """Write down that it runs without a controller; OSError: it can't be written."""
        if self.path.exists() and not self.has_left:
            replace_file(self.left_path, lambda file: file.write(_LEFT), keeps_backup=False)

    def come_back(self) -> None:
        """What controllers know of its log is true again; OSError: the file is there still."""
        with contextlib.suppress(FileNotFoundError):
            self.left_path.unlink()
            sync_folder(self.path.parent)

    def _write(self, path: Path, identity: BrokerIdentity, *more: str) -> None:
        text = _SEPARATOR.join((*self._names, str(identity.broker_id), *more))
        replace_file(path, lambda file: file.write(text.encode()), keeps_backup=False)

    def _load(self, path: Path, fields: int) -> BrokerIdentity | None:
        try:
            with path.open("rb") as file:
                data = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _fault(path, error.strerror or str(error)) from error
        text = data.decode(errors="replace").strip()
        parts = text.split(_SEPARATOR)
        broker_id = java_long(parts[2]) if len(parts) == fields else None
        if broker_id is None or broker_id < FIRST_BROKER_ID:
            raise _fault(path, f"'{printable(text[:128])}' is no broker's identity")
        if tuple(parts[:2]) != self._names:
            found, own = (
                f"{printable(name[:64])} of {printable(cluster[:64])}"
                for cluster, name in (parts[:2], self._names)
            )
            raise _fault(path, f"it is that of {found}, not of {own}")
        return BrokerIdentity(*self._names, broker_id, *parts[3:])


def _fault(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"{path}: {reason}; it says which broker of its set this one is: put brokerName and "
        "brokerClusterName of the settings right, or the file; without it this broker gets a new id"
    )
