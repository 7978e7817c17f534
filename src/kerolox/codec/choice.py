"""Whose codec this process uses: that of the kernel that it uses."""

from __future__ import annotations

from typing import cast

from kerolox.codec import python_sending
from kerolox.codec.sending import SendCodec
from kerolox.kernel.choice import kernel_name, load_kernel


def send_codec(name: str | None = None) -> SendCodec:
    """The codec of sends of a kernel, of the one that is in use when none is named.

    Raises:
        ConfigError: ``KEROLOX_KERNEL`` asks for a kernel that is not there.
    """
    chosen = kernel_name() if name is None else name
    return cast("SendCodec", load_kernel(chosen) if chosen == "native" else python_sending)
