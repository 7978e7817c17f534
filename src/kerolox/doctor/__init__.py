"""What is wrong with a cluster and what to do: walks the path that a client takes.

:func:`diagnose` looks at everything at once (:mod:`kerolox.doctor.survey`), and judges what was
seen (:mod:`kerolox.doctor.judgments`). :func:`check_settings` judges a ``broker.conf``,
:func:`check_file` any file of settings, accounts or keys.
"""

from kerolox.doctor.config_files import KINDS, check_file
from kerolox.doctor.diagnosis import diagnose
from kerolox.doctor.findings import CODES, Finding, Severity, worst_first
from kerolox.doctor.settings_file import check_settings
from kerolox.doctor.survey import Look

__all__ = [
    "CODES",
    "KINDS",
    "Finding",
    "Look",
    "Severity",
    "check_file",
    "check_settings",
    "diagnose",
    "worst_first",
]
