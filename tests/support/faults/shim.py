"""Faults of the disk, and kills at named points, in a process that a test starts.

A shim (``shim.c``, built by the first test that needs it) is preloaded into the process and
judges its file calls by rules::

    KEROLOX_FAULTS="call:path-part:nth:action[,call:path-part:nth:action...]"

- call: ``open`` ``write`` ``pwrite`` ``fsync`` ``fdatasync`` ``msync`` ``madvise`` ``mmap``
  ``fallocate`` ``ftruncate`` ``sync_file_range`` ``rename`` ``unlink`` ``rmdir`` ``mkdir``; the
  ``64`` and ``at`` forms count as these; ``create`` is an ``open`` that may make the file;
- path-part: a text that the path contains (may be empty; a rename goes by its new name);
- nth: ``3`` the third call that fits, ``3+`` that and all later ones, ``*`` every one;
- action: the name of an errno (``EIO``, ``ENOSPC``, ``EROFS``, ...), ``kill-before`` or
  ``kill-after`` the call (SIGKILL), ``kill-torn`` (half of a write reaches the file, then SIGKILL),
  or ``note`` (nothing; with ``*`` it lists the calls of a run).

``KEROLOX_FAULTS=@PATH`` reads the rules from a file, again whenever it changes, counting anew:
:class:`Faults` does so, hence a test can switch faults on and off while the process runs. Each
rule that fires is written to the file in ``KEROLOX_FAULTS_NOTES``.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.built import built

__all__ = ["Faults", "faults_library"]


def faults_library() -> Path:
    """The shim, built when it is missing or older than its source."""
    return built(Path(__file__).with_suffix(".c"))


class Faults:
    """Rules for one process, to be changed while it runs.

    Args:
        folder: where the rules and the notes are kept; of this test alone.
    """

    def __init__(self, folder: Path) -> None:
        self._rules = folder / "faults.rules"
        self._notes = folder / "faults.notes"
        self.clear()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the process."""
        return {
            "LD_PRELOAD": str(faults_library()),
            "KEROLOX_FAULTS": f"@{self._rules}",
            "KEROLOX_FAULTS_NOTES": str(self._notes),
        }

    def set(self, *rules: str) -> None:
        """These rules count from now on, from their first call on; none: no faults."""
        fresh = self._rules.with_suffix(".tmp")
        fresh.write_text("\n".join(rules))
        fresh.replace(self._rules)

    def clear(self) -> None:
        """No more faults."""
        self.set()

    def fired(self) -> list[tuple[str, str]]:
        """(call, path) of what happened, in order."""
        if not self._notes.exists():
            return []
        lines = self._notes.read_text().splitlines()
        return [(line.split(" ", 1)[0], line.split(" ", 1)[1].rsplit(" ", 1)[0]) for line in lines]
