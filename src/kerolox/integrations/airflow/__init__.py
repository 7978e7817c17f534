"""A provider for Apache Airflow 3 (``pip install 'kerolox[airflow]'``).

======================================  ==========================================================
``hooks.KeroloxHook``                   a connection of type ``kerolox``, and clients of it
``sensors.KeroloxSensor``               a task that waits for messages, deferred as a rule
``triggers.AwaitMessageTrigger``        what waits in the triggerer, for tasks and for assets
``queues.KeroloxMessageQueueProvider``  ``MessageQueueTrigger(scheme="kerolox", ...)``
======================================  ==========================================================

Airflow finds it by the entry point ``apache_airflow_provider``. This module imports nothing of it.
"""

from __future__ import annotations

from typing import Any

from kerolox.release import __version__

__all__ = ["get_provider_info"]

CONNECTION_TYPE = "kerolox"
SCHEME = "kerolox"
HOOK_NAME = "Kerolox (RocketMQ)"

_HERE = __name__


def _text(label: str, description: str = "") -> dict[str, Any]:
    """A field of a connection's form that holds a text."""
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def get_provider_info() -> dict[str, Any]:
    """What Airflow asks a provider for: its hooks, sensors, triggers, queues and connections."""
    name = "Kerolox"
    modules = {part: [f"{_HERE}.{part}"] for part in ("hooks", "sensors", "triggers")}
    return {
        "package-name": "kerolox",
        "name": name,
        "description": "Topics of Kerolox and RocketMQ.",
        "versions": [__version__],
        "integrations": [
            {"integration-name": name, "external-doc-url": "", "tags": ["software"]},
        ],
        **{
            part: [{"integration-name": name, "python-modules": found}]
            for part, found in modules.items()
        },
        "queues": [f"{_HERE}.queues.KeroloxMessageQueueProvider"],
        "connection-types": [
            {
                "hook-class-name": f"{_HERE}.hooks.KeroloxHook",
                "hook-name": HOOK_NAME,
                "connection-type": CONNECTION_TYPE,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {
                        "host": "Name servers",
                        "login": "Access key",
                        "password": "Secret key",
                    },
                    "placeholders": {"host": "10.0.0.1:9876;10.0.0.2:9876"},
                },
                "conn-fields": {
                    "namespace": _text("Namespace", "Before all topics and groups"),
                    "tls": {
                        "label": "TLS",
                        "schema": {"type": ["boolean", "null"], "default": False},
                    },
                    "tls_ca": _text("CA certificate", "A file; none: those of the system"),
                    "tls_certificate": _text("Client certificate", "A file"),
                    "tls_key": _text("Client key", "A file"),
                    "tls_check_host_name": {
                        "label": "Check the host name",
                        "schema": {"type": ["boolean", "null"], "default": True},
                    },
                },
            }
        ],
    }
