"""What a role is to those who examine its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kerolox.metrics.families import Families


class MeasuredRole(Protocol):
    """What a role reports about itself."""

    @property
    def shared_labels(self) -> Mapping[str, str]:
        """Labels of all its series."""

    @property
    def build_labels(self) -> Mapping[str, str]:
        """More labels of ``kerolox_build_info``."""

    async def measure(self, families: Families) -> None:
        """Add its metrics, in time slices with other work of the loop."""

    def unready(self) -> list[str]:
        """Why nobody should be sent here now; empty: it is ready."""
