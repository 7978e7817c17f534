"""What is wrong with a cluster and what to do: walks the path that a client takes.

:func:`diagnose` examines everything at once (:mod:`kerolox.doctor.probe`), and checks what was
seen (:mod:`kerolox.doctor.checks`). :func:`check_settings` checks a ``broker.conf``,
:func:`check_file` any file of settings, accounts or keys.
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
