"""Loads of one's own: how fast a cluster takes, gives and passes on messages, with our clients used
as users use them. :func:`run_load` does it, :class:`Tally` has what came of it."""

from kerolox.bench.histogram import Histogram
from kerolox.bench.load import Kind, Load, Tally
from kerolox.bench.running import run_load

__all__ = ["Histogram", "Kind", "Load", "Tally", "run_load"]
