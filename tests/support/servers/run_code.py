"""A program that is given as text, as ``python -c`` takes it, in a process of a fork server that
has imported what programs about stores need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tests.support.servers import forked

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

__all__ = ["start_code"]

IMPORTED = (
    *("tests.support.stores.bench", "tests.support.eventually", "tests.support.faults.shim"),
    *("kerolox._pykernel", "kerolox_kernel"),
)


def start_code(
    code: str, *arguments: object, environment: Mapping[str, str], **files: Any
) -> subprocess.Popen[Any]:
    """Begin it; ``files`` as for :func:`tests.support.servers.forked.start`."""
    return forked.start(__name__, [code, *arguments], environment, preloaded=IMPORTED, **files)


def main() -> None:
    """Run what the first argument is; the others are the program's."""
    code = sys.argv.pop(1)
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
