"""The kernel in pure Python: complete by itself, and the oracle of the native one.

It implements :class:`kerolox.kernel.choice.Kernel` on the files of :mod:`kerolox.store`.
``connection`` cuts chunks of bytes into frames and answers them. ``headers`` parses what clients
write. ``tables`` has the broker's policy, ``holds`` the held pulls, ``answers`` the bytes of
answers. ``columns`` turns records into Arrow buffers.
"""

from __future__ import annotations

from kerolox._pykernel.columns import decode_columns, scan_columns
from kerolox._pykernel.connection import Connection
from kerolox._pykernel.store import Store

__all__ = ["Connection", "Store", "decode_columns", "scan_columns"]
