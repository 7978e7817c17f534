"""``kerolox spark audit``: a store's log and queues, read whole and held against each other."""

from kerolox.spark.jobs.audit.job import JOB, AuditOptions, audit

__all__ = ["JOB", "AuditOptions", "audit"]
