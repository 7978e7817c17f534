"""The kernels under test, by their names in ``KEROLOX_KERNEL``, which can leave only one."""

from __future__ import annotations

import os
from importlib.util import find_spec

__all__ = ["INSTALLED", "KERNELS", "MODULES"]

MODULES = {"python": "kerolox._pykernel", "native": "kerolox_kernel"}
"""Name to module, whether it is here or not."""

INSTALLED = [name for name, module in MODULES.items() if find_spec(module)]
"""Names of those that can be imported; the one that is taken by itself comes last."""

KERNELS = [name for name in INSTALLED if os.environ.get("KEROLOX_KERNEL") in (name, "", None)]
assert KERNELS, "KEROLOX_KERNEL names no kernel that is here; leave it out or run make setup"
