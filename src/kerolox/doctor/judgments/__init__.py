"""What the facts mean: functions from a survey to findings, with no I/O."""
