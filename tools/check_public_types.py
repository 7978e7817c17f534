"""Every name of the public modules has a type that all type checkers read alike.

    python tools/check_public_types.py

Asks ``pyright --verifytypes`` about the package and examines what the public modules export; other
modules are internal (docs/reference/index.md), and mypy checks those.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
PUBLIC = (
    "kerolox",
    "kerolox.admin",
    "kerolox.admin.sync",
    "kerolox.client",
    "kerolox.client.sync",
    "kerolox.errors",
    "kerolox.integrations.cloudevents",
    "kerolox.integrations.dramatiq",
    "kerolox.integrations.faststream",
    "kerolox.integrations.taskiq",
    "kerolox.otel",
    "kerolox.schemas.registry",
    "kerolox.schemas.serializers",
    "kerolox.spark",
    "kerolox.testing",
)
"""The modules whose names users may rely on."""

EXTRAS = {
    "kerolox.integrations.dramatiq": "dramatiq",
    "kerolox.integrations.faststream": "faststream",
    "kerolox.integrations.taskiq": "taskiq",
    "kerolox.otel": "opentelemetry",
    "kerolox.schemas.registry": "urllib3",
    "kerolox.schemas.serializers": "urllib3",
}
"""Those that need a package of an extra; they are left out where it is not installed."""


def exported() -> set[str]:
    """Full names of what the public modules export, each also where it is defined."""
    names = set()
    for module_name in PUBLIC:
        if find_spec(EXTRAS.get(module_name, module_name)) is None:
            continue
        module = importlib.import_module(module_name)
        for name in module.__all__:
            names.add(f"{module_name}.{name}")
            value = getattr(module, name)
            if getattr(value, "__module__", "").startswith("kerolox."):
                names.add(f"{value.__module__}.{getattr(value, '__qualname__', name)}")
    return names


def symbols() -> list[dict[str, Any]]:
    """Each symbol of the package, as pyright sees it."""
    command = [str(BIN / "pyright"), "--verifytypes", "kerolox", "--ignoreexternal", "--outputjson"]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    # Less of a processor for collecting garbage.
    environment["NODE_OPTIONS"] = "--max-semi-space-size=128"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    if not found:
        raise SystemExit(f"pyright found no symbols:\n{done.stdout}{done.stderr}")
    return list(found)


def main() -> int:
    public = exported()
    checked = unclear = 0
    for symbol in symbols():
        name = symbol["name"]
        if not any(name == each or name.startswith(f"{each}.") for each in public):
            continue
        checked += 1
        if not symbol["isTypeKnown"] or symbol.get("isTypeAmbiguous"):
            unclear += 1
            texts = [each["message"] for each in symbol["diagnostics"]]
            print(f"{name}: {' '.join(texts) or 'partially unknown'}")
    print(f"public types: {checked - unclear} of {checked} symbols are known")
    return 1 if unclear or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
