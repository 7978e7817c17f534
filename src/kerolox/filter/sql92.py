"""SQL92 expressions over the properties of a message (``SqlFilter``, ``SelectorParser``).

An expression is parsed once, by a generated LALR parser, into nested functions; a message costs the
calls of those. The rules are RocketMQ's, also where they surprise:

- Every property is text. Beside a number or a truth value it is read as one; where that fails, the
  evaluation fails, and the message is not matched. Two texts are equal by their characters, and
  greater or smaller as floating numbers.
- Integer literals are ``Integer`` or, where that is too small, ``Long``: the text beside them must
  be an integer of that range. ``a > 10`` fails on ``"10.5"``, ``a > 10.0`` does not.
- Three values of truth: what is not there is null, and so is a comparison with it.
- What follows a complete expression, and could not continue it, is not looked at: ``a = 1 b`` is
  ``a = 1``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from kerolox.errors import KeroloxError

__all__ = ["SQL92", "Sql92Error", "Sql92Expression", "compile_sql92"]

SQL92 = "SQL92"
"""``ExpressionType.SQL92``."""

EXPRESSION_CHARACTERS_MAX = 64 * 1024
"""Longest expression that is taken: it is compiled within some 250 ms and costs up to 4 MiB."""

OPEN_MAX = 2_000
"""Signs, NOTs and parentheses that may be open at the same time while an expression is read."""

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


class Sql92Error(KeroloxError, ValueError):
    """The expression can't be compiled (``MQFilterException``); the text says where and why."""


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


@dataclass(frozen=True, slots=True)
class Sql92Expression:
    """A compiled expression. Equal when the texts are."""

    text: str
    _evaluate: Evaluate

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sql92Expression) and other.text == self.text

    def evaluate(self, properties: Properties) -> bool | None:
        """True, false, or None (null).

        Raises:
            EvaluationError: values that can't be compared.
        """
        return cast("bool | None", self._evaluate(properties))

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is delivered; one that can't be told is not."""
        try:
            return self._evaluate(properties) is True
        except EvaluationError:
            return False


GRAMMAR = r"""
    start: or_
    ?or_: and_ | or_ _OR and_
    ?and_: equality | and_ _AND equality -> and_
    ?equality: comparison
        | equality "=" comparison           -> equal
        | equality "<>" comparison          -> not_equal
        | equality _IS _NULL                -> is_null
        | equality _IS _NOT _NULL           -> is_not_null
    ?comparison: unary
        | comparison ">" unary              -> greater
        | comparison ">=" unary             -> greater_equal
        | comparison "<" unary              -> less
        | comparison "<=" unary             -> less_equal
        | comparison _BETWEEN unary _AND unary       -> between
        | comparison _NOT _BETWEEN unary _AND unary  -> not_between
        | comparison _IN strings            -> in_
        | comparison _NOT _IN strings       -> not_in
    strings: "(" STRING ("," STRING)* ")"
    ?unary: primary
        | "+" unary
        | "-" unary                         -> negate
        | _NOT unary                        -> not_
    ?primary: "(" or_ ")"
        | STRING                            -> string
        | FLOAT                             -> float_
        | DECIMAL                           -> decimal
        | TRUE                              -> true
        | FALSE                             -> false
        | _NULL                             -> null
        | NAME                              -> property_
    _OR.3: /OR(?![a-z0-9_$])/i
    _AND.3: /AND(?![a-z0-9_$])/i
    _NOT.3: /NOT(?![a-z0-9_$])/i
    _BETWEEN.3: /BETWEEN(?![a-z0-9_$])/i
    _IN.3: /IN(?![a-z0-9_$])/i
    _IS.3: /IS(?![a-z0-9_$])/i
    _NULL.3: /NULL(?![a-z0-9_$])/i
    TRUE.3: /TRUE(?![a-z0-9_$])/i
    FALSE.3: /FALSE(?![a-z0-9_$])/i
    NAME: /[a-z_$][a-z0-9_$]*/i
    STRING: /'(''|[^'])*'/
    FLOAT.2: /[0-9]+\.[0-9]*(E[+-]?[0-9]+)?|\.[0-9]+(E[+-]?[0-9]+)?|[0-9]+E[+-]?[0-9]+/i
    DECIMAL: /0|[1-9][0-9]*l?/i
    LINE_COMMENT.4: /--[^\n\r]*+(\n|\r\n?)/
    BLOCK_COMMENT.4: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
    %ignore /[ \t\n\r\f]+/
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
"""


