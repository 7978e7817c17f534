"""What the parts of an SQL92 expression do: nested functions, and values compared as in Java.

The grammar (:mod:`kerolox.filter.sql92_grammar`) puts them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kerolox.filter.sql92_error import Sql92Error

INTEGER_CHARACTERS_MAX = 1024
"""A longer text is no integer, whatever zeros it begins with: reading it would take too long."""

DEPTH_MAX = 200
"""Deepest nesting of an expression, so that evaluating it can't exhaust the stack."""

SHOWN_CHARACTERS_MAX = 160
"""Most that an error shows of an expression or of a part of it."""

Properties = Mapping[str, str]
Value = str | int | float | None
"""What a part of an expression gives; ``bool`` is an ``int`` here, told apart where it matters."""
Evaluate = Callable[[Properties], Value]


class EvaluationError(Exception):
    """A value can't be compared; the message is not matched."""


class Long(int):
    """An integer literal that is no Java ``int``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression."""

    evaluate: Evaluate
    text: str
    is_boolean: bool = False
    is_constant: bool = False
    value: Value = None
    """Of a constant."""
    property_name: str = ""
    chain: tuple[str, list[Evaluate]] = ("", [])
    """("AND" or "OR", the terms) of a node that ends such a chain: longer chains are not deeper.
    The next term is added to the same list, since a node is part of one other only."""
    depth: int = 1

    def __post_init__(self) -> None:
        if self.depth > DEPTH_MAX:
            raise Sql92Error(f"the expression is nested deeper than {DEPTH_MAX}: write it flatter")


def shown(text: str) -> str:
    """A text as an error shows it."""
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."


# -- comparing, as Java does ------------------------------------------------------------------
# Digits of every script, but for those that Java reads as two characters.
_INTEGER_TEXT = re.compile("[+-]?[^\\D\U00010000-\U0010ffff]+")
_DOUBLE_TEXT = re.compile(
    # Possessive: what is no number must not be tried in every split of its digits.
    r"[+-]?(NaN|Infinity|((\d++(\.\d*+)?|\.\d++)([eE][+-]?\d++)?|"
    r"0[xX]([0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?\d++)[fFdD]?)",
    re.ASCII,
)
INT_RANGE = range(-(2**31), 2**31)
LONG_RANGE = range(-(2**63), 2**63)
_TRIMMED = "".join(map(chr, range(33)))


def _read_integer(text: str, within: range) -> int:
    if (
        len(text) > INTEGER_CHARACTERS_MAX
        or not _INTEGER_TEXT.fullmatch(text)
        or (value := int(text)) not in within
    ):
        raise EvaluationError(f"{shown(text)!r} is no integer from {within[0]} to {within[-1]}")
    return value


def read_double(text: str) -> float:
    """``Double.valueOf``: Java's spelling of floating numbers."""
    trimmed = text.strip(_TRIMMED)
    if not _DOUBLE_TEXT.fullmatch(trimmed):
        raise EvaluationError(f"{shown(text)!r} is no number")
    if "x" in trimmed or "X" in trimmed:
        return _read_hexadecimal(trimmed)
    return float(trimmed if trimmed[-1] in "Ny" else trimmed.rstrip("fFdD"))


def _read_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("fFdD"))
    except OverflowError:
        return float("-inf" if text[0] == "-" else "inf")


def _order(left: Value, right: Value) -> int:
    """``compareTo`` of two values of one kind: below, at or above 0."""
    if isinstance(left, float) and isinstance(right, float):
        # Double's order is total: -0.0 is below 0.0, and NaN above everything.
        one, other = _total(left), _total(right)
        return (one > other) - (one < other)
    return (left > right) - (left < right)  # type: ignore[operator]  # of one kind


def _total(value: float) -> tuple[int, float, int]:
    if value != value:
        return (1, 0.0, 0)
    return (0, value, 0 if value or str(value)[0] == "-" else 1)


