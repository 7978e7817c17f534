"""Each adapter says which extra it needs."""

from __future__ import annotations

import importlib
import sys

import pytest

from kerolox import ConfigError

FRAMEWORKS = {
    "celery": "kombu.transport",
    "dramatiq": "dramatiq",
    "faststream": "faststream._internal.broker",
    "taskiq": "taskiq",
}
"""By extra."""


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_an_adapter_without_its_framework_names_the_extra(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"kerolox.integrations.{extra}"
    for loaded in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, FRAMEWORKS[extra], None)
    with pytest.raises(ConfigError, match=rf"kerolox\[{extra}\]"):
        importlib.import_module(module)
