"""Diagnosis of a cluster: what is wrong, and what to do. It walks the path of a client.

:func:`diagnose` probes everything (:mod:`kerolox.doctor.probe`), then checks the snapshot
(:mod:`kerolox.doctor.checks`). :func:`check_settings` checks a ``broker.conf``, :func:`check_file`
any file of settings, accounts or keys.
"""

from kerolox.doctor.config_files import KINDS, check_file
from kerolox.doctor.diagnosis import diagnose
from kerolox.doctor.findings import CODES, Finding, Severity, worst_first
from kerolox.doctor.probe import ProbeOptions
from kerolox.doctor.settings_file import check_settings

__all__ = [
    "CODES",
    "KINDS",
    "Finding",
    "ProbeOptions",
    "Severity",
    "check_file",
    "check_settings",
    "diagnose",
    "worst_first",
]
