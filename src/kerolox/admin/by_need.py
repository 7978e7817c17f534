"""An ``Admin`` that imports a subject when the first of its questions is asked.

``Admin`` inherits the classes of all subjects, whose modules together cost more time than a
question does. Who asks one question and ends, as a command does, begins with none of them.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, cast

from kerolox.admin.cluster import ClusterRequests

if TYPE_CHECKING:
    from kerolox.admin.admin import Admin
    from kerolox.client.aio.network.access import Access

SUBJECTS = (
    "kerolox.admin.topic_lists:TopicListRequests",
    "kerolox.admin.consumers.progress:ProgressRequests",
    "kerolox.admin.brokers:BrokerRequests",
    "kerolox.admin.consumers.groups:GroupRequests",
    "kerolox.admin.name_server:NameServerRequests",
    "kerolox.admin.topic_changes.update:TopicUpdateRequests",
    "kerolox.admin.acl:AclRequests",
    "kerolox.admin.roles.changing:RoleRequests",
    "kerolox.admin.consumers.popped:PoppedRequests",
    "kerolox.admin.offset_moves:OffsetMoveRequests",
    "kerolox.admin.messages.halves:HalfMessageRequests",
    "kerolox.admin.messages.finding:MessageQueryRequests",
    "kerolox.admin.messages.dead_letters:DeadLetterRequests",
    "kerolox.admin.roles.retiring:RetirementRequests",
    "kerolox.admin.controllers:ControllerRequests",
    "kerolox.admin.messages.sending:MessageSendRequests",
    "kerolox.admin.reports.export:ExportRequests",
    "kerolox.admin.reports.monitor:MonitorRequests",
)
"""Classes of subjects, as they are searched for a method: what is asked often and imported fast
comes first."""


def admin_by_need(access: Access) -> Admin:
    """As ``Admin.on``: all methods of an ``Admin``, whose subjects are imported as they are needed.

    Args:
        access: connections that others own.
    """
    return cast("Admin", _AdminByNeed(access))


class _AdminByNeed(ClusterRequests):
    """Has the methods of a subject from when one of them is first asked for."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._subjects: list[type[ClusterRequests]] = []
        self._left = iter(SUBJECTS)

    @property
    def access(self) -> Access:
        """The way to the cluster."""
        return self._access

    def __getattr__(self, name: str) -> object:
        """A method of a subject, bound to this; methods of all of them find each other here."""
        for subject in self._subjects:
            if hasattr(subject, name):
                return self._bound(subject, name)
        if not name.startswith("_"):
            for place in self._left:
                module, _, attribute = place.partition(":")
                subject = getattr(importlib.import_module(module), attribute)
                self._subjects.append(subject)
                if hasattr(subject, name):
                    return self._bound(subject, name)
        raise AttributeError(f"an Admin has no {name!r}")

    def _bound(self, subject: type[ClusterRequests], name: str) -> object:
        found = inspect.getattr_static(subject, name)
        return found.__get__(self, subject) if hasattr(found, "__get__") else found
