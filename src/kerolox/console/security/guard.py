"""Around the application: headers that keep browsers strict, the path that a proxy adds, and the
part of it that names a cluster."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_SECURITY_POLICY", "CONTEXT", "CONTEXT_PATH", "Guard"]

CONTEXT_PATH = "/in/"
"""Begins a path that says of which cluster it is."""
CONTEXT = "kerolox.context"
"""Member of a request's scope: that cluster's name; empty: the path names none."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""No script or style stands in a page, and nothing comes from elsewhere."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, root_path: str, contexts: Container[str] = ()) -> None:
        """``contexts``: names of clusters, of which a path begins with one (``/in/NAME``)."""
        self._app = app
        self._root = root_path
        self._contexts = contexts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A proxy may take the root path off, or leave it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if self._root and (path == self._root or path.startswith(f"{self._root}/")):
            path = path[len(self._root) :] or "/"
        context = ""
        if path.startswith(CONTEXT_PATH):
            name, slash, rest = path.removeprefix(CONTEXT_PATH).partition("/")
            if slash and name in self._contexts:
                context, path = name, f"/{rest}"
        scope = {**scope, "path": path, "root_path": "", CONTEXT: context}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # What somebody may see who is logged in is kept by no cache.
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, guarded)
