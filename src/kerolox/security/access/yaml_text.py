"""YAML as files of accounts need it: read with bounds and lines, written back as it was.

RocketMQ reads such files with SnakeYAML, which is YAML 1.1: a plain ``0123456789`` is a number in
base 8, ``1e9`` a float, ``12:30:45`` a time. Its text would be another there than here, and a
secret would be another one. So a plain text that is not the same in both is an error that asks for
quotes. Refused as well: anchors, aliases, tags, a key that stands twice, several documents.

What is read is a tree of PyYAML's nodes, so that a changed one can be written with the order and
the quotes of the rest. Comments are lost, as with RocketMQ. The package ``yaml`` is imported when
it is needed: a broker without access control does without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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


def read_yaml(data: bytes, where: str) -> yaml.MappingNode | None:
    """The mapping that a file is; None: it is empty.

    Raises:
        ConfigError: it is no YAML, something else than a mapping, or has what is refused here; the
            text has ``where`` and a line, and nothing of the file that may be secret.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}, line {line}: not UTF-8; save the file as UTF-8") from None
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = _Composer(where).compose(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_error(error, where)) from None
    if is_nothing(root):
        return None
    assert root is not None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{at(root, where)}: the file is no mapping; write lines such as 'accounts:'"
        )
    return root


def write_yaml(root: yaml.MappingNode) -> bytes:
    """A tree as a file. Plain ASCII, which Java reads right whatever its charset is."""
    import yaml

    # The emitter quotes a plain text whose tag is not the one that it would be read with.
    resolver: Any = yaml.resolver.Resolver()
    nodes: list[yaml.Node] = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            nodes.extend(each for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            nodes.extend(node.value)
        elif isinstance(node, yaml.ScalarNode) and not node.style:
            node.tag = resolver.resolve(yaml.ScalarNode, node.value, (True, False))
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.serialize(root, Dumper=dumper, allow_unicode=False, width=1 << 20)
    return text.encode()


# -- what a node holds ------------------------------------------------------------------------
def at(node: yaml.Node, where: str) -> str:
    """The file, and the line where the node begins."""
    mark = node.start_mark
    return f"{where}, line {mark.line + 1}" if mark is not None else where


def members(node: yaml.Node, where: str, what: str) -> dict[str, yaml.Node]:
    """Key → value of a mapping.

    Raises:
        ConfigError: it is none; ``what`` says in the text what it should be.
    """
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{at(node, where)}: {what} must be a mapping (lines of 'key: value')")
    return {key.value: value for key, value in node.value}


def items(node: yaml.Node | None, where: str, what: str) -> list[yaml.Node]:
    """The items of a list; nothing is a list without any.

    Raises:
        ConfigError: it is none.
    """
    import yaml

    if is_nothing(node):
        return []
    assert node is not None
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{at(node, where)}: {what} must be a list (lines that begin with '- ')")
    return list(node.value)


def text_of(node: yaml.Node | None, where: str, what: str) -> str | None:
    """A text, or a whole number as it is written; None: nothing.

    Raises:
        ConfigError: it is something else, is read as another text by RocketMQ, or has a control
            character.
    """
    import yaml

    if is_nothing(node):
        return None
    assert node is not None
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{at(node, where)}: {what} must be a text, not a list or a mapping")
    text: str = node.value
    if not node.style and not _is_same_text(text):
        raise ConfigError(
            f"{at(node, where)}: {what} is read as a number, a date or a switch by YAML; "
            "put it in quotes"
        )
    if _CONTROL.search(text):
        raise ConfigError(f"{at(node, where)}: {what} has a control character; take it out")
    return text


def flag_of(node: yaml.Node | None, where: str, what: str) -> bool:
    """A switch; nothing is false.

    Raises:
        ConfigError: it is something else.
    """
    import yaml

    if is_nothing(node):
        return False
    assert node is not None
    if isinstance(node, yaml.ScalarNode):
        found = _WORDS.get(node.value.lower())
        if found is not None:
            return found
    raise ConfigError(f"{at(node, where)}: {what} must be true or false")


def number_of(node: yaml.Node | None, where: str, what: str) -> int:
    """A whole number of 64 bits; nothing is 0.

    Raises:
        ConfigError: it is something else.
    """
    text = text_of(node, where, what) or "0"
    if not _PLAIN_NUMBER.fullmatch(text) or len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        assert node is not None
        raise ConfigError(f"{at(node, where)}: {what} must be a whole number")
    return int(text)


def is_nothing(node: yaml.Node | None) -> bool:
    """Whether there is no value."""
    if node is None:
        return True
    style, value = getattr(node, "style", None), node.value
    return not style and isinstance(value, str) and value in _NOTHING


def has_control(text: str) -> bool:
    """Whether a text has what no text of a file may have."""
    return _CONTROL.search(text) is not None


# -- new nodes --------------------------------------------------------------------------------
def text_node(text: str) -> yaml.ScalarNode:
    """A text that reads the same everywhere."""
    import yaml

    style = None if re.fullmatch(r"[A-Za-z]\S*", text) and _is_same_text(text) else '"'
    return yaml.ScalarNode(f"{_TAG}str", text, style=style)


def plain_node(value: bool | int) -> yaml.ScalarNode:
    """A switch or a number."""
    import yaml

    if isinstance(value, bool):
        return yaml.ScalarNode(f"{_TAG}bool", "true" if value else "false")
    return yaml.ScalarNode(f"{_TAG}int", str(value))


def list_node(nodes: list[yaml.Node]) -> yaml.SequenceNode:
    """A list, a line for each item."""
    import yaml

    return yaml.SequenceNode(f"{_TAG}seq", nodes, flow_style=not nodes)


def mapping_node(values: dict[str, yaml.Node]) -> yaml.MappingNode:
    """A mapping, a line for each key."""
    import yaml

    pairs = [(text_node(key), value) for key, value in values.items()]
    return yaml.MappingNode(f"{_TAG}map", pairs, flow_style=False)


# -- reading ----------------------------------------------------------------------------------
class _Composer:
    """Makes nodes of events, without recursion."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = NODES_MAX

    def compose(self, events: Iterator[_Event]) -> yaml.Node | None:
        import yaml

        root: yaml.Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(event, "a second document begins; write one, without '---'")
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, 0)
        return root

    def _node(self, event: _Event, events: Iterator[_Event], depth: int) -> yaml.Node:
        import yaml

        self._left -= 1
        if self._left < 0:
            raise self._error(event, f"more than {NODES_MAX} values; split the file")
        if depth > DEPTH_MAX:
            raise self._error(event, f"more than {DEPTH_MAX} levels; accounts have 4")
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
        start, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.ScalarEvent):
            style = event.style or None
            return yaml.ScalarNode(f"{_TAG}str", event.value, start, end, style)
        if isinstance(event, yaml.SequenceStartEvent):
            values = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                values.append(self._node(inner, events, depth + 1))
            return yaml.SequenceNode(f"{_TAG}seq", values, start, end, event.flow_style)
        pairs = self._pairs(events, depth)
        return yaml.MappingNode(f"{_TAG}map", pairs, start, end, event.flow_style)

    def _pairs(self, events: Iterator[_Event], depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        import yaml

        pairs: list[tuple[yaml.Node, yaml.Node]] = []
        known: set[str] = set()
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth + 1)
            name = key.value
            if not isinstance(name, str) or _CONTROL.search(name):
                raise self._error(event, "a key is no text")
            if name in known:
                raise self._error(
                    event, f"key '{printable(name, characters_max=64)}' stands twice; keep one"
                )
            known.add(name)
            pairs.append((key, self._node(next(events), events, depth + 1)))
        return pairs

    def _error(self, event: _Event, text: str) -> ConfigError:
        return ConfigError(f"{self._where}, line {event.start_mark.line + 1}: {text}")


def _is_same_text(text: str) -> bool:
    """Whether a plain text is the same to every reader of YAML 1.1."""
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
