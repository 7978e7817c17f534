"""What every run says at its start."""

from __future__ import annotations

from importlib.util import find_spec


def pytest_report_header() -> str:
    """Say which kernels the run is about."""
    if find_spec("kerolox_kernel") is not None:
        return "kernels under test: python, native"
    return "kernels under test: python (kerolox_kernel is not installed)"
