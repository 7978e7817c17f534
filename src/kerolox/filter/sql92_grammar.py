"""The grammar of SQL92 expressions and its generated LALR parser (``SelectorParser``).

Importing this module makes the parser, which takes some 100 ms; ``compile_sql92`` imports it for
the first expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from kerolox.filter import sql92_nodes as nodes
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.sql92_nodes import (
    INTEGER_CHARACTERS_MAX,
    Long,
    Node,
    Properties,
    Value,
    shown,
)

OPEN_MAX = 2_000
"""Signs, NOTs and parentheses that may be open at the same time while an expression is read."""

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


def parse(text: str) -> Node:
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
                raise Sql92Error(f"the expression {shown(text)!r} opens more than {OPEN_MAX} times")
        if "$END" not in parser.accepts():
            raise Sql92Error(f"the expression {shown(text)!r} ends too early")
        return cast("Node", parser.feed_eof())
    except UnexpectedInput as error:
        at = error.pos_in_stream or 0
        raise Sql92Error(
            f"the expression {shown(text)!r} can't be read at character {at}: "
            f"{text[at : at + 20]!r}"
        ) from None


def _refuse_token(text: str, token: Token) -> NoReturn:
    raise Sql92Error(
        f"the expression {shown(text)!r} can't be read at character {token.start_pos}: "
        f"{shown(str(token))!r} is not expected there"
    )


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Makes the nodes, bottom up; the methods are called by the names of the grammar."""

    def start(self, node: Node) -> Node:
        return nodes.truth(node)

    def or_(self, left: Node, right: Node) -> Node:
        return nodes.chain("OR", left, right)

    def and_(self, left: Node, right: Node) -> Node:
        return nodes.chain("AND", left, right)

    def equal(self, left: Node, right: Node) -> Node:
        return nodes.equal(left, right)

    def not_equal(self, left: Node, right: Node) -> Node:
        return nodes.negation(nodes.equal(left, right))

    def is_null(self, node: Node) -> Node:
        return nodes.same(node, nodes.constant(None, "NULL"))

    def is_not_null(self, node: Node) -> Node:
        return nodes.negation(nodes.same(node, nodes.constant(None, "NULL")))

    def greater(self, left: Node, right: Node) -> Node:
        return nodes.ordered(">", lambda order: order > 0, left, right)

    def greater_equal(self, left: Node, right: Node) -> Node:
        return nodes.ordered(">=", lambda order: order >= 0, left, right)

    def less(self, left: Node, right: Node) -> Node:
        return nodes.ordered("<", lambda order: order < 0, left, right)

    def less_equal(self, left: Node, right: Node) -> Node:
        return nodes.ordered("<=", lambda order: order <= 0, left, right)

    def between(self, node: Node, low: Node, high: Node) -> Node:
        if low.is_constant and high.is_constant:
            if low.value is None or high.value is None:
                raise Sql92Error("BETWEEN can't have NULL as a bound")
            if nodes.is_below(high.value, low.value):
                raise Sql92Error(f"BETWEEN {low.text} AND {high.text}: the first is the greater")
        first, second = nodes.evaluated_once(node)
        return nodes.chain("AND", self.greater_equal(first, low), self.less_equal(second, high))

    def not_between(self, node: Node, low: Node, high: Node) -> Node:
        first, second = nodes.evaluated_once(node)
        return nodes.chain("OR", self.less(first, low), self.greater(second, high))

    def in_(self, node: Node, choices: Sequence[str]) -> Node:
        return nodes.inclusion(node, choices, is_negated=False)

    def not_in(self, node: Node, choices: Sequence[str]) -> Node:
        return nodes.inclusion(node, choices, is_negated=True)

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
        return Node(evaluate, shown(f"(- {node.text})"), depth=node.depth + 1)

    def not_(self, node: Node) -> Node:
        return nodes.negation(nodes.truth(node))

    def string(self, token: Token) -> Node:
        return nodes.constant(_string(token), str(token))

    def decimal(self, token: Token) -> Node:
        if (
            len(token) > INTEGER_CHARACTERS_MAX
            or (value := int(token.rstrip("lL"))) not in nodes.LONG_RANGE
        ):
            raise Sql92Error(f"{shown(token)} is no integer of 64 bits")
        return nodes.constant(value if value in nodes.INT_RANGE else Long(value), str(token))

    def float_(self, token: Token) -> Node:
        value = float(token)
        # Zero is below the smallest double above zero, and so refused.
        if not 0.0 < value < float("inf"):
            raise Sql92Error(
                f"{shown(token)} is no floating number from 4.9E-324 to 1.7976931348623157E308"
            )
        return nodes.constant(value, str(token))

    def true(self, token: Token) -> Node:
        return nodes.constant(True, "TRUE")

    def false(self, token: Token) -> Node:
        return nodes.constant(False, "FALSE")

    def null(self) -> Node:
        return nodes.constant(None, "NULL")

    def property_(self, token: Token) -> Node:
        name = str(token)
        return Node(lambda p: p.get(name), shown(name), property_name=name)


def _string(token: Token) -> str:
    return token[1:-1].replace("''", "'")


_PARSER = Lark(
    GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), g_regex_flags=re.ASCII
)
