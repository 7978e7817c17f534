"""``replay``: sends messages of an archive, a store or a topic again."""

from kerolox.spark.jobs.replay.job import JOB, ReplaySummary, replay
from kerolox.spark.jobs.replay.options import ReplayOptions
from kerolox.spark.jobs.replay.rows import REPLAYED_FROM

__all__ = ["JOB", "REPLAYED_FROM", "ReplayOptions", "ReplaySummary", "replay"]