def compile_sql92(text: str) -> Sql92Expression:
    """Compile an expression.

    Raises:
        Sql92Error: it is no expression, or one that RocketMQ refuses.
    """
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise Sql92Error(
            f"the expression has {len(text)} characters, at most {EXPRESSION_CHARACTERS_MAX} are "
            "taken"
        )
    return Sql92Expression(text, _parse(text).evaluate)


def _parse(text: str) -> Node:
    """The node of an expression, up to the first token that can't belong to it."""
    parser: Any = _PARSER.parse_interactive(text)
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            try:
                parser.feed_token(token)
            except UnexpectedToken:
                # What was reduced in vain is what the end would have reduced, too.
                if "$END" not in parser.accepts():
                    _refuse_token(text, token)
                break
            if len(parser.parser_state.state_stack) > OPEN_MAX:
                raise Sql92Error(
                    f"the expression {_shown(text)!r} opens more than {OPEN_MAX} times"
                )
        if "$END" not in parser.accepts():
            raise Sql92Error(f"the expression {_shown(text)!r} ends too early")
        return cast("Node", parser.feed_eof())
    except UnexpectedInput as error:
        at = error.pos_in_stream or 0
        raise Sql92Error(
            f"the expression {_shown(text)!r} can't be read at character {at}: "
            f"{text[at : at + 20]!r}"
        ) from None


def _refuse_token(text: str, token: Token) -> NoReturn:
    raise Sql92Error(
        f"the expression {_shown(text)!r} can't be read at character {token.start_pos}: "
        f"{_shown(str(token))!r} is not expected there"
    )


def _shown(text: str) -> str:
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
_INT_RANGE = range(-(2**31), 2**31)
_LONG_RANGE = range(-(2**63), 2**63)
_TRIMMED = "".join(map(chr, range(33)))


def _read_integer(text: str, within: range) -> int:
    if (
        len(text) > INTEGER_CHARACTERS_MAX
        or not _INTEGER_TEXT.fullmatch(text)
        or (value := int(text)) not in within
    ):
        raise EvaluationError(f"{_shown(text)!r} is no integer from {within[0]} to {within[-1]}")
    return value


