"""Runs cells as the kernel of a notebook does: in one process, and in one event loop all the time.

Reads their sources from standard input, a JSON array; writes a JSON array of what each printed, and
the value of its last line where that is an expression.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
from typing import Any

LANGUAGE = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


async def run(source: str, names: dict[str, Any]) -> str:
    """What a cell printed, and its value."""
    tree = compile(source, "<cell>", "exec", LANGUAGE | ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await done(eval(compile(tree, "<cell>", "exec", LANGUAGE), names))
        if last is not None:
            value = ast.Expression(last.value)
            found = await done(eval(compile(value, "<cell>", "eval", LANGUAGE), names))
            if found is not None:
                print(repr(found))
    return printed.getvalue()


async def done(result: object) -> object:
    """The result, once it is there."""
    return await result if inspect.isawaitable(result) else result


async def main() -> None:
    names = {"__name__": "__main__"}
    json.dump([await run(source, names) for source in json.load(sys.stdin)], sys.stdout)


asyncio.run(main())
