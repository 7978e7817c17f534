"""The kernels that this environment has, by their names in ``KEROLOX_KERNEL``."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["KERNELS", "MODULES"]

MODULES = {"python": "kerolox._pykernel", "native": "kerolox_kernel"}
"""Name to module, whether it is here or not."""

KERNELS = [name for name, module in MODULES.items() if find_spec(module)]
