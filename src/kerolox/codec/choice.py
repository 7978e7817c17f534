"""Whose codec this process uses: that of the kernel that it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kerolox.kernel.choice import kernel_name, load_kernel

if TYPE_CHECKING:
    from kerolox.codec.sending import SendCodec


def send_codec(name: str | None = None) -> SendCodec:
    """The codec of sends of a kernel, of the one that is in use when none is named; ConfigError:
    ``KEROLOX_KERNEL`` asks for a kernel that is not there.
    """
    chosen = kernel_name() if name is None else name
    if chosen == "native":
        return cast("SendCodec", load_kernel(chosen))
    from kerolox.codec import python_sending

    return cast("SendCodec", python_sending)
