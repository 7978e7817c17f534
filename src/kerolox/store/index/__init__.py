"""The index by key and time."""
