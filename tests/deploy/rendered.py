"""The chart as Helm renders it, and its objects against Kubernetes' own types."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
import typing
from typing import Any

import yaml

from tests.deploy.composed import DEPLOY

__all__ = ["CHART", "faults", "render"]

CHART = DEPLOY / "helm" / "kerolox"
NAMESPACE, RELEASE = "messaging", "mq"

KINDS = {
    ("v1", "ConfigMap"): "core_v1",
    ("v1", "Secret"): "core_v1",
    ("v1", "Service"): "core_v1",
    ("apps/v1", "Deployment"): "apps_v1",
    ("apps/v1", "StatefulSet"): "apps_v1",
    ("policy/v1", "PodDisruptionBudget"): "policy_v1",
}
"""Of Kubernetes itself, with the module of their types."""

PLAIN = (str, int, float, bool)


def render(**values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) → object, of a release ``mq`` in the namespace ``messaging``.

    Raises:
        helm_python.HelmError: the values don't fit, or a template fails.
    """
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, text in files.items():
        if not name.endswith(".yaml"):
            continue
        for each in yaml.safe_load_all(text):
            if each is None:
                continue
            key = each["kind"], each["metadata"]["name"]
            assert key not in found, f"{key} stands twice"
            found[key] = each
    return found


def faults(given: dict[str, Any]) -> list[str]:
    """Fields that an object's type has not, that it needs, or whose values have another type."""
    module = importlib.import_module(
        f"lightkube.models.{KINDS[given['apiVersion'], given['kind']]}"
    )
    return list(_faults(given, getattr(module, given["kind"]), given["kind"]))


def _faults(value: Any, wanted: Any, where: str) -> typing.Iterator[str]:
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        branches = [each for each in typing.get_args(wanted) if each is not type(None)]
        ends = [list(_faults(value, each, where)) for each in branches]
        yield from min(ends, key=len)
    elif dataclasses.is_dataclass(wanted):
        yield from _faults_of_fields(value, wanted, where)
    elif typing.get_origin(wanted) is list:
        if not isinstance(value, list):
            yield f"{where}: no list"
            return
        for at, each in enumerate(value):
            yield from _faults(each, typing.get_args(wanted)[0], f"{where}[{at}]")
    elif typing.get_origin(wanted) is dict or wanted is dict:
        if not isinstance(value, dict):
            yield f"{where}: no map"
            return
        of_values = typing.get_args(wanted)[1] if typing.get_args(wanted) else Any
        for key, each in value.items():
            yield from _faults(each, of_values, f"{where}.{key}")
    elif wanted in PLAIN and type(value) is not wanted:
        yield f"{where}: {value!r} is no {wanted.__name__}"


def _faults_of_fields(value: Any, wanted: Any, where: str) -> typing.Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is no object"
        return
    hints = typing.get_type_hints(wanted, vars(sys.modules[wanted.__module__]))
    names = {each.metadata.get("json", each.name): each for each in dataclasses.fields(wanted)}
    for key, each in value.items():
        if key in names:
            yield from _faults(each, hints[names[key].name], f"{where}.{key}")
        else:
            yield f"{where}.{key}: no such field"
    for key, field in names.items():
        if field.default is field.default_factory and key not in value:
            yield f"{where}.{key} is missing"
