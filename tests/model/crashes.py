"""What a crash makes of a store's files: a kill leaves what was written, a loss of power what was
flushed and any part of the rest."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.model.model import LOG_FILE
from tests.support.stores.read_model import QUEUE_FILE

__all__ = ["Tree", "Wreck", "kill", "lose_power", "read_tree"]
__all__ += ["without_dropped_index", "write_tree"]

Tree = dict[str, bytes]
"""Content of files by their paths below the root."""
BOOT_FILES = ("abort", "boot")
"""Where the kernels note the boot of the machine."""


@dataclass
class Wreck:
    """Files as a crash left them, and the log's bytes from ``start`` on."""

    files: Tree
    start: int
    log: bytes


def read_tree(root: Path) -> Tree:
    """All files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def write_tree(root: Path, tree: Tree) -> None:
    """Make them below another folder."""
    for name, data in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def kill(now: Tree, cut: int, earlier: Tree | None) -> Wreck:
    """The process dies in an append, of which the log has what is before ``cut``.

    The index follows the log: with ``earlier`` it has not come further than it had there.
    """
    files = dict(now)
    for name in now:
        if earlier is not None and name.startswith("index/"):
            if name in earlier:
                files[name] = earlier[name]
            else:
                del files[name]
    return _with_log(files, now, lambda log, start: log[: cut - start])


def lose_power(now: Tree, flushed: Tree, flushed_end: int, number: int) -> Wreck:
    """The machine dies. ``flushed`` are the files when all was last brought to the disk;
    ``number`` says what of the rest is left."""
    source = random.Random(number)
    files = {name: data for name, data in now.items() if name not in BOOT_FILES}
    files["abort"] = b""
    if "checkpoint" in flushed:
        # Later times would say more than ``flushed`` holds; recovery may have set some back.
        times = zip(
            *(struct.unpack_from(">qqq", each["checkpoint"]) for each in (now, flushed)),
            strict=True,
        )
        data = struct.pack(">qqq", *(min(pair) for pair in times))
        files["checkpoint"] = data + flushed["checkpoint"][len(data) :]
    names = [name for name in now if name.startswith(("consumequeue/", "index/"))]
    for at, name in enumerate(sorted(names)):
        # Names of index files are times.
        chance = random.Random(f"{number} {at if name.startswith('index') else name}")
        if chance.random() < 0.5:
            files[name] = flushed.get(name, bytes(len(now[name])))
    files |= _deleted_and_back(now, flushed, number)

    def damaged(log: bytes, start: int) -> bytes:
        first = max(0, flushed_end - start)
        kind = source.choice(("all", "none", "cut", "hole"))
        if kind == "all":
            return log
        if kind == "none":
            return log[:first]
        at = source.randint(first, len(log))
        if kind == "cut":
            return log[:at]
        # Pages go to the disk in any order: something behind them is there.
        hole = min(source.choice((512, 4_096, LOG_FILE)), len(log) - first)
        return log[:first] + bytes(hole) + log[first + hole :]

    return _with_log(files, now, damaged)


def without_dropped_index(files: Tree, recovered: Tree) -> Tree:
    """Without the index files that recovery dropped: another one may have the same name since."""

    def is_kept(name: str) -> bool:
        before, after = files[name], recovered.get(name, b"")
        # The times and offsets at which both begin.
        return before[:8] == after[:8] and before[16:24] == after[16:24]

    return {name: each for name, each in files.items() if "index/" not in name or is_kept(name)}


def _deleted_and_back(now: Tree, flushed: Tree, number: int) -> Tree:
    """Files of queues that were deleted without that having reached the disk.

    (The folder of the index is synchronized when recovery drops a file.)
    """
    back: Tree = {}
    for folder in {name.rpartition("/")[0] for name in flushed if name.startswith("consume")}:
        gone = [name for name in flushed if _is_in(name, folder) and name not in now]
        kept = [name for name in now if _is_in(name, folder)]
        starts = sorted(int(name.rpartition("/")[2]) for name in gone + kept)
        is_run = all(two - one == QUEUE_FILE for one, two in itertools.pairwise(starts))
        if is_run and random.Random(f"{number} {folder}").random() < 0.5:
            back |= {name: flushed[name] for name in gone}
    return back


def _is_in(name: str, folder: str) -> bool:
    return name.rpartition("/")[0] == folder


def _with_log(files: Tree, now: Tree, change: Callable[[bytes, int], bytes]) -> Wreck:
    names = sorted(name for name in now if name.startswith("commitlog/"))
    start = int(names[0].rpartition("/")[2]) if names else 0
    whole = b"".join(now[name] for name in names)
    log = change(whole, start).ljust(len(whole), b"\0")
    for number, name in enumerate(names):
        files[name] = log[number * LOG_FILE : (number + 1) * LOG_FILE]
    return Wreck(files, start, log)
