"""Where a user's files are, by the variables of the XDG base directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CONFIG, STATE, CACHE = "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"

_DEFAULTS = {CONFIG: ".config", STATE: ".local/state", CACHE: ".cache"}
"""Below the user's home."""


def user_folder(variable: str, environment: Mapping[str, str]) -> Path:
    """Kerolox's folder below what the variable or, without it, the user's home names.

    Args:
        variable: ``CONFIG``, ``STATE`` or ``CACHE``.
        environment: the variables.
    """
    base = environment.get(variable) or Path(environment.get("HOME", "/"), _DEFAULTS[variable])
    return Path(base, "kerolox")
