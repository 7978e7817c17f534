"""Load tests: how fast a cluster takes, delivers and passes on messages, by our clients.

:func:`run_load` runs one, :class:`Tally` has its result."""

from kerolox.bench.histogram import Histogram
from kerolox.bench.load import Kind, Load, Tally
from kerolox.bench.running import run_load

__all__ = ["Histogram", "Kind", "Load", "Tally", "run_load"]
