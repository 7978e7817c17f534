"""Checks: functions from a snapshot to findings, with no I/O."""
