"""Words that Kerolox's text refuses, since the field or the glossary has another one.

    python tools/words.py

It prints the file, the line, the word and what to say instead, and exits 1 when there is one.
`CONTRIBUTING.md` has the old and the new words.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["NAMED_ONCE", "REFUSED", "RefusedWord", "complaints"]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "kernel", "tools", "benchmarks", "docs")
SUFFIXES = (".py", ".pyi", ".rs", ".md")
GENERATED = ("target", "_generated.py")
"""Parts of a path: what is built, and what is made from text that is checked itself."""

PYTHON = "src/*.py src/*.pyi"
TEXT = f"{PYTHON} kernel/*.rs docs/*"
WORDS_OF_OLD = "!tools/words.py"
"""This file names what it refuses."""

BLANK = r"(?: |[ ]*\n[ \t]*(?:\#|//[/!]?)?[ \t]*)"
"""A blank of a phrase: the phrase may go on in the next line of a comment."""


@dataclass(frozen=True)
class RefusedWord:
    """One row of the table."""

    pattern: str
    """A regular expression; its blanks also match a line break."""
    files: str
    """Globs of paths, with blanks in between: ``*`` goes over slashes, ``!`` takes out again."""
    instead: str
    """What to say."""

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """What is searched for."""
        return re.compile(self.pattern.replace(" ", BLANK))

    def concerns(self, path: str) -> bool:
        """Whether a path, relative to the root, is one of its files."""
        globs = self.files.split()
        taken = [glob for glob in globs if not glob.startswith("!")]
        left = [glob[1:] for glob in globs if glob.startswith("!")]
        return any(fnmatch.fnmatchcase(path, glob) for glob in taken) and not any(
            fnmatch.fnmatchcase(path, glob) for glob in left
        )


REFUSED = (
    RefusedWord(r"\bgeneral way\b", f"{TEXT} ARCHITECTURE.md", "slow path"),
    RefusedWord(
        r"\b[Pp]lain(?: |_)?(?:sends?|pulls?|answers?)\b|\bPlain(?:Sends|Pulls)\b",
        f"{PYTHON} kernel/*.rs docs/design/*",
        "fast-path send, fast pull",
    ),
    RefusedWord(
        r"\b_?(?:greet|say_farewell|farewell|heed|unheard)\w*\b|\b_?GREET\w*|\bFAREWELL\w*",
        f"{PYTHON} kernel/*.rs tools/*.py {WORDS_OF_OLD}",
        "send heartbeat, unregister, follow, without listener",
    ),
    RefusedWord(
        r"\b[Ff]igures?\b",
        "src/kerolox/metrics/* src/kerolox/namesrv/* src/kerolox/broker/*.py"
        " src/kerolox/remoting/* src/kerolox/admin/*",
        "metrics",
    ),
    RefusedWord(
        r"\bdef _?(?:look(?!_up)|looks(?!_like)|tell|told|heard)(?:_\w+)?\(",
        f"{PYTHON} tools/*.py benchmarks/*.py {WORDS_OF_OLD}",
        "poll, check, examine, probe; notify, report, log",
    ),
    RefusedWord(
        r"\b_?(?!ROOM_END)(?:LOOK|LOOKS|TOLD|TELL|TURN|ROOM)(?:_[A-Z]+)+\b"
        r"|\b[A-Z_]+_(?:PER_TURN|LOOKS_MAX|TOLD_MAX)\b",
        f"{PYTHON} tools/*.py {WORDS_OF_OLD}",
        "POLL_, CHECK_, LOG_, SLICE_, CAPACITY_",
    ),
    RefusedWord(
        r"\b_?(?:has_room|wait_for_room|no_room|make_room)\b",
        f"{PYTHON} kernel/*.rs",
        "has_capacity, wait_for_capacity, no_capacity, ensure_space",
    ),
    RefusedWord(
        r"\b[Tt]wins?\b",
        f"{PYTHON} kernel/*.rs kernel/*.md tools/*.py docs/design/* ARCHITECTURE.md {WORDS_OF_OLD}",
        "Python implementation, blocking client, counterpart",
    ),
    RefusedWord(r"\b(?:look|looks|looked|looking) at\b", TEXT, "examine, check, read"),
    RefusedWord(r"\bturns? of the (?:event )?loop\b", TEXT, "iteration of the event loop"),
    RefusedWord(
        r"\b[Jj]udge[sd]?\b|\b[Jj]udgments?\b|\b[Ss]urvey\b",
        "src/kerolox/doctor/*",
        "check, probe, snapshot",
    ),
    RefusedWord(
        r"\b[Pp]arcels?\b|\b[Ll]anes?\b",
        "src/kerolox/spark/* src/kerolox/codec/* src/kerolox/client/* kernel/py/*.rs",
        "row batch, topic sender, broker sender",
    ),
    RefusedWord(
        r"\bclass _?(?:Told|Looks?|Own|Parts|Calls|Done|Begun|Unheard|Unhurried|Gathering|Detour"
        r"|Line|Lanes?|Parcel|Some|Survey|StreamStanding|CutWish|Wish|File|Target|Turns?)\b",
        f"{PYTHON} !src/kerolox/spark/jobs/archive/*",
        "a class name that says what the class holds",
    ),
)
"""Each word with the files that it is refused in: elsewhere it may be plain English."""

NAMED_ONCE = ("Cluster", "Outcome", "Position")
"""Class names that meant several things: at most one file of ``src`` has each."""

CLASS = re.compile(r"^[ \t]*class _?(\w+)", re.MULTILINE)


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Path, relative to the root, and text of each file that is checked."""
    paths = [*root.glob("*.md")]
    for folder in FOLDERS:
        paths += (root / folder).rglob("*")
    for path in sorted(paths):
        name = path.relative_to(root)
        if path.suffix in SUFFIXES and not set(GENERATED) & set(name.parts) and path.is_file():
            yield name.as_posix(), path.read_text(encoding="utf-8")


def complaints(root: Path) -> list[str]:
    """What is wrong below a root, a line each."""
    wrong = []
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in texts(root):
        for word in REFUSED:
            if not word.concerns(path):
                continue
            for found in word.expression.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                said = re.sub(r"\s*\n\s*(?:#|//[/!]?)?\s*", " ", found[0])
                wrong.append(f"{path}:{line}: {said!r} is refused; say: {word.instead}")
        if path.startswith("src/"):
            for name in {found[1] for found in CLASS.finditer(text)} & set(NAMED_ONCE):
                places[name].append(path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            wrong.append(f"class {name} is in {', '.join(paths)}; give one of them another name")
    return wrong


def main() -> int:
    wrong = complaints(ROOT)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
