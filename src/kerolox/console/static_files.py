"""Scripts and styles, under names that change when they do."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope

__all__ = ["VersionedFiles", "version_of"]

KEPT = "public, max-age=31536000, immutable"
_FOLDER = Path(__file__).parent / "static"


@cache
def version_of(name: str) -> str:
    """What stands behind ``?`` in the address of a file: it changes with the file."""
    return hashlib.sha256((_FOLDER / name).read_bytes()).hexdigest()[:12]


class VersionedFiles(StaticFiles):
    """Files that browsers keep, if they were asked for with a version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or 404."""
        response = await super().get_response(path, scope)
        if response.status_code == 200 and scope["query_string"]:
            response.headers["cache-control"] = KEPT
        return response