def read_double(text: str) -> float:
    """``Double.valueOf``: Java's spelling of floating numbers.

    Raises:
        EvaluationError: it is none.
    """
    trimmed = text.strip(_TRIMMED)
    if not _DOUBLE_TEXT.fullmatch(trimmed):
        raise EvaluationError(f"{_shown(text)!r} is no number")
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
    """``ComparisonExpression.__compare``: the text's side is read as the other side's kind.

    Kinds that can't be brought together compare as -1.

    Raises:
        EvaluationError: a text is not of the other side's kind.
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
    return _read_integer(text, _LONG_RANGE if isinstance(other, Long) else _INT_RANGE)


def _is_equal(left: Value, right: Value) -> bool | None:
    """``=``: null on the left alone is null, on the right alone false."""
    if left is None or right is None:
        if left is right:
            return True
        return None if left is None else False
    return compare(left, right) == 0


# -- from the tree to functions -----------------------------------------------------------------
def _constant(value: Value, text: str) -> Node:
    is_truth = value is None or isinstance(value, bool)
    return Node(lambda _: value, _shown(text), is_boolean=is_truth, is_constant=True, value=value)


def _truth(node: Node) -> Node:
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


def _ordered(symbol: str, holds: Callable[[int], bool], left: Node, right: Node) -> Node:
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
    return Node(evaluate, _shown(text), is_boolean=True, depth=depth)


def _chain(kind: str, left: Node, right: Node) -> Node:
    """``AND`` and ``OR``: the first term that decides ends it, a null term leaves it open."""
    left, right = _truth(left), _truth(right)
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
    text = _shown(f"({left.text} {kind} {right.text})")
    return Node(evaluate, text, is_boolean=True, chain=(kind, terms), depth=depth)


def _not(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return _boolean(evaluate, f"(NOT {node.text})", node)


def _equal(left: Node, right: Node) -> Node:
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise Sql92Error("NULL can't be compared by = or <>: write IS NULL or IS NOT NULL")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise Sql92Error(f"{left.text} can't be compared with {right.text}")
    return _same(left, right)


def _same(left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate
    return _boolean(
        lambda p: _is_equal(first(p), second(p)), f"({left.text} == {right.text})", left, right
    )


def _in(node: Node, choices: Sequence[str], *, is_negated: bool) -> Node:
    if not node.property_name:
        raise Sql92Error(f"IN asks for a property on its left, not {node.text}")
    name, found = node.property_name, frozenset(choices)

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in found) is not is_negated

    return _boolean(evaluate, f"({node.text} {'NOT IN' if is_negated else 'IN'} ...)", node)


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Makes the nodes, bottom up; the methods are called by the names of the grammar."""

    def start(self, node: Node) -> Node:
        return _truth(node)

    def or_(self, left: Node, right: Node) -> Node:
        return _chain("OR", left, right)

    def and_(self, left: Node, right: Node) -> Node:
        return _chain("AND", left, right)

    def equal(self, left: Node, right: Node) -> Node:
        return _equal(left, right)

    def not_equal(self, left: Node, right: Node) -> Node:
        return _not(_equal(left, right))

    def is_null(self, node: Node) -> Node:
        return _same(node, _constant(None, "NULL"))

    def is_not_null(self, node: Node) -> Node:
        return _not(_same(node, _constant(None, "NULL")))

    def greater(self, left: Node, right: Node) -> Node:
        return _ordered(">", lambda order: order > 0, left, right)

    def greater_equal(self, left: Node, right: Node) -> Node:
        return _ordered(">=", lambda order: order >= 0, left, right)

    def less(self, left: Node, right: Node) -> Node:
        return _ordered("<", lambda order: order < 0, left, right)

    def less_equal(self, left: Node, right: Node) -> Node:
        return _ordered("<=", lambda order: order <= 0, left, right)

    def between(self, node: Node, low: Node, high: Node) -> Node:
        if low.is_constant and high.is_constant:
            if low.value is None or high.value is None:
                raise Sql92Error("BETWEEN can't have NULL as a bound")
            if _is_below(high.value, low.value):
                raise Sql92Error(f"BETWEEN {low.text} AND {high.text}: the first is the greater")
        first, second = _evaluated_once(node)
        return _chain("AND", self.greater_equal(first, low), self.less_equal(second, high))

    def not_between(self, node: Node, low: Node, high: Node) -> Node:
        first, second = _evaluated_once(node)
        return _chain("OR", self.less(first, low), self.greater(second, high))

    def in_(self, node: Node, choices: Sequence[str]) -> Node:
        return _in(node, choices, is_negated=False)

    def not_in(self, node: Node, choices: Sequence[str]) -> Node:
        return _in(node, choices, is_negated=True)

    def strings(self, *tokens: Token) -> list[str]:
        return [_string(token) for token in tokens]

    def unary(self, node: Node) -> Node:
        return node

    def negate(self, node: Node) -> Node:
        inner = node.evaluate

        def evaluate(properties: Properties) -> Value:
            value = inner(properties)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return Long(-value) if isinstance(value, Long) else -value

        # No constant any more: the bounds of BETWEEN are not checked then.
        return Node(evaluate, _shown(f"(- {node.text})"), depth=node.depth + 1)

    def not_(self, node: Node) -> Node:
        return _not(_truth(node))

    def string(self, token: Token) -> Node:
        return _constant(_string(token), str(token))

    def decimal(self, token: Token) -> Node:
        if (
            len(token) > INTEGER_CHARACTERS_MAX
            or (value := int(token.rstrip("lL"))) not in _LONG_RANGE
        ):
            raise Sql92Error(f"{_shown(token)} is no integer of 64 bits")
        return _constant(value if value in _INT_RANGE else Long(value), str(token))

    def float_(self, token: Token) -> Node:
        value = float(token)
        # Zero is below the smallest double above zero, and so refused.
        if not 0.0 < value < float("inf"):
            raise Sql92Error(
                f"{_shown(token)} is no floating number from 4.9E-324 to 1.7976931348623157E308"
            )
        return _constant(value, str(token))

    def true(self, token: Token) -> Node:
        return _constant(True, "TRUE")

    def false(self, token: Token) -> Node:
        return _constant(False, "FALSE")

    def null(self) -> Node:
        return _constant(None, "NULL")

    def property_(self, token: Token) -> Node:
        name = str(token)
        return Node(lambda p: p.get(name), _shown(name), property_name=name)


def _evaluated_once(node: Node) -> tuple[Node, Node]:
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


def _is_below(left: Value, right: Value) -> bool:
    try:
        return compare(left, right) < 0
    except EvaluationError as error:
        raise Sql92Error(f"the bounds of BETWEEN: {error}") from None


def _string(token: Token) -> str:
    return token[1:-1].replace("''", "'")


_PARSER = Lark(
    GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), g_regex_flags=re.ASCII
)