def compare(left: Value, right: Value) -> int:
    """``ComparisonExpression.__compare``: the text's side is read as the other side's kind;
    EvaluationError: it is not of that kind. Kinds that can't be brought together compare as -1.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            # By UTF-16 units; only whether it is 0 matters to anybody.
            return _order(left, right)
        return _order(_as_kind_of(right, left), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError("a truth value on the left of a text")
        return _order(left, right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        return _order(left, _as_kind_of(left, right))
    if isinstance(left, float) or isinstance(right, float):
        return _order(float(left or 0), float(right or 0))
    return _order(left, right)


def _as_kind_of(other: Value, text: str) -> Value:
    """A text read as the kind of the value beside it."""
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, float):
        return read_double(text)
    return _read_integer(text, LONG_RANGE if isinstance(other, Long) else INT_RANGE)


def _is_equal(left: Value, right: Value) -> bool | None:
    """``=``: null on the left alone is null, on the right alone false."""
    if left is None or right is None:
        if left is right:
            return True
        return None if left is None else False
    return compare(left, right) == 0


# -- from the tree to functions -----------------------------------------------------------------
def constant(value: Value, text: str) -> Node:
    """A literal."""
    is_truth = value is None or isinstance(value, bool)
    return Node(lambda _: value, shown(text), is_boolean=is_truth, is_constant=True, value=value)


def truth(node: Node) -> Node:
    """A node whose value is a truth value (``asBooleanExpression``)."""
    if node.is_boolean:
        return node
    if not node.property_name:
        raise Sql92Error(f"{node.text} is no condition: compare it with something")
    name = node.property_name
    # The text of a property is never a truth value by itself.
    return Node(lambda p: False if name in p else None, node.text, is_boolean=True)


def _check_ordered(node: Node) -> None:
    """``checkLessThanOperand``: constants beside < and > are numbers."""
    is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if (node.is_constant and not is_number) or (node.is_boolean and not node.is_constant):
        raise Sql92Error(f"{node.text} can't be compared by <, <=, >, >= or BETWEEN")


def ordered(symbol: str, holds: Callable[[int], bool], left: Node, right: Node) -> Node:
    """``<``, ``<=``, ``>`` or ``>=``: ``holds`` judges how left compares with right."""
    _check_ordered(left)
    _check_ordered(right)
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        one = first(properties)
        if one is None:
            return None
        other = second(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return holds(_order(read_double(one), read_double(other)))
        return holds(compare(one, other))

    return _boolean(evaluate, f"({left.text} {symbol} {right.text})", left, right)


def _boolean(evaluate: Evaluate, text: str, *parts: Node) -> Node:
    depth = 1 + max(part.depth for part in parts)
    return Node(evaluate, shown(text), is_boolean=True, depth=depth)


def chain(kind: str, left: Node, right: Node) -> Node:
    """``AND`` and ``OR``: the first term that decides ends it, a null term leaves it open."""
    left, right = truth(left), truth(right)
    known_kind, known = left.chain
    terms = known if known_kind == kind else [left.evaluate]
    terms.append(right.evaluate)
    deciding = kind == "OR"

    def evaluate(properties: Properties) -> bool | None:
        is_open = False
        for term in terms:
            value = term(properties)
            if value is deciding:
                return deciding
            is_open = is_open or value is None
        return None if is_open else not deciding

    depth = max(left.depth, right.depth + 1) if known_kind == kind else 1 + max(
        left.depth, right.depth
    )  # fmt: skip
    text = shown(f"({left.text} {kind} {right.text})")
    return Node(evaluate, text, is_boolean=True, chain=(kind, terms), depth=depth)


def negation(node: Node) -> Node:
    """``NOT``; of null it is null."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return _boolean(evaluate, f"(NOT {node.text})", node)


def equal(left: Node, right: Node) -> Node:
    """``=``, which takes no literal ``NULL``."""
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise Sql92Error("NULL can't be compared by = or <>: write IS NULL or IS NOT NULL")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise Sql92Error(f"{left.text} can't be compared with {right.text}")
    return same(left, right)


def same(left: Node, right: Node) -> Node:
    """``=`` of any two parts."""
    first, second = left.evaluate, right.evaluate
    return _boolean(
        lambda p: _is_equal(first(p), second(p)), f"({left.text} == {right.text})", left, right
    )


def inclusion(node: Node, choices: Sequence[str], *, is_negated: bool) -> Node:
    """``IN`` and ``NOT IN``; null when the property is not there."""
    if not node.property_name:
        raise Sql92Error(f"IN asks for a property on its left, not {node.text}")
    name, found = node.property_name, frozenset(choices)

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in found) is not is_negated

    return _boolean(evaluate, f"({node.text} {'NOT IN' if is_negated else 'IN'} ...)", node)


def evaluated_once(node: Node) -> tuple[Node, Node]:
    """A node for two places, of which the first is always evaluated before the second: that one
    takes its value over. Nested, each BETWEEN would double the time otherwise."""
    if node.property_name or node.is_constant:
        return node, node
    inner = node.evaluate
    last: list[Value] = [None]

    def evaluate(properties: Properties) -> Value:
        last[0] = inner(properties)
        return last[0]

    return replace(node, evaluate=evaluate), replace(node, evaluate=lambda _: last[0])


def is_below(left: Value, right: Value) -> bool:
    """Whether a bound of BETWEEN is smaller than the other."""
    try:
        return compare(left, right) < 0
    except EvaluationError as error:
        raise Sql92Error(f"the bounds of BETWEEN: {error}") from None
