"""The kernels that this environment has, by their names in ``KEROLOX_KERNEL``."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["KERNELS"]

KERNELS = ["python", *(["native"] if find_spec("kerolox_kernel") else [])]
