"""The epochs of one broker's log while it runs, in memory and on the disk.

An epoch is on the disk before the first record of it is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.errors import StoreError
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable


class LogEpochs:
    """Which master wrote which part of the log.

    Attributes:
        table: all that are known.
    """

    def __init__(self, file: EpochFile) -> None:
        """The file is read. StoreError: it can't be, or is the one before the last, which may lack
        an epoch: a log must not be compared with others by that.
        """
        self._file = file
        self.table = file.load()
        if file.is_former:
            raise StoreError(
                f"{file.path} is damaged, and the one before it may lack an epoch, by which this "
                "log can't be compared with others: put a copy in its place, or move the store's "
                "folder away and let this broker begin as an empty slave"
            )

    def begin(self, epoch: int, start: int) -> None:
        """A master writes from there on. OSError: it can't be written; EpochError: it is no later
        one. Nothing changes then.
        """
        table = EpochTable(self.table.starts)
        table.begin(epoch, start)
        self._replace(table)

    def become(self, starts: Iterable[EpochStart]) -> None:
        """The log is equal to another one, and so are its epochs. OSError: they can't be written,
        and nothing changes.
        """
        table = EpochTable(starts)
        if table.starts != self.table.starts:
            self._replace(table)

    def forget_before(self, begin: int) -> None:
        """The log begins there by now; with the next change it is so on the disk."""
        self.table.forget_before(begin)

    def _replace(self, table: EpochTable) -> None:
        self._file.save(table)
        self.table = table
