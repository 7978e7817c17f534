"""YAML as files of accounts need it: read with bounds and lines, written back as it was.

RocketMQ reads such files with SnakeYAML, which is YAML 1.1: a plain ``0123456789`` is a number in
base 8, ``1e9`` a float, ``12:30:45`` a time. Its text would be another there than here, and a
secret would be another one. So a plain text that is not the same in both is an error that asks for
quotes. Refused as well: anchors, aliases, tags, a key that stands twice, several documents.

What is read is a tree that keeps the order and the quotes, so that a changed one can be written
with the rest as it was. Comments are lost, as with RocketMQ. The package ``yaml`` is imported when
it is needed: a broker without access control does without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kerolox.errors import ConfigError
from kerolox.text import printable

if TYPE_CHECKING:
    import yaml

_Event = Any
"""PyYAML's stubs know the classes of events, and not their attributes."""

DEPTH_MAX = 16
"""Of lists and mappings in each other; accounts need 4."""

NODES_MAX = 1_000_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_OTHER_NUMBER = re.compile(
    r"""[-+]?(?:
        [1-9][0-9_]*                                        # whole
      | (?:[0-9][0-9_]*)?\.[0-9_]*(?:[eE][-+]?[0-9]+)?      # broken
      | [0-9][0-9_]*[eE][-+]?[0-9]+
      | [0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?         # of base 60
      | 0b[01_]+ | 0[0-7_]* | 0o[0-7_]+ | 0x[0-9a-fA-F_]+
      | \.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN)
    )""",
    re.VERBOSE,
)
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:.*"
)
_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_NOTHING = frozenset(("", "~", "null", "Null", "NULL"))
_QUOTED = re.compile(r"'(?!<)[^']{2,}'|\"[^\"]{2,}\"")

_HINTS = {
    "alphabetic or numeric": "; put a text that begins with * or & in quotes",
    "start any token": "; indent with blanks, and put a text that begins with a sign in quotes",
    "mapping values": "; put a text with ': ' in quotes",
}

_TAG = "tag:yaml.org,2002:"


# Not tracked by the garbage collector: it would stop the process for as long as it walks a tree of
# 10,000 accounts, several times while that is read.
class Scalar(msgspec.Struct, gc=False):
    """A text."""

    text: str
    style: str | None = None
    """Its quotes; None: it is plain."""
    line: int = 0
    """Where it begins, from 1; 0: it is new. So with the others."""


class Items(msgspec.Struct, gc=False):
    """A list."""

    nodes: list[Node]
    is_flow: bool = False
    """Whether it is written in brackets."""
    line: int = 0


class Members(msgspec.Struct, gc=False):
    """A mapping."""

    pairs: list[tuple[Scalar, Node]]
    is_flow: bool = False
    """Whether it is written in braces."""
    line: int = 0


Node = Scalar | Items | Members


