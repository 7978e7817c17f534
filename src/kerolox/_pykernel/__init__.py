"""The kernel in pure Python: complete by itself, and the oracle of the native one.

It offers what :class:`kerolox.kernel.Kernel` says. ``connection`` takes chunks of bytes apart and
answers, ``headers`` parses what clients write, ``tables`` holds the broker's policy, ``holds`` the
pulls that wait, ``answers`` the bytes of answers, ``columns`` turns records into Arrow buffers; the
files themselves are :mod:`kerolox.store`'s.
"""

from __future__ import annotations

from kerolox._pykernel.columns import decode_columns, scan_columns
from kerolox._pykernel.connection import Connection
from kerolox._pykernel.store import Store

__all__ = ["Connection", "Store", "decode_columns", "scan_columns"]
