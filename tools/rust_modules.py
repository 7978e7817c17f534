"""The order of the layers of `kernel/core/src` and `kernel/py/src`, and no circle among the files;
no logic in the binding.

A layer is a folder or a file at the top. It uses layers that stand before it in `CRATES`, never
one that stands after it. The files of all layers together have no circle either. Tests may use
anything. A `mod` declaration and a re-export of a layer's own (`pub use self::x`) are no use.

The binding, `kernel/py/src`, turns arguments and results, holds Python's objects and calls them.
What decides, counts or reads a clock is refused there (`LOGIC`): it belongs to the core, which has
tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

KERNEL = Path(__file__).resolve().parent.parent / "kernel"
CRATES = {
    KERNEL / "core" / "src": (
        "protocol error memory settings record files index shared log queues state flush recovery"
        " replica store wire client columns access http2 fast_path lib"
    ).split(),
    KERNEL / "py" / "src": (
        "buffer errors shapes slots settings records following messages rows columns http2 sending"
        " store connection lib"
    ).split(),
}
"""The source of each crate, and the order of its layers."""

BINDING = KERNEL / "py" / "src"

LOGIC = {
    r"\b(?:Instant|SystemTime)\b": "reads a clock",
    r"\bAtomic[A-Z]\w*|[-+*/%]=": "counts",
    r"\b(?:HashMap|HashSet|BTreeMap|BTreeSet|VecDeque)\b": "keeps a table",
    r"\bloop\b|\bwhile\b(?! let\b)": "decides when to end",
}
"""What the binding has none of, as patterns of its text, and what such a line does."""

COMMENT = re.compile(r"//[^\n]*")
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub\(crate\) )?mod \w+ \{.*", re.DOTALL)
REEXPORT = re.compile(r"\bpub(?:\([a-z ]+\))? use self::[^;]*;")
USE = re.compile(r"\b(?:pub(?:\([a-z ]+\))? )?use ([^;]+);")
PATH = re.compile(r"(?<![\w:])[a-z_]\w*(?:::\w+)+")


def name_of(path: Path, source: Path) -> str:
    """The module that a file holds, as `files::map`."""
    parts = path.relative_to(source).with_suffix("").parts
    return "::".join(parts[:-1] if parts[-1] == "mod" else parts)


def expanded(tree: str) -> Iterator[str]:
    """The single paths of a `use` tree: `a::{b, c::d}` gives `a::b` and `a::c::d`."""
    head, brace, rest = tree.partition("{")
    if not brace:
        yield tree.split(" as ")[0].strip()
        return
    depth, item = 0, ""
    for character in rest.rpartition("}")[0] + ",":
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            if item.strip():
                yield from (head.strip() + path for path in expanded(item.strip()))
            item = ""
        else:
            item += character


def paths_in(text: str) -> Iterator[str]:
    """Every path in a source text, what comes from other crates too."""
    text = REEXPORT.sub("", TESTS.sub("", COMMENT.sub("", text)))
    for match in USE.finditer(text):
        yield from expanded(" ".join(match[1].split()))
    yield from PATH.findall(USE.sub("", text))


def resolved(path: str, module: str, modules: set[str]) -> str | None:
    """The module that a path leads to, as seen from `module`; None: out of the crate."""
    names = path.split("::")
    place = module.split("::") if module != "lib" else []
    if names[0] == "crate":
        place, names = [], names[1:]
    elif names[0] in ("self", "super"):
        while names and names[0] in ("self", "super"):
            place = place[:-1] if names[0] == "super" else place
            names = names[1:]
    elif "::".join([*place, names[0]]) not in modules:
        return None
    place = place + names
    while place and "::".join(place) not in modules:
        place.pop()
    return "::".join(place) or "lib"


def uses(source: Path) -> dict[str, set[str]]:
    """Each module with the modules that it uses."""
    files = {
        name_of(path, source): path.read_text()
        for path in sorted(source.rglob("*.rs"))
        if not path.stem.endswith("tests")
    }
    found: dict[str, set[str]] = {}
    for module, text in files.items():
        targets = {resolved(path, module, set(files)) for path in paths_in(text)}
        found[module] = {target for target in targets if target is not None} - {module}
    return found


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One circle of a graph, its first name again at the end; None when there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str] | None:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return None
        for target in sorted(graph.get(name, ())):
            if found := walk(target, [*way, name]):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(graph) if (found := walk(name, []))), None)


def complaints(source: Path, layers: list[str]) -> list[str]:
    """What is wrong, a line each."""
    graph = uses(source)
    wrong = []
    for module, targets in graph.items():
        layer = module.partition("::")[0]
        if layer not in layers:
            wrong.append(
                f"{layer}: not in CRATES of tools/rust_modules.py; put it where it belongs"
            )
            continue
        for target in sorted(targets):
            other = target.partition("::")[0]
            if other in layers and layers.index(other) > layers.index(layer):
                wrong.append(f"{module} uses {target}, but {layer} stands below {other}")
    if found := circle(graph):
        wrong.append("circle: " + " -> ".join(found))
    return wrong


def logic(source: Path) -> list[str]:
    """Where a binding has logic, a line each."""
    wrong = []
    for path in sorted(source.rglob("*.rs")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = TEXT.sub('""', COMMENT.sub("", line))
            wrong += [
                f"{path.relative_to(source)}:{number} {does}: that belongs to kernel/core"
                for pattern, does in LOGIC.items()
                if re.search(pattern, code)
            ]
    return wrong


def main() -> int:
    wrong = [line for source, layers in CRATES.items() for line in complaints(source, layers)]
    wrong += logic(BINDING)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
