"""Each adapter says which extra it needs."""

from __future__ import annotations

import importlib
import sys

import pytest

from kerolox import ConfigError

FRAMEWORKS = {"celery": "kombu.transport", "taskiq": "taskiq"}
"""By extra."""


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_an_adapter_without_its_framework_names_the_extra(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"kerolox.integrations.{extra}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, FRAMEWORKS[extra], None)
    with pytest.raises(ConfigError, match=rf"kerolox\[{extra}\]"):
        importlib.import_module(module)
