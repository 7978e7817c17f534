"""What holds for every run, and what it says at its start."""

from __future__ import annotations

import os
from importlib.util import find_spec

import hypothesis

# An example of an instant takes Hypothesis's 200 ms now and then on a machine under load. Where a
# run judges a change the examples are the same each time; elsewhere each run has others.
hypothesis.settings.register_profile(
    "ours", deadline=None, derandomize=os.environ.get("CI") == "true"
)
hypothesis.settings.load_profile("ours")


def pytest_report_header() -> str:
    """Say which kernels the run is about."""
    if find_spec("kerolox_kernel") is not None:
        return "kernels under test: python, native"
    return "kernels under test: python (kerolox_kernel is not installed)"
