"""Who decides HTTP/2 in this process: the native kernel, or Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kerolox.kernel.choice import kernel_name, load_kernel

if TYPE_CHECKING:
    from kerolox.kernel.http2 import Http2ServerSide


def http2_of(kernel: str | None = None) -> type[Http2ServerSide]:
    """That of a kernel of this name, or of the process's. ConfigError: see
    :func:`~kerolox.kernel.choice.load_kernel`."""
    chosen = kernel or kernel_name()
    if chosen == "native":
        return cast("type[Http2ServerSide]", load_kernel(chosen).Http2ServerSide)  # type: ignore[attr-defined]
    from kerolox.remoting.http2 import server_side

    return server_side.Http2ServerSide