def read_yaml(data: bytes, where: str) -> Members | None:
    """The mapping that a file is; None: it is empty.

    ConfigError: it is no YAML, something else than a mapping, or has what is refused here; the text
    has ``where`` and a line, and nothing of the file that may be secret.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}, line {line}: not UTF-8; save the file as UTF-8") from None
    import yaml

    try:
        # Made where it begins to read: the first character may be wrong.
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            # As ``yaml.parse``, without a generator's step for each of many events.
            root = _Composer(where).compose(iter(loader.get_event, None))
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_error(error, where)) from None
    if is_nothing(root):
        return None
    assert root is not None
    if not isinstance(root, Members):
        raise ConfigError(
            f"{at(root, where)}: the file is no mapping; write lines such as 'accounts:'"
        )
    return root


def write_yaml(root: Members) -> bytes:
    """A tree as a file. Plain ASCII, which Java reads right whatever its charset is."""
    import yaml

    resolver: Any = yaml.resolver.Resolver()

    def made(node: Node) -> yaml.Node:
        if isinstance(node, Members):
            pairs = [(made(key), made(value)) for key, value in node.pairs]
            return yaml.MappingNode(f"{_TAG}map", pairs, flow_style=node.is_flow)
        if isinstance(node, Items):
            nodes = [made(each) for each in node.nodes]
            return yaml.SequenceNode(f"{_TAG}seq", nodes, flow_style=node.is_flow)
        # The emitter quotes a plain text whose tag is not the one that it would be read with.
        is_plain = node.style is None
        tag = resolver.resolve(yaml.ScalarNode, node.text, (True, False)) if is_plain else None
        return yaml.ScalarNode(tag or f"{_TAG}str", node.text, style=node.style)

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.serialize(made(root), Dumper=dumper, allow_unicode=False, width=1 << 20)
    return text.encode()


# -- what a node holds ------------------------------------------------------------------------
def at(node: Node, where: str) -> str:
    """The file, and the line where the node begins."""
    return f"{where}, line {node.line}" if node.line else where


def members(node: Node, where: str, what: str) -> dict[str, Node]:
    """Key → value of a mapping; the ConfigError for another node says by ``what`` it should be."""
    if not isinstance(node, Members):
        raise ConfigError(f"{at(node, where)}: {what} must be a mapping (lines of 'key: value')")
    return {key.text: value for key, value in node.pairs}


def items(node: Node | None, where: str, what: str) -> list[Node]:
    """The items of a list; nothing is a list without any, something else a ConfigError."""
    if node is None or is_nothing(node):
        return []
    if not isinstance(node, Items):
        raise ConfigError(f"{at(node, where)}: {what} must be a list (lines that begin with '- ')")
    return node.nodes


def text_of(node: Node | None, where: str, what: str) -> str | None:
    """A text, or a whole number as it is written; None: nothing. ConfigError: it is something else,
    is read as another text by RocketMQ, or has a control character.
    """
    if node is None or is_nothing(node):
        return None
    if not isinstance(node, Scalar):
        raise ConfigError(f"{at(node, where)}: {what} must be a text, not a list or a mapping")
    if node.style is None and not _is_same_text(node.text):
        raise ConfigError(
            f"{at(node, where)}: {what} is read as a number, a date or a switch by YAML; "
            "put it in quotes"
        )
    if _CONTROL.search(node.text):
        raise ConfigError(f"{at(node, where)}: {what} has a control character; take it out")
    return node.text


def flag_of(node: Node | None, where: str, what: str) -> bool:
    """A switch; nothing is false, something else a ConfigError."""
    if node is None or is_nothing(node):
        return False
    found = _WORDS.get(node.text.lower()) if isinstance(node, Scalar) else None
    if found is None:
        raise ConfigError(f"{at(node, where)}: {what} must be true or false")
    return found


def number_of(node: Node | None, where: str, what: str) -> int:
    """A whole number of 64 bits; nothing is 0, something else a ConfigError."""
    text = text_of(node, where, what) or "0"
    if not _PLAIN_NUMBER.fullmatch(text) or len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        assert node is not None
        raise ConfigError(f"{at(node, where)}: {what} must be a whole number")
    return int(text)


def is_nothing(node: Node | None) -> bool:
    """Whether there is no value."""
    if isinstance(node, Scalar):
        return node.style is None and node.text in _NOTHING
    return node is None


def has_control(text: str) -> bool:
    """Whether a text has what no text of a file may have."""
    return _CONTROL.search(text) is not None


# -- new nodes --------------------------------------------------------------------------------
def text_node(text: str) -> Scalar:
    """A text that reads the same everywhere."""
    is_plain = re.fullmatch(r"[A-Za-z]\S*", text) and _is_same_text(text)
    return Scalar(text, None if is_plain else '"')


def plain_node(value: bool | int) -> Scalar:
    """A switch or a number."""
    return Scalar(str(value).lower())


def list_node(nodes: list[Node]) -> Items:
    """A list, a line for each item."""
    return Items(nodes, is_flow=not nodes)


def mapping_node(values: dict[str, Node]) -> Members:
    """A mapping, a line for each key."""
    return Members([(text_node(key), value) for key, value in values.items()])


# -- reading ----------------------------------------------------------------------------------
class _Composer:
    """Makes nodes of events. Large files have hundreds of thousands."""

    def __init__(self, where: str) -> None:
        import yaml

        self._where = where
        self._left = NODES_MAX
        self._scalar = yaml.ScalarEvent
        self._sequence, self._sequence_end = yaml.SequenceStartEvent, yaml.SequenceEndEvent
        self._mapping_end = yaml.MappingEndEvent

    def compose(self, events: Iterator[_Event]) -> Node | None:
        import yaml

        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(event, "a second document begins; write one, without '---'")
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, 0)
        return root

    def _node(self, event: _Event, events: Iterator[_Event], depth: int) -> Node:
        self._left -= 1
        if self._left < 0:
            raise self._error(event, f"more than {NODES_MAX} values; split the file")
        if depth > DEPTH_MAX:
            raise self._error(event, f"more than {DEPTH_MAX} levels; accounts have 4")
        kind = type(event)
        if kind is self._scalar and event.anchor is None and event.tag is None:
            return Scalar(event.value, event.style or None, event.start_mark.line + 1)
        self._check_plain(event)
        line = event.start_mark.line + 1
        if kind is self._scalar:
            return Scalar(event.value, event.style or None, line)
        is_flow = bool(event.flow_style)
        if kind is self._sequence:
            nodes = []
            while type(inner := next(events)) is not self._sequence_end:
                nodes.append(self._node(inner, events, depth + 1))
            return Items(nodes, is_flow, line)
        return Members(self._pairs(events, depth), is_flow, line)

    def _check_plain(self, event: _Event) -> None:
        """Have neither an alias nor an anchor nor a tag."""
        import yaml

        if isinstance(event, yaml.AliasEvent):
            raise self._error(
                event, "a value begins with '*', an alias in YAML; put an address in quotes: '*'"
            )
        if event.anchor is not None:
            raise self._error(
                event, "a value begins with '&', an anchor in YAML; put a text in quotes"
            )
        if event.tag not in (None, "!"):
            raise self._error(event, "a value begins with '!', a tag in YAML; put a text in quotes")

    def _pairs(self, events: Iterator[_Event], depth: int) -> list[tuple[Scalar, Node]]:
        pairs: list[tuple[Scalar, Node]] = []
        known: set[str] = set()
        while type(event := next(events)) is not self._mapping_end:
            key = self._node(event, events, depth + 1)
            if not isinstance(key, Scalar) or _CONTROL.search(key.text):
                raise self._error(event, "a key is no text")
            if key.text in known:
                shown = printable(key.text, characters_max=64)
                raise self._error(event, f"key '{shown}' stands twice; keep one")
            known.add(key.text)
            pairs.append((key, self._node(next(events), events, depth + 1)))
        return pairs

    def _error(self, event: _Event, text: str) -> ConfigError:
        return ConfigError(f"{self._where}, line {event.start_mark.line + 1}: {text}")


def _is_same_text(text: str) -> bool:
    """Whether a plain text is the same to every reader of YAML 1.1."""
    if text[:1].isalpha():
        # Most texts: neither a number nor a date.
        return text.lower() not in _WORDS and text not in _NOTHING
    if _PLAIN_NUMBER.fullmatch(text):
        return True
    is_other = _OTHER_NUMBER.fullmatch(text) or _DATE.fullmatch(text)
    return not is_other and text.lower() not in _WORDS and text not in ("=", "<<", *_NOTHING)


def _syntax_error(error: Exception, where: str) -> str:
    """The parser's own words about a mistake, without what they quote of the file."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or "a character is not allowed")
    line = f", line {mark.line + 1}" if mark is not None else ""
    hint = next((hint for part, hint in _HINTS.items() if part in problem), "")
    return f"{where}{line}: no YAML: {printable(_QUOTED.sub('…', problem))}{hint}"
