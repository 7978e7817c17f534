"""SQL92 expressions over the properties of a message (``SqlFilter``, ``SelectorParser``).

An expression is parsed once, by a generated LALR parser, into nested functions; a message costs the
calls of those. The rules are RocketMQ's, also where they surprise:

- Every property is text. Beside a number or a truth value it is read as one; where that fails, the
  evaluation fails, and the message is not matched. Two texts are equal by their characters, and
  greater or smaller as floating numbers.
- Integer literals are ``Integer`` or, where that is too small, ``Long``: the text beside them must
  be an integer of that range. ``a > 10`` fails on ``"10.5"``, ``a > 10.0`` does not.
- Three values of truth: what is not there is null, and so is a comparison with it.
- What follows a complete expression, and could not continue it, is not examined: ``a = 1 b`` is
  ``a = 1``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.sql92_nodes import Evaluate, EvaluationError, Node, Properties

EXPRESSION_CHARACTERS_MAX = 64 * 1024
"""Longest expression that is taken: it is compiled within some 250 ms and costs up to 4 MiB."""


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
        """True, false, or None (null); EvaluationError: values that can't be compared."""
        return cast("bool | None", self._evaluate(properties))

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is delivered; one that can't be told is not."""
        try:
            return self._evaluate(properties) is True
        except EvaluationError:
            return False


@functools.cache
def _parser() -> Callable[[str], Node]:
    """Loaded with the first expression: a start without any takes two thirds of the time."""
    from kerolox.filter.sql92_grammar import parse

    return parse


def is_parser_loaded() -> bool:
    """Whether an expression was compiled before; the first one takes some 100 ms more."""
    return _parser.cache_info().currsize > 0


def compile_sql92(text: str) -> Sql92Expression:
    """Compile an expression; Sql92Error: it is none, or one that RocketMQ refuses."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise Sql92Error(
            f"the expression has {len(text)} characters, at most {EXPRESSION_CHARACTERS_MAX} are "
            "taken"
        )
    return Sql92Expression(text, _parser()(text).evaluate)
