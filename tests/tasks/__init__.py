"""The tasks of an operator's day, each done by both tools on both clusters."""
