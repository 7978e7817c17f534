"""``kerolox spark audit``: compares the whole log of a store with its queues."""

from kerolox.spark.jobs.audit.job import JOB, AuditOptions, audit

__all__ = ["JOB", "AuditOptions", "audit"]
