"""The tasks of an operator's day, each done by both tools: on ours, and on a Java cluster."""
